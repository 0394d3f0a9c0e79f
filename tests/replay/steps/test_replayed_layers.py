"""Which layers, samples and nodes of a training step are replayed, where some stand for others."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from loops import every
from small_shape import small_shape

import hwmodel
from replay.errors import UserError
from replay.steps.plan import ParallelPlan
from replay.steps.replays import StepReplays
from replay.steps.routing import DrawnRouting
from replay.steps.times import PassTimes
from tracegen import RoutingTrace
from tracegen.generate import generate
from tracegen.models import ModelShape

EXPERTS, TOPK, RANKS, TOKENS = 8, 2, 4, 32
PLAN = ParallelPlan(dp=RANKS, ep=RANKS)
H100 = hwmodel.load("dgx-h100")


def shape_of(moe_layers: int) -> ModelShape:
    """A dense layer, and some with experts behind it."""
    return small_shape(
        num_experts=EXPERTS,
        topk=TOPK,
        num_layers=1 + moe_layers,
        dense_layers=(0,),
        dense_intermediate=2048,
        num_kv_heads=8,
    )


def traced(moe_layers: int, *, steps: int = 1, seed: int = 0) -> RoutingTrace:
    return generate(
        "zipf",
        shape_of(moe_layers),
        ranks=RANKS,
        tokens_per_rank=TOKENS,
        layers=moe_layers,
        steps=steps,
        seed=seed,
        skew=0.9,
    )


def replays(moe_layers: int, **settings: Any) -> StepReplays:
    return StepReplays(shape_of(moe_layers), H100, PLAN, TOKENS, "bf16", **settings)


def moe_layers_of(made: StepReplays, sample: int = 0, scheme: str = "nccl-alltoall") -> list[PassTimes]:
    return list(made.under(scheme).layers[sample][1:])


def busiest(trace: RoutingTrace) -> list[int]:
    """Rows of the busiest GPU of each layer, two experts on each."""
    per_gpu = EXPERTS // RANKS
    return [int(np.bincount(ids.ravel() // per_gpu).max()) for ids in trace.expert_ids]


def same(one: PassTimes, other: PassTimes) -> bool:
    return all(
        np.array_equal(getattr(mine, part), getattr(theirs, part))
        for mine, theirs in ((one.forward, other.forward), (one.backward, other.backward))
        for part in ("own", "met")
    )


def test_five_layers_of_which_two_are_replayed() -> None:
    """By hand: in order of their rows the first three and the others, each timed by its middle."""
    trace = traced(5, seed=11)
    rows = busiest(trace)
    order = sorted(range(5), key=rows.__getitem__)
    assert len(set(rows)) == 5
    assert order != list(range(5))
    made = replays(5, layers=2, trace=trace)
    layers = moe_layers_of(made)
    assert made.facts["replayed_layers"] == [sorted((order[1], order[4]))]
    assert len({id(layer) for layer in layers}) == 2
    exact = moe_layers_of(replays(5, layers=5, trace=trace))
    assert len({id(layer) for layer in exact}) == 5
    for group, middle in ((order[:3], order[1]), (order[3:], order[4])):
        assert all(same(layers[layer], exact[middle]) for layer in group)


def test_five_layers_take_two_that_are_drawn_in_turn() -> None:
    one, two, three, four, five = moe_layers_of(replays(5, layers=2))
    assert one is three is five
    assert two is four
    assert not same(one, two)


def test_samples_of_a_trace_are_the_tokens_behind_one_another() -> None:
    """The twin replays each sample as a trace of its own."""
    both = traced(3, steps=2)
    made = replays(3, layers=1, samples=2, trace=both)
    times = made.under("nccl-alltoall").layers
    replayed = []
    for sample in range(2):
        ids = both.expert_ids[:, both.step_rows(sample)]
        alone = replays(3, layers=1, trace=dataclasses.replace(traced(3), expert_ids=ids))
        assert same(times[sample][1], moe_layers_of(alone)[0])
        replayed += alone.facts["replayed_layers"]
    assert made.facts["replayed_layers"] == replayed
    assert not same(times[0][1], times[1][1])


def test_another_seed_draws_another_routing() -> None:
    one, again, other = (
        moe_layers_of(replays(1, layers=1, seed=seed, routing=DrawnRouting("zipf", {"skew": 1.0})))
        for seed in (1, 1, 2)
    )
    assert same(one[0], again[0])
    assert not same(one[0], other[0])


def test_hot_experts_apart_take_less_than_hot_experts_together() -> None:
    """Tokens choose experts 0 and 1: of one GPU by contiguous placement, of two in turn."""
    ids = np.tile([[0, 1]], (RANKS * TOKENS * 16, 1))
    trace = generate("uniform", shape_of(1), ranks=RANKS, tokens_per_rank=TOKENS * 16, layers=1)
    hot = dataclasses.replace(trace, expert_ids=ids[None].astype(trace.expert_ids.dtype))

    def experts_ps(placement: str) -> int:
        made = StepReplays(shape_of(1), H100, PLAN, TOKENS * 16, "bf16", trace=hot, placement=placement)
        return int(moe_layers_of(made, scheme="ideal")[0].forward.met.max())

    assert experts_ps("contiguous") > 1.3 * experts_ps("round-robin")


def test_a_pass_is_not_over_before_its_kernels_are_launched() -> None:
    """25 kernels and a wait of Megatron-LM's layer, by one host of which each takes 1 ms."""
    slow = hwmodel.load("dgx-h100", {"overheads.launch_us": 1000.0})
    made = StepReplays(shape_of(1), slow, PLAN, TOKENS, "bf16", layers=1)
    (layer,) = moe_layers_of(made)
    assert (layer.forward.own + layer.forward.met).min() > 25 * 1e9


