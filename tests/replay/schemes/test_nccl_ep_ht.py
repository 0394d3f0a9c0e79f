"""NCCL EP in its high-throughput mode by hand: around HybridEP's kernels, and where these meet.

The layer is that of `five_tokens`.
"""

from __future__ import annotations

import numpy as np
import pytest
from five_tokens import COPIES, HIDDEN, PAIRS, RATE, TOKENS, TOPK, build, layer, memory_ps
from loops import every
from packets import write_packets
from round_machine import NS
from round_nodes import leaving, rows_to

import hwmodel
from replay.engine import TaskGraph, schedule
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

HT = SCHEMES["nccl-ep-ht"]
EXPERTS, MOST = 4, 3
ROW = 2 * HIDDEN
BARRIER, GRID, GAP, ACKNOWLEDGED = 1010 * NS, 700 * NS, 2000 * NS, 250 * NS


def replay(work: LayerWork, nodes: int = 1, **options: object) -> tuple[TaskGraph, Machine]:
    changes = {"overheads.row_copy_ns": 1.0, "overheads.grid_barrier_us": 0.7, "fabric.num_domains": nodes}
    return build(work, HT.with_options({"num_sms": 4, **options}), changes)


def moved(*nbytes: int) -> list[int]:
    return [-(-one // RATE) for one in nbytes]


# ---- kernels around the two ----------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_maps_are_of_bits_and_weights_are_spread_out_and_chosen(rank: int) -> None:
    graph, machine = replay(layer())
    bits = MOST * 1  # of four experts, in a byte
    flags = MOST + 2 * MOST * 2  # of the rail's tokens; of two experts in all slots
    places = MOST * 2 * 4
    ids = TOKENS[rank] * TOPK * 8
    spread = TOKENS[rank] * TOPK * (8 + 4 + 4)
    slots = 2 * MOST
    chosen = slots * 2 + COPIES[rank] * TOPK * 4 + slots * TOPK * (8 + 4)
    assert memory_ps(graph, machine, Kind.LAYOUT, rank) == moved(
        flags,
        places,
        ids + ids + bits,
        4 * 2 * 8,
        2 * bits + places + COPIES[rank] * 2,
        TOKENS[rank] * EXPERTS * 4,
        spread,
        chosen,
    )


def test_blocks_of_the_scan_wait_for_all_before_them() -> None:
    for num_sms in (4, 16):
        graph, _ = replay(layer(), num_sms=num_sms)
        waits = graph.duration_ps[(graph.resource < 0) & (graph.rank == 0)].tolist()
        assert (num_sms - 1) * 20 * NS in waits


@pytest.mark.parametrize("rank", [0, 1])
def test_rows_are_copied_out_of_buffers_and_into_them(rank: int) -> None:
    graph, machine = replay(layer())
    rows, copies = COPIES[rank] * ROW, 2 * COPIES[rank] * ROW
    assert memory_ps(graph, machine, Kind.DISPATCH_MEMORY, rank) == moved(copies)
    assert moved(copies)[0] in memory_ps(graph, machine, Kind.COMBINE_MEMORY, rank)
    # In a graph nobody knows how many came: all that had room.
    graph, machine = replay(layer(), is_captured=True)
    assert memory_ps(graph, machine, Kind.DISPATCH_MEMORY, rank) == moved(2 * 2 * MOST * ROW)
    graph, machine = replay(layer(), windows=True)
    assert not memory_ps(graph, machine, Kind.DISPATCH_MEMORY, rank)
    assert moved(2 * rows)[0] not in memory_ps(graph, machine, Kind.COMBINE_MEMORY, rank)


def test_between_nodes_tokens_are_copied_for_the_card() -> None:
    for windows, expected in ((False, [2 * 5 * ROW]), (True, [])):
        graph, machine = replay(rows_to(9, 5), nodes=2, windows=windows)
        copied = memory_ps(graph, machine, Kind.DISPATCH_MEMORY, 0)
        assert [one for one in copied if one] == moved(*expected)


@every(
    ("options", "backward", "launches", "waits"),
    [
        # Two memsets, map, gather, memset, scan; memset, weights, dispatch, copy, weights; permute;
        # GEMM, activation, GEMM; unpermute; copy, combine.
        ({}, False, 6 + 5 + 1 + 3 + 1 + 2, 1),
        ({"is_captured": True}, False, 18, 0),
        ({"windows": True}, False, 16, 1),
        ({"cached_layout": True}, False, 12, 1),
        ({}, True, 2 + 1 + 3 + 1 + 2 + 2, 1),  # two weight gradients more
    ],
)
def test_kernels_and_waits_of_the_host(options: dict[str, object], backward: bool, launches: int, waits: int) -> None:
    _, machine = replay(layer(is_backward=backward), **options)
    program = machine.host.program
    assert sum(one.launches for one in program) == launches
    assert sum(not one.launches for one in program) == waits


# ---- rows and meetings ---------------------------------------------------------------------------


def test_a_row_takes_the_weights_of_a_node_s_experts_with_it() -> None:
    graph, _ = replay(layer())
    chosen = (graph.kind == Kind.DISPATCH_UP) & (graph.payload_bytes > 0)
    rows = graph.payload_bytes[chosen] // ROW
    assert graph.wire_bytes[chosen].tolist() == (rows * write_packets(ROW + 4 * EXPERTS)).tolist()
    # Of sixteen experts eight are on the node.
    graph, machine = replay(rows_to(9), nodes=2)
    chosen = leaving(graph, machine)
    assert sorted(graph.wire_bytes[chosen].tolist()) == [ROW, ROW + 4 * 8]


def test_weights_of_a_node_are_a_multiple_of_four() -> None:
    work = small_layers.work(np.array([[1]], np.int32), 3, 3, tokens_of_rank=[1, 0, 0], shape=ExpertShape(HIDDEN, 64))
    graph, _ = replay(work)
    chosen = (graph.kind == Kind.DISPATCH_UP) & (graph.payload_bytes > 0)
    assert graph.wire_bytes[chosen].tolist() == [write_packets(ROW + 4 * 4)]


def test_kernels_meet_behind_rows_that_go_out_and_before_those_that_come_back() -> None:
    graph, _ = replay(layer(), is_captured=True)
    timeline = schedule(graph)

    def begin(kind: Kind) -> int:
        return int(timeline.start_ps[(graph.kind == kind) & (graph.duration_ps > 0)].min())

    def end(kind: Kind) -> int:
        return int(timeline.visible_ps[(graph.kind == kind) & (graph.duration_ps > 0)].max())

    launched = np.sort(timeline.end_ps[graph.kind == Kind.LAUNCH])
    # The dispatch begins with its launch; it ends a grid's and a GPU's barrier behind rows that
    # are acknowledged, and the copy of these has a gap of a stream before it.
    assert begin(Kind.DISPATCH_SEND) in launched
    behind = GRID + BARRIER + ACKNOWLEDGED + GAP
    assert begin(Kind.DISPATCH_MEMORY) == end(Kind.DISPATCH_DOWN) + behind
    # The combine meets first, and ends with its sums.
    assert begin(Kind.COMBINE_SEND) - BARRIER in launched
    assert timeline.makespan_ps == end(Kind.COMBINE_MEMORY)


@every(("phase", "messages"), [("dispatch", [6, 64]), ("combine", [6] + [8] * 8)])
def test_tokens_go_out_in_chunks_and_sums_come_back_in_eights(phase: str, messages: list[int]) -> None:
    graph, machine = replay(rows_to(9, 70), nodes=2)
    chosen = leaving(graph, machine)
    chosen &= np.isin(graph.rank, [0] if phase == "dispatch" else [8])
    assert sorted(graph.payload_bytes[chosen] // ROW) == messages


# ---- the scheme ----------------------------------------------------------------------------------


def test_what_its_release_does_not_take_is_refused() -> None:
    def said(work: LayerWork, system: str, **changes: object) -> str:
        return HT.refuses(work) or HT.refuses_on(work, hwmodel.load(system, changes))

    uneven = small_layers.work(np.zeros((2, 1), np.int32), 2, 3)
    large = small_layers.work(np.zeros((16, 1), np.int32), 16, 16)
    assert "equally many experts" in said(uneven, "dgx-h100")
    assert "8 GPUs of a node" in said(large, "gb200-nvl72")
    assert not said(large, "dgx-h100", **{"fabric.num_domains": 2})
    fp8 = small_layers.work(np.zeros((4, 1), np.int32), 4, 4, precision="fp8")
    assert "bf16, not fp8" in said(fp8, "dgx-h100")


def test_buffers_have_room_for_rows_of_the_worst_case() -> None:
    found = {one.name: one.nbytes.tolist() for one in HT.buffers(layer(), hwmodel.load("dgx-h100"))}
    assert found["rows of all tokens"] == [2 * MOST * (ROW + 4 * EXPERTS)] * 2
    assert found["received rows"] == [count * ROW for count in COPIES]
    assert found["permuted rows"] == [count * ROW for count in PAIRS]
    several = HT.buffers(rows_to(9), hwmodel.load("dgx-h100", {"fabric.num_domains": 2}))
    assert {one.name: one.nbytes.tolist() for one in several}["rows of other nodes"] == [3 * (ROW + 4 * 8)] * 16
