"""Plans: sizes, layers of chunks, published ones, and what does not suit a model or a system."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

import hwmodel
from replay.errors import UserError
from replay.steps import plan_fit, plans
from replay.steps.chunks import chunks_of
from replay.steps.plan import ParallelPlan, parse
from tracegen import models

V3 = models.load("deepseek-v3")
LITE = models.load("deepseek-v2-lite")


def counts(plan: ParallelPlan) -> list[int]:
    return [len(chunk) for chunk in chunks_of(V3, plan)]


@every(
    ("pp", "vpp", "decoder"),
    [(4, 1, [16, 16, 16, 13]), (8, 1, [8] * 7 + [5]), (16, 1, [4] * 15 + [1])],
)
def test_layers_are_cut_as_megatron_bridge_cuts_deepseek_v3(pp: int, vpp: int, decoder: list[int]) -> None:
    """set_deepseek_v3_pipeline_model_parallel_layout, with its one layer for a second token."""
    chunks = chunks_of(V3, ParallelPlan(pp=pp, vpp=vpp, mtp=1))
    assert [sum(layer < 61 for layer in chunk) for chunk in chunks] == decoder
    assert chunks[-1][-1] == 61


def test_last_chunk_may_have_the_head_alone() -> None:
    """Pangu's 61 + 1 layers over 16 stages of two chunks."""
    assert counts(ParallelPlan(pp=16, vpp=2, mtp=1)) == [2] * 31 + [0]
    with pytest.raises(UserError, match=r"64 chunks, some without layers: .* at most 62 chunks"):
        counts(ParallelPlan(pp=32, vpp=2))


def test_embedding_and_head_may_have_chunks_of_their_own() -> None:
    """Megatron-LM's account-for options: 61 layers and these two over 21 stages of three."""
    assert counts(ParallelPlan(pp=21, vpp=3, layers=(0, *[1] * 61, 0))) == [0] + [1] * 61 + [0]
    with pytest.raises(UserError, match="some without layers"):
        counts(ParallelPlan(pp=21, vpp=3, layers=(1, 0, *[1] * 60, 0)))


@given(st.integers(1, 61), st.integers(0, 1))
def test_chunks_are_the_layers_in_order_and_even(pp: int, mtp: int) -> None:
    chunks = chunks_of(V3, ParallelPlan(pp=pp, mtp=mtp))
    assert [layer for chunk in chunks for layer in chunk] == list(range(61 + mtp))
    loads = [len(chunk) for chunk in chunks]
    loads[-1] += 1  # the head
    assert max(loads) - min(loads) <= 1 and loads == sorted(loads, reverse=True)


def test_layers_of_chunks_can_be_given() -> None:
    sizes = parse("pp=8, vpp=2, layers=15x4+1")
    assert sizes["layers"] == (4,) * 15 + (1,)
    assert counts(ParallelPlan(**sizes)) == [4] * 15 + [1]
    with pytest.raises(UserError, match=r"layers gives 8 to its chunks; deepseek-v3 has 61$"):
        counts(ParallelPlan(pp=2, layers=(4, 4)))
    with pytest.raises(UserError, match="layers has 2 chunks; pp 4 x vpp 1 = 4"):
        counts(ParallelPlan(pp=4, layers=(30, 31)))


@every(
    ("text", "message"),
    [
        ("tp=2,pp", r"'pp' is not a size as tp=8"),
        ("tp=2,tp=4", "tp is given twice"),
        ("tq=2", "unknown size of a plan 'tq'"),
        ("tp=-1", r"tp = '-1': expected a whole number"),
        ("tp=٣", "expected a whole number"),
        ("tp=0", "tp must be at least 1"),
        ("layers=99999999x1", "more than 4096 chunks"),
        ("layers=4,4", "'4' is not a size"),
        ("layers=4x", "expected chunks such as 15x4"),
        ("recompute=some", "unknown recompute 'some'"),
        ("dp=99999999", "99999999 GPUs; at most 1048576"),
        ("pp=5000", "5000 chunks .* at most 4096"),
        ("tp=4,dp=4,ep=3", "possible are 1, 2, 4, 8, 16"),
    ],
)
def test_sizes_that_are_none_are_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ParallelPlan(**parse(text))


@every("name", plans.names())
def test_published_plans_suit_their_model_and_system(name: str) -> None:
    named = plans.find(name)
    assert named.name == name and named.title and named.model and named.system
    shape = models.load(named.model)
    nodes = named.plan.num_gpus // hwmodel.load(named.system).num_gpus
    system = hwmodel.load(f"{named.system}-x{nodes}")
    plan_fit.check(named.plan, shape, system, named.sequence)
    run = {"model", "system", "sequence", "schedule", "recipe"}
    assert set(named.sources) >= run | set(named.plan.model_dump(exclude_defaults=True))
    assert all(len(source) > 10 for source in named.sources.values())


