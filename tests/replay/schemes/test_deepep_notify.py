"""The small kernels before DeepEP's normal kernels, added up by hand."""

from __future__ import annotations

import numpy as np
import pytest
from packets import write_packets
from round_machine import NS, ROUND, US

import hwmodel
from hwmodel import System
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

GAP, FENCE, POLL_HOST, LAUNCH = 2 * US, 6 * US, 4 * US, 3 * US
BARRIER = 1010 * NS  # of two GPUs
ONE_WAY = 150 * NS + 100 * NS + 30 * NS  # uplink and switch, downlink, visibility
CACHE_LOAD, MEMORY_LOAD = 20 * NS, 60 * NS


def system(**changes: float) -> System:
    return hwmodel.load("dgx-h100", {**ROUND, "overheads.fence_us": 6.0, **changes})


def layer(tokens: list[int], *, is_backward: bool = False) -> LayerWork:
    """Tokens of two ranks, each for one expert of either; four experts."""
    ids = np.tile(np.array([[0, 2]], np.int32), (sum(tokens), 1))
    return small_layers.work(ids, 2, 4, tokens_of_rank=tokens, shape=ExpertShape(1024, 64), is_backward=is_backward)


def replay(phase: str, work: LayerWork, on: System, **options: object) -> Timeline:
    """One of the scheme's two phases alone."""
    scheme = SCHEMES["deepep"].with_options(options)
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(on, graph, work.num_ranks)
    getattr(scheme, phase)(work, machine, machine.mark(machine.ranks))
    return schedule(graph.build())


def begins(timeline: Timeline, kind: Kind) -> int:
    return int(timeline.start_ps[timeline.graph.kind == kind].min())


def test_a_cached_dispatch_waits_for_two_barriers_and_one_fence() -> None:
    timeline = replay("dispatch", layer([1, 1]), system(), cached_layout=True)
    assert begins(timeline, Kind.DISPATCH_SEND) == GAP + BARRIER + FENCE + BARRIER + GAP
    backward = replay("dispatch", layer([1, 1], is_backward=True), system())
    assert begins(backward, Kind.DISPATCH_SEND) == begins(timeline, Kind.DISPATCH_SEND)


@pytest.mark.parametrize("tokens", [1, 600])
def test_an_uncached_dispatch_waits_for_layout_counts_two_fences_and_the_host(tokens: int) -> None:
    # A layout kernel reads two expert ids of 8 bytes and writes two booleans per token, 5 bytes a
    # picosecond; a thread looks at every 256th token, one expert after the other.
    layout = tokens * (2 * 8 + 2) // 5 + 300 * NS + -(-tokens // 256) * 2 * CACHE_LOAD
    counts = 4 * (1 + 2)  # rows for the GPU, and for each of its experts
    wire = write_packets(counts)
    met = GAP + layout + GAP + BARRIER
    summed = met + wire + wire + ONE_WAY + FENCE + BARRIER
    assert tokens * (2 * 8 + 2) % 5 < 4  # rounded up by the machine
    slow_fence = replay("dispatch", layer([tokens, tokens]), system())
    begun = begins(slow_fence, Kind.DISPATCH_SEND)
    assert begun - (summed + FENCE + BARRIER + GAP) in (0, 1)
    quick_fence = replay("dispatch", layer([tokens] * 2), system(**{"overheads.fence_us": 0.5}))
    begun = begins(quick_fence, Kind.DISPATCH_SEND)
    assert begun - (summed - FENCE + US // 2 + POLL_HOST + LAUNCH) in (0, 1)


def test_every_gpu_is_told_of_its_rows_and_of_the_rows_of_each_of_its_experts() -> None:
    work = small_layers.work(np.array([[0], [79]], np.int32), 2, 80, tokens_of_rank=[1, 1])
    graph = replay("dispatch", work, system()).graph
    for kind in (Kind.COUNT_UP, Kind.COUNT_DOWN):
        sent = graph.wire_bytes[graph.kind == kind].tolist()
        assert sent == [write_packets(4 * (1 + 40))] * 2


def test_marks_of_many_tokens_are_counted_beside_the_barriers() -> None:
    few, many = (
        begins(replay("dispatch", layer([n, n]), system(), num_sms=2), Kind.DISPATCH_SEND) - layout
        for n, layout in ((256, 256 * 18 // 5 + 40 * NS), (65536, 65536 * 18 // 5 + 256 * 40 * NS))
    )
    # One channel: a warp looks at 32 tokens at a time, and this takes longer than the barriers.
    counted = 65536 // 32 * CACHE_LOAD
    wire = write_packets(12)
    after_summed = 2 * BARRIER + 2 * wire + ONE_WAY + FENCE
    assert few < many
    assert abs(many - (GAP + 300 * NS + GAP + counted + GAP)) <= 1
    assert counted > after_summed + FENCE + BARRIER


@pytest.mark.parametrize("tokens", [1, 2000])
def test_a_combine_waits_for_the_barriers_or_for_the_walk_through_its_tokens(tokens: int) -> None:
    timeline = replay("combine", layer([tokens, 1]), system(), num_sms=2)
    walk = tokens * 13 * NS + -(-tokens // 32) * MEMORY_LOAD
    assert (walk > 2 * BARRIER + FENCE) == (tokens == 2000)
    begun = begins(timeline, Kind.COMBINE_SEND)
    # The rank with one token has no long walk.
    assert begun == GAP + 2 * BARRIER + FENCE + GAP
    sends = timeline.graph.kind == Kind.COMBINE_SEND
    first_of_0 = timeline.start_ps[sends & (timeline.graph.rank == 0)].min()
    assert first_of_0 == GAP + max(2 * BARRIER + FENCE, walk) + GAP
