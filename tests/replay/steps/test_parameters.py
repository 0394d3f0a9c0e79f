"""Parameters of models against what is published, and operations against a count by hand."""

from __future__ import annotations

import pytest
from loops import every

from replay.steps import parameters
from tracegen import models

CHECKPOINTS = {
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gpt-oss-120b": 116_829_156_672,
    "gpt-oss-20b": 20_914_757_184,
    "grok-2": 269_515_497_472,  # counted in discussion 24 of xai-org/grok-2
    "kimi-k2": 1_026_408_232_448,
    "mixtral-8x7b": 46_702_792_704,
    "olmoe-1b-7b": 6_919_161_856,
    "qwen2-moe-2.7b": 14_315_784_192,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-30b-a3b": 30_532_122_624,
}
"""Parameters of the checkpoints' tensors, as huggingface.co reports them; of DeepSeek-V3 those of
the main model."""

BILLIONS = {  # all, and active without and with the embedding, whichever is published
    "deepseek-v3": (671, 36.7, None),  # README_WEIGHTS.md of the checkpoint
    "deepseek-v2-lite": (15.7, 2.4, None),  # model card
    "qwen3-235b-a22b": (235, None, 22),  # model card
    "qwen3-30b-a3b": (30.5, None, 3.3),  # model card
    "mixtral-8x7b": (46.7, None, 12.9),  # mistral.ai, Mixtral of experts
    "phi-3.5-moe": (41.9, None, 6.6),  # model card
    "gpt-oss-20b": (20.91, 3.61, None),  # model card (arXiv 2508.10925)
    "gpt-oss-120b": (116.83, 5.13, None),  # likewise
    "kimi-k2": (1040, 32, None),  # arXiv 2507.20534: 1.04 trillion
    "olmoe-1b-7b": (6.9, None, 1.3),  # arXiv 2409.02060
    "glm-4.5": (355, None, 32),  # arXiv 2508.06471
    "pangu-ultra-moe": (718, 39, None),  # arXiv 2505.04519
    "qwen2-57b-a14b": (57.4, None, 14.2),  # arXiv 2407.10671
    "glm-5": (744, 40, None),  # model card
    "minimax-m2": (230, 10, None),  # model card
    "llama-4-maverick": (400, None, 17),  # model card
    "llama-4-scout": (109, None, 17),  # model card
    "ernie-4.5-21b-a3b": (21, 3, None),  # model card
    "ernie-4.5-300b-a47b": (300, None, 47),  # model card
    "hunyuan-a13b": (80, None, 13),  # model card
    "hy3": (295.034, None, 21),  # AI-Hypercomputer/maxtext, pull request 4704
}
LOOSE = {  # what is published is rounded to so many per cent, or differs by as much
    ("deepseek-v2-lite", "active"): 2.5,  # 2.45, published as 2.4
    ("kimi-k2", "all"): 1.4,  # 1.026 trillion in the checkpoint, 1.04 in the paper
    ("qwen3-30b-a3b", "active"): 1.7,
    ("olmoe-1b-7b", "active"): 1.5,
    ("kimi-k2", "active"): 1.0,
    ("qwen3-235b-a22b", "active"): 0.9,
    ("phi-3.5-moe", "active"): 0.7,
    ("minimax-m2", "all"): 0.6,
    ("minimax-m2", "active"): 4.2,  # 10.4
    ("llama-4-maverick", "active"): 1.1,
    ("llama-4-scout", "all"): 1.2,  # the vision encoder is published with it
    ("llama-4-scout", "active"): 1.1,
    ("ernie-4.5-21b-a3b", "all"): 4.0,  # 21.8
    ("ernie-4.5-21b-a3b", "active"): 3.0,  # 3.09
    ("hunyuan-a13b", "active"): 2.0,  # 12.7
    ("hy3", "active"): 1.6,  # 20.7
    ("glm-4.5", "all"): 0.7,
    ("glm-4.5", "active"): 5.2,  # 33.6; 32.1 without embedding and head
}


@every("name", sorted(CHECKPOINTS))
def test_models_have_as_many_parameters_as_their_checkpoints(name: str) -> None:
    assert parameters.count(models.load(name)).total == CHECKPOINTS[name]


@every("name", sorted(BILLIONS))
def test_parameters_are_those_published(name: str) -> None:
    count = parameters.count(models.load(name))
    total, bare, whole = BILLIONS[name]
    assert count.total / 1e9 == pytest.approx(total, rel=LOOSE.get((name, "all"), 0.5) / 100)
    active = count.active if bare is None else count.active - count.embedding
    published = whole or bare
    assert active / 1e9 == pytest.approx(published, rel=LOOSE.get((name, "active"), 0.5) / 100)
    assert not parameters.left_out(models.load(name))


def test_prediction_of_several_tokens_is_counted_apart() -> None:
    """DeepSeek-V3's README_WEIGHTS.md: 11.5 billion of its own; GLM-4.5's checkpoint to the one."""
    count = parameters.count(models.load("deepseek-v3"))
    assert count.mtp / 1e9 == pytest.approx(11.5, rel=0.01)
    glm = parameters.count(models.load("glm-4.5"))
    own = glm.embedding + glm.head  # which that checkpoint has once more
    assert glm.total + glm.mtp + own == 358_337_791_296


