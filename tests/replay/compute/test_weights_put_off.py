"""Weight gradients as parts of their own: what a pass leaves out is what is left to do."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from small_shape import small_shape

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, schedule
from replay.model.compute.dense import Between
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.context import Context
from replay.model.work.layer import ExpertShape
from replay.schemes import SCHEMES, find
from replay.schemes.contract.case import system_for
from replay.schemes.contract.layers import draw, work
from replay.schemes.ep.staged_schemes import StagedScheme

ABLE = [name for name in SCHEMES if isinstance(find(name), StagedScheme) and "backward" in find(name).passes]
TIMELESS = {Kind.MARK, Kind.LAUNCH}
IN_PASSES = {Kind.HOST}
"""Launches that a host makes late because it waits in the pass; put off, nothing waits before them."""


@pytest.fixture(scope="module")
def layer():
    return work(
        draw(60, 8, 2, skew=0.7),
        4,
        8,
        shape=ExpertShape(128, 64),
        is_backward=True,
        tokens_of_rank=[20, 8, 18, 14],
    )


def done(graph) -> Counter:
    """How often each kind of work is done on each GPU for how long."""
    each = (graph.kind.tolist(), graph.rank.tolist(), graph.duration_ps.tolist())
    return Counter(one for one in zip(*each, strict=True) if one[0] not in TIMELESS)


def gradients_of(scheme: StagedScheme, layer, system, *, set_aside: int = 0):
    """The weight gradients alone, on a GPU that has nothing else to do: graph and ends."""
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, layer.num_ranks, set_aside=set_aside)
    ends = scheme.weight_gradients(layer, machine, machine.mark(machine.ranks))
    return builder.build(), ends


@pytest.mark.parametrize("scheme", ABLE)
def test_what_is_put_off_is_what_the_whole_has_more(scheme: str, layer) -> None:
    one, late = find(scheme), layer.putting_off_weights()
    assert not one.refuses(late)
    system = system_for(4, platform=one.platform)
    whole, without = (build_layer(part, system, one).graph for part in (layer, late))
    alone, _ = gradients_of(one, late, system)
    assert not (without.kind == Kind.WGRAD).any()
    assert (alone.kind == Kind.WGRAD).any()
    # Some experts copy arguments for each of their kernels, which are launched where these are.
    every, less = done(whole), done(without) + done(alone)
    late_launches = {key: every[key] - less[key] for key in every | less if key[0] in IN_PASSES}
    assert all(more in (0, 2) for more in late_launches.values())  # of the gradients' two kernels
    assert every == less + Counter(late_launches)
    assert (whole.kind == Kind.LAUNCH).sum() == sum((part.kind == Kind.LAUNCH).sum() for part in (without, alone))


def test_those_who_follow_wait_for_the_last_of_them(layer) -> None:
    late = layer.putting_off_weights()
    for name in ("deepep", "megatron"):
        graph, ends = gradients_of(find(name), late, hwmodel.load("dgx-h100"))
        visible = schedule(graph).visible_ps
        last = [visible[(graph.kind == Kind.WGRAD) & (graph.rank == rank)].max() for rank in range(4)]
        assert (visible[ends] >= np.array(last)).all()


def test_beside_another_stream_they_have_the_sms_that_it_leaves() -> None:
    big = work(draw(64, 4, 2), 2, 4, shape=ExpertShape(4096, 2048), is_backward=True)
    system = hwmodel.load("dgx-h100")
    for aside in (0, 20):
        graph, _ = gradients_of(find("deepep"), big, system, set_aside=aside)
        of_first = graph.rank[graph.kind == Kind.WGRAD] == 0
        assert of_first.sum() == 2 * 2 * (132 - aside), "a wave for each expert of two kernels"


def test_fused_schemes_cannot_put_them_off(layer) -> None:
    for name in ("comet", "dysharp", "ideal"):
        assert "cannot be put off" in find(name).refuses(layer.putting_off_weights())


def test_a_layer_keeps_what_it_puts_off(layer) -> None:
    late = layer.with_shared(64).putting_off_weights()
    assert late.shared is not None
    assert late.shared.puts_off_weights
    assert late.of_tokens(np.arange(5)).puts_off_weights
    assert layer.has_weight_gradients
    assert not late.has_weight_gradients
    assert find("pangu").carries(layer.putting_off_weights()).work.puts_off_weights


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_dense_parts_are_cut_into_products(precision: str) -> None:
    shape = small_shape(
        name="between",
        hidden=256,
        moe_intermediate=64,
        num_layers=2,
        head_dim=64,
        num_shared_experts=1,
        shared_intermediate=128,
    )
    tokens = np.array([40, 0, 130, 1])
    context, found = Context(tokens, tokens, tokens * 70), {}
    for weights in ("with", "put off", "alone"):
        builder = GraphBuilder(KIND_NAMES)
        machine = Machine(hwmodel.load("dgx-h100"), builder, 4)
        between = Between(shape, precision, is_backward=True, weights=weights)
        between.before_layer(machine, 1, context, machine.mark(machine.ranks))
        found[weights] = builder.build()
    assert done(found["with"]) == done(found["put off"]) + done(found["alone"])
    assert set(found["alone"].kind.tolist()) <= {Kind.DENSE_GEMM, *TIMELESS}
    products = [(found[part].kind == Kind.DENSE_GEMM).sum() for part in ("put off", "alone")]
    assert products[0] == products[1] > 0