def test_published_plans_have_the_gpus_and_batches_that_are_stated() -> None:
    gpus = {name: plans.find(name).plan.num_gpus for name in plans.names()}
    assert gpus == {
        "deepseek-v3": 2048,
        "deepseek-v3-megatron": 1024,
        "dysharp-l": 512,
        "mixtral-8x7b-megatron": 64,
        "pangu-ultra-moe": 6144,
        "qwen3-235b-megatron": 256,
    }
    named = plans.find("deepseek-v3")
    assert named.sequence is not None
    assert named.plan.tokens_per_step(named.sequence) == 15360 * 4096


def test_sizes_after_a_name_replace_its_own() -> None:
    named = plans.find("deepseek-v3-megatron,dp=32, pp=16")
    assert (named.plan.dp, named.plan.pp, named.plan.ep) == (32, 16, 64)
    assert named.plan.layers is None  # there are other chunks now
    kept = plans.find("deepseek-v3-megatron,dp=32").plan.layers
    assert kept is not None and len(kept) == 32
    assert plans.find("tp=2").model is None
    with pytest.raises(UserError, match=r"unknown plan 'deepseek'.* one of deepseek-v3, "):
        plans.find("deepseek")


@every(
    ("sizes", "message"),
    [
        ({"tp": 2, "dp": 2}, "dp 2 x pp 1 = 4 GPUs; dgx-h100 has 8"),
        ({"tp": 3, "dp": 1, "pp": 1}, "= 3 GPUs"),
        ({"pp": 8, "mtp": 1}, "mtp 1; deepseek-v2-lite has 0"),
        ({"dp": 8, "ep": 8, "micro_batch": 3}, None),
        ({"tp": 8, "dp": 1, "micro_batch": 1}, "do not divide the 4095 tokens"),
        ({"dp": 1, "pp": 8}, None),
    ],
)
def test_plans_that_do_not_suit_are_refused(sizes: dict[str, int], message: str | None) -> None:
    system, sequence = hwmodel.load("dgx-h100"), 4095 if message and "4095" in message else 4096
    if message is None:
        plan_fit.check(ParallelPlan(**sizes), LITE, system, sequence)
        return
    with pytest.raises(UserError, match=message):
        plan_fit.check(ParallelPlan(**sizes), LITE, system, sequence)


def test_tensor_parallel_groups_stay_in_a_domain() -> None:
    system = hwmodel.load("dgx-h100-x2")
    with pytest.raises(UserError, match=r"tp 16 is not within a domain of 8 GPUs; .* 1, 2, 4, 8$"):
        plan_fit.check(ParallelPlan(tp=16), V3, system)
    plan_fit.check(ParallelPlan(tp=8, dp=2), V3, system)


@every(
    ("model", "sizes", "message"),
    [
        ("qwen2-57b-a14b", {"tp": 8}, "tp 8 does not divide the attention heads .*, 28; .* 1, 2, "),
        ("deepseek-v3", {"dp": 512, "ep": 512}, "ep 512 does not divide the experts .*, 256; "),
        ("qwen3-30b-a3b", {"tp": 8}, None),  # four heads of keys, each on two GPUs
        ("deepseek-v3", {"pp": 4, "layers": (1, 1, 1, 1)}, "layers gives 4"),
        ("deepseek-v3", {"mtp": 2}, "mtp 2; deepseek-v3 has 1"),
    ],
)
def test_models_refuse_what_does_not_divide(model: str, sizes: dict[str, int], message: str | None) -> None:
    if message is None:
        plan_fit.check_model(ParallelPlan(**sizes), models.load(model))
        return
    with pytest.raises(UserError, match=message):
        plan_fit.check_model(ParallelPlan(**sizes), models.load(model))


@every(
    ("field", "count", "message"),
    [
        ("num_kv_heads", 12, "tp 8 neither divides the 12 key-value heads of mine nor"),
        ("dense_intermediate", 100, "tp 8 does not divide the inner width of dense layers"),
        ("shared_intermediate", 100, "tp 8 does not divide the inner width of shared experts"),
    ],
)
def test_widths_that_do_not_divide_are_refused(field: str, count: int, message: str) -> None:
    shape = V3.model_copy(update={"name": "mine", field: count})
    with pytest.raises(UserError, match=message):
        plan_fit.check_model(ParallelPlan(tp=8), shape)