# ---- nodes ---------------------------------------------------------------------------------------


def nodes_of(ep: int, domain: int, **settings: Any) -> int | None:
    """Nodes that are replayed in full; nothing is replayed to know it."""
    machine = hwmodel.load("dgx-h100", {"fabric.num_gpus": domain, "fabric.num_domains": -(-ep // domain)})
    plan = ParallelPlan(dp=ep, ep=ep)
    made = StepReplays(shape_of(1), machine, plan, TOKENS, "bf16", **settings)
    found: int | None = made.facts["sampled_nodes"]
    return found


@every(
    ("ep", "domain", "nodes"),
    [
        (64, 8, None),  # of up to 64 GPUs all
        (72, 8, 2),
        (128, 8, 2),
        (128, 64, None),  # two nodes are all
        (192, 64, 2),
        (100, 8, None),  # no whole nodes
        (128, 128, None),
    ],
)
def test_two_nodes_of_a_large_group_are_replayed(ep: int, domain: int, nodes: int | None) -> None:
    assert nodes_of(ep, domain) == nodes


def test_nodes_may_be_asked_for() -> None:
    assert nodes_of(16, 8, sample_nodes=1) == 1
    assert nodes_of(128, 8, sample_nodes=3) == 3


def test_gpus_that_fill_no_nodes_are_all_replayed_and_no_sample_of_them_is() -> None:
    machine = hwmodel.load("dgx-h100", {"fabric.num_gpus": 2, "fabric.num_domains": 3})
    plan, shape = ParallelPlan(dp=5, ep=5), shape_of(1).model_copy(update={"num_experts": 10})
    made = StepReplays(shape, machine, plan, TOKENS, "bf16", layers=1)
    assert moe_layers_of(made, scheme="ideal")[0].forward.met.shape == (5,)
    sampled = StepReplays(shape, machine, plan, TOKENS, "bf16", layers=1, sample_nodes=1)
    with pytest.raises(UserError, match="5 GPUs are no whole nodes of 2"):
        sampled.under("ideal")


def test_a_sample_of_nodes_stands_for_the_same_layers() -> None:
    """The busiest GPU is in the sample, so that layers have the order that they have without it."""
    machine = hwmodel.load("dgx-h100", {"fabric.num_gpus": 2, "fabric.num_domains": 2})
    trace = traced(3, seed=5)
    order = sorted(range(3), key=busiest(trace).__getitem__)
    assert order[1] != 1
    for nodes in (None, 1):
        made = StepReplays(shape_of(3), machine, PLAN, TOKENS, "bf16", layers=1, trace=trace, sample_nodes=nodes)
        made.under("ideal")
        assert made.facts["replayed_layers"] == [[order[1]]]
