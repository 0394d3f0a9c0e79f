"""Memory of serving: bytes of a position, weights of a GPU, and positions that fit."""

from __future__ import annotations

import pytest

import hwmodel
from replay.errors import UserError
from replay.steps import parameters
from replay.steps.plan import Plan
from replay.steps.serving_memory import (
    SHARE,
    Precision,
    cache_bytes_per_token,
    cache_tokens,
    weight_bytes_per_gpu,
)
from tracegen import models

V3 = models.load("deepseek-v3")
LITE = models.load("deepseek-v2-lite")
QWEN = models.load("qwen3-30b-a3b")


@pytest.mark.parametrize(
    ("model", "precision", "nbytes"),
    [
        ("deepseek-v3", "bf16", 70_272),  # 70.272 KB: arXiv 2505.09343, table 1
        ("deepseek-v3", "fp8", 35_136),
        ("qwen3-235b-a22b", "bf16", 94 * 2 * 4 * 128 * 2),
        ("gpt-oss-20b", "bf16", 24 * 2 * 8 * 64 * 2),
    ],
)
def test_a_position_takes_what_is_published(model: str, precision: Precision, nbytes: int) -> None:
    assert cache_bytes_per_token(models.load(model), precision) == nbytes


def test_heads_are_sliced_and_latent_vectors_are_not() -> None:
    whole = cache_bytes_per_token(QWEN)
    assert [whole // cache_bytes_per_token(QWEN, tp=tp) for tp in (2, 4, 8)] == [2, 4, 4]
    assert cache_bytes_per_token(V3, tp=8) == cache_bytes_per_token(V3)
    assert cache_bytes_per_token(V3, layers=1) * 61 == cache_bytes_per_token(V3)
    assert cache_bytes_per_token(models.load("flashdmoe")) == 0


def test_weights_of_all_gpus_are_the_model() -> None:
    count = parameters.count(LITE)
    assert weight_bytes_per_gpu(LITE, Plan()) == 2 * count.total
    assert weight_bytes_per_gpu(LITE, Plan(), "fp32") == 4 * count.total
    experts = sum(layer.experts for layer in count.layers)
    spread = weight_bytes_per_gpu(LITE, Plan(dp=8, ep=8))
    assert spread == 2 * (count.total - experts + experts // 8)
    first = sum(layer.total for layer in count.layers[:14]) + count.embedding
    last = sum(layer.total for layer in count.layers[14:]) + count.head + count.norm
    assert weight_bytes_per_gpu(LITE, Plan(pp=2)) == 2 * max(first, last)


def test_published_checkpoint_of_deepseek_v3_in_fp8() -> None:
    """FP8 weights with scales, embedding and head in BF16: 671 billion parameters, a little more
    bytes; the router and norms in BF16."""
    nbytes = weight_bytes_per_gpu(V3, Plan(), "fp8")
    ends = 2 * 129280 * 7168
    assert nbytes / (671_026_419_200 + ends) == pytest.approx(1.0004, abs=2e-4)


def test_tied_weights_lie_on_both_ends() -> None:
    tied = LITE.model_copy(update={"tied_embeddings": True})
    for layers in ((17, 10), (10, 17)):  # the first stage has most, or the last
        plan = Plan(pp=2, layers=layers)
        assert weight_bytes_per_gpu(tied, plan) == weight_bytes_per_gpu(LITE, plan)
    ends = 2 * 102400 * 2048
    assert weight_bytes_per_gpu(LITE, Plan()) - weight_bytes_per_gpu(tied, Plan()) == ends


def test_positions_fill_what_weights_leave() -> None:
    system = hwmodel.load("dgx-h100")
    room = int(system.hbm.num_bytes * SHARE)
    free = room - weight_bytes_per_gpu(LITE, Plan())
    assert cache_tokens(LITE, Plan(), system) == free // (27 * 576 * 2)
    assert cache_tokens(LITE, Plan(), system, cache="fp8") == free // (27 * 576)
    less = cache_tokens(LITE, Plan(), system, other_bytes=1 << 30)
    assert less == (free - (1 << 30)) // (27 * 576 * 2)
    full = int(system.hbm.num_bytes * 1.0) - weight_bytes_per_gpu(LITE, Plan())
    assert cache_tokens(LITE, Plan(), system, share=1.0) == full // (27 * 576 * 2)
    assert cache_tokens(LITE, Plan(cp=2), system) == 2 * (free // (27 * 576 * 2))


def test_the_stage_with_least_room_decides() -> None:
    system, plan = hwmodel.load("dgx-h100"), Plan(pp=2)
    room = int(system.hbm.num_bytes * SHARE)
    count, ends = parameters.count(LITE), 102400 * 2048
    weights = [
        2 * (sum(layer.total for layer in count.layers[:14]) + ends),
        2 * (sum(layer.total for layer in count.layers[14:]) + ends + 2048),
    ]
    layers = (14, 13)
    each = [(room - w) // (n * 576 * 2) for w, n in zip(weights, layers, strict=True)]
    assert cache_tokens(LITE, plan, system) == min(each)


def test_weights_that_do_not_fit_are_refused() -> None:
    system = hwmodel.load("dgx-h100")
    with pytest.raises(UserError, match=r"weights of stage 0 take 1249\.\d GiB on each GPU; dgx"):
        cache_tokens(V3, Plan(), system)
    cache_tokens(V3, Plan(dp=32, ep=32), system)  # DeepSeek's own, 32 GPUs in prefill
    with pytest.raises(UserError, match="flashdmoe has no attention"):
        cache_tokens(models.load("flashdmoe"), Plan(), system)