def test_what_is_not_known_is_named() -> None:
    assert parameters.left_out(models.load("dysharp-l")) == ("embedding and output head (vocabulary not known)",)
    assert parameters.left_out(models.load("nemotron-3-nano")) == (
        "attention (no heads known)",
        "layers without experts (no width known)",
    )


def test_a_tied_head_has_no_parameters_but_is_multiplied() -> None:
    shape = models.load("olmoe-1b-7b")
    tied = shape.model_copy(update={"tied_embeddings": True})
    apart, joint = parameters.count(shape), parameters.count(tied)
    assert apart.total - joint.total == 50304 * 2048
    assert parameters.flop_per_token(tied, 64) == parameters.flop_per_token(shape, 64)


@every("name", ["deepseek-v3", "qwen3-30b-a3b", "gpt-oss-20b", "qwen2-57b-a14b"])
@every(("tp", "ep"), [(2, 4), (4, 8)])
def test_gpus_of_a_plan_have_the_model_together(name: str, tp: int, ep: int) -> None:
    """What is sliced adds up to the whole; what is copied does not get less."""
    shape = models.load(name)
    layer = shape.num_layers - 1
    whole, one = parameters.of_layer(shape, layer), parameters.of_layer(shape, layer, tp, ep)
    assert one.experts * ep == whole.experts
    assert one.norms == whole.norms and one.gate == whole.gate
    assert one.attention * tp >= whole.attention > one.attention
    copied = {
        "deepseek-v3": 7168 * (1536 + 512 + 64),  # to latent vectors
        "qwen3-30b-a3b": 0,
        "gpt-oss-20b": 2880,  # the bias behind the heads
        "qwen2-57b-a14b": 0,
    }[name]
    assert tp * (one.attention - copied) == whole.attention - copied
    gate = 3584 if name == "qwen2-57b-a14b" else 0  # of the shared expert
    assert tp * (one.shared - gate) == whole.shared - gate
    assert parameters.of_head(shape, tp) * tp == parameters.of_head(shape)


def test_heads_of_keys_are_on_every_gpu_where_there_are_fewer() -> None:
    shape = models.load("qwen3-30b-a3b")  # 32 heads, 4 of keys and values
    columns = 32 // 8 * 128 + 2 * 1 * 128 + 32 // 8 * 128
    assert parameters.of_layer(shape, 0, tp=8).attention == columns * 2048


def test_operations_of_mixtral_by_hand() -> None:
    """Two per weight and token, half of the pairs of a sequence; and twice that backward."""
    shape = models.load("mixtral-8x7b")
    attention = 4096 * (4096 + 2 * 1024) + 4096 * 4096
    layer = attention + 4096 * 8 + 2 * 3 * 4096 * 14336
    weights = 32 * layer + 32000 * 4096
    pairs = 2 * 32 * 2 * 32 * 128 * 4096 // 2  # two products, 2048 pairs a token on average
    assert parameters.flop_per_token(shape, 4096) == 3 * (2 * weights + pairs)


def test_operations_of_latent_attention_and_of_a_second_prediction_by_hand() -> None:
    shape = models.load("deepseek-v3")
    attention = 7168 * (1536 + 512 + 64) + 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168
    dense = 3 * 7168 * 18432
    moe = 7168 * 256 + 9 * 3 * 7168 * 2048
    head = 129280 * 7168
    products = 4096 * 128 * (192 + 128)
    plain = 2 * (61 * attention + 3 * dense + 58 * moe + head) + 61 * products
    assert parameters.flop_per_token(shape, 4096) == 3 * plain
    more = 2 * (attention + moe + 2 * 7168**2 + head) + products
    assert parameters.flop_per_token(shape, 4096, mtp=1) == 3 * (plain + more)


def test_six_operations_per_active_parameter_are_the_rest() -> None:
    """Without attention itself and but for norms and biases, which multiply nothing."""
    shape = models.load("deepseek-v3")
    count = parameters.count(shape)
    bare = parameters.flop_per_token(shape, 0)
    assert bare == pytest.approx(6 * (count.active - count.embedding), rel=1e-4)


@every(
    ("name", "sequence", "mtp", "tflops", "tokens", "within"),
    [
        ("deepseek-v3", 4096, 1, 1233, 4730, 2e-4),
        ("deepseek-v3", 4096, 1, 1048, 4020, 3e-4),
        ("deepseek-v3", 4096, 1, 368, 1412, 1e-4),
        ("qwen3-235b-a22b", 4096, 0, 974, 6583, 3e-3),
        ("qwen3-235b-a22b", 131072, 0, 1150, 1556, 6e-3),
    ],
)
def test_operations_are_those_that_megatron_publishes(
    name: str, sequence: int, mtp: int, tflops: int, tokens: int, within: float
) -> None:
    """TFLOP/s and tokens/s of a GPU (arXiv 2603.07685, section 8): operations of a token."""
    counted = parameters.flop_per_token(models.load(name), sequence, mtp=mtp)
    assert counted == pytest.approx(tflops * 1e12 / tokens, rel=within)
