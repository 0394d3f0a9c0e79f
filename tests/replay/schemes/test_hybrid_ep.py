"""HybridEP by hand: preprocessing, chunks on SMs, bytes, meetings, kernels and waits of `five_tokens`."""

from __future__ import annotations

import numpy as np
import pytest
from five_tokens import COPIES, HIDDEN, PAIRS, RATE, TOKENS, build, layer, memory_ps
from loops import every
from moments import begin, finish
from packets import response_packets, write_packets
from round_machine import NS, US

import hwmodel
from replay.engine import TaskGraph, schedule
from replay.model.machine.kinds import Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers

PROBS = 4 * 4  # a gate weight for each of four experts
FP8_ROW, BF16_ROW = HIDDEN + 4 * HIDDEN // 128, 2 * HIDDEN
BARRIER, SMALL = 1010 * NS, 300 * NS
GAP = 2 * US
LOOK = 30 * NS  # of a thread, at a GPU, for a store of a row
UP, DOWN, VISIBLE, ACCESS, LOAD = 150 * NS, 100 * NS, 30 * NS, 20 * NS, 60 * NS


def one_row(hidden: int = HIDDEN) -> LayerWork:
    """One token of GPU 0 for one expert of GPU 1."""
    return small_layers.work(np.array([[1]], np.int32), 2, 2, tokens_of_rank=[1, 0], shape=ExpertShape(hidden, 64))


def replay(work: LayerWork, **options: object) -> tuple[TaskGraph, Machine]:
    scheme = SCHEMES["hybrid-ep"].with_options({"num_sms": 4, **options})
    return build(work, scheme, {"overheads.row_copy_ns": 1.0, "overheads.grid_barrier_us": 0.7})


def wires(graph: TaskGraph, kind: Kind) -> list[tuple[int, int]]:
    chosen = (graph.kind == kind) & (graph.payload_bytes > 0)
    return list(zip(graph.payload_bytes[chosen].tolist(), graph.wire_bytes[chosen].tolist(), strict=True))


# ---- preprocessing -------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
def test_preprocessing_reads_the_routing_of_all_gpus(rank: int) -> None:
    graph, machine = replay(layer("fp8"))
    flags = 2 * 3 * 4  # of two GPUs, the fewer tokens padded to three, four experts
    sums = 108 * (2 + 2) * 8
    scan = flags + 3 * 2 * 4 + COPIES[rank] * 2 * (1 + 4)
    found = memory_ps(graph, machine, Kind.LAYOUT, rank)
    assert found == [-(-nbytes // RATE) for nbytes in (sums, scan, 0)]


def test_blocks_of_the_scan_wait_for_all_before_them() -> None:
    graph, _ = replay(layer("fp8"))
    waits = graph.duration_ps[(graph.resource < 0) & (graph.rank == 0)].tolist()
    assert 107 * 20 * NS in waits


def test_flags_of_all_tokens_are_gathered() -> None:
    work = small_layers.work(small_layers.draw(4096, 64, 2), 4, 64, shape=ExpertShape(64, 16))
    graph, _ = replay(work)
    sent = int(graph.wire_bytes[graph.kind == Kind.COUNT_UP].sum())
    assert sent >= 4 * 3 * 1024 * 64  # each GPU's flags reach three others


@every(
    ("options", "backward", "launches", "waits"),
    [
        # Cast; gather, two memsets, scan, padded counts; four kernels each way, permute, unpermute,
        # and GEMM, activation, quantisation, GEMM.
        ({}, False, 1 + 5 + 4 + 1 + 4 + 1 + 4, 1),
        ({"non_blocking": True}, False, 20, 0),
        ({"cached_layout": True}, False, 15, 0),
        ({}, True, 15 + 2, 0),
    ],
)
def test_kernels_and_waits_of_the_host(options: dict[str, object], backward: bool, launches: int, waits: int) -> None:
    _, machine = replay(layer("fp8", is_backward=backward), **options)
    program = machine.host.program
    assert sum(one.launches for one in program) == launches
    assert sum(not one.launches for one in program) == waits


# ---- bytes ---------------------------------------------------------------------------------------


def test_gate_weights_of_all_experts_go_out_with_every_row() -> None:
    graph, _ = replay(layer("fp8"))
    for payload, wire in wires(graph, Kind.DISPATCH_UP):
        assert wire == payload // FP8_ROW * write_packets(FP8_ROW + PROBS)
    for payload, wire in wires(graph, Kind.COMBINE_UP):  # pulled: data that was asked for
        assert wire == payload // BF16_ROW * response_packets(BF16_ROW)


def test_gradients_come_back_with_those_of_gate_weights() -> None:
    graph, _ = replay(layer("fp8", is_backward=True))
    for payload, wire in wires(graph, Kind.DISPATCH_UP):
        assert wire == payload // FP8_ROW * write_packets(FP8_ROW)
    for payload, wire in wires(graph, Kind.COMBINE_UP):
        assert wire == payload // BF16_ROW * response_packets(BF16_ROW + PROBS)


def test_rows_are_multiples_of_512_values() -> None:
    graph, _ = replay(one_row(1000))
    assert wires(graph, Kind.DISPATCH_UP) == [(2000, write_packets(2048 + PROBS))]
    assert wires(graph, Kind.COMBINE_UP) == [(2000, response_packets(2048))]


@pytest.mark.parametrize("rank", [0, 1])
def test_kernels_around_move_their_bytes(rank: int) -> None:
    graph, machine = replay(layer("fp8"))
    copies, pairs, tokens = COPIES[rank], PAIRS[rank], TOKENS[rank]
    # A row's place, or none, with each of two own experts; gate weights of the pairs alone.
    permuted = copies * (FP8_ROW + 2 * 4) + pairs * (FP8_ROW + 2 * 4)
    assert memory_ps(graph, machine, Kind.PERMUTE, rank) == [-(-permuted // RATE)]
    summed = (pairs + copies) * BF16_ROW + copies * 2 * 4
    assert memory_ps(graph, machine, Kind.UNPERMUTE, rank) == [-(-summed // RATE)]
    written = memory_ps(graph, machine, Kind.COMBINE_MEMORY, rank)
    assert written == [-(-BF16_ROW // RATE)] * tokens


def test_buffers_have_room_for_all_tokens_of_all_gpus() -> None:
    system = hwmodel.load("dgx-h100")
    rows, flags, permuted = SCHEMES["hybrid-ep"].buffers(layer("fp8"), system)
    assert rows.nbytes.tolist() == [2 * 512 * (BF16_ROW + 32 + PROBS)] * 2  # FP8 scales beside
    assert flags.nbytes.tolist() == [2 * 512 * 4] * 2
    assert permuted.nbytes.tolist() == [count * FP8_ROW for count in PAIRS]


# ---- times ---------------------------------------------------------------------------------------


def test_a_row_is_pushed_out_and_pulled_back_in_the_sum_of_its_steps() -> None:
    graph, _ = replay(one_row(), cached_layout=True)
    timeline = schedule(graph)
    begun = GAP + SMALL + GAP + BARRIER + GAP  # expected values, meeting, kernel
    assert begin(timeline, Kind.DISPATCH_SEND, 0) == begun
    slot = BF16_ROW + PROBS
    walked = LOOK * 2 * 2  # at two GPUs, for the row and its gate weights; the SM stores meanwhile
    assert walked > slot * 10
    there = walked + LOAD + write_packets(slot) * 2 + UP + DOWN + VISIBLE
    met = GAP + BARRIER + UP + DOWN  # behind the acknowledgement
    assert begin(timeline, Kind.PERMUTE, 1) == begun + there + met + GAP

    summed = finish(timeline, Kind.UNPERMUTE, 1)
    pulled = begin(timeline, Kind.COMBINE_SEND, 0)
    assert pulled == summed + begun
    asked = 16 * 16 + UP + 16 * 16 + DOWN + ACCESS  # a request flit for each of 16 packets
    data = response_packets(BF16_ROW) * 2 + UP + DOWN
    added = begin(timeline, Kind.COMBINE_RECEIVE, 0)
    assert added == pulled + BF16_ROW * 5 + LOAD + asked + data
    assert begin(timeline, Kind.COMBINE_MEMORY, 0) == added + BF16_ROW * 20


@every(
    ("precision", "is_backward", "stores"),
    [("bf16", True, 1), ("bf16", False, 2), ("fp8", True, 2), ("fp8", False, 3)],
)
def test_a_thread_walks_through_all_gpus_for_each_store_of_a_row(
    precision: str, is_backward: bool, stores: int
) -> None:
    # A token of GPU 0 for three experts of GPU 1, one of eight GPUs; then for one on each of three.
    for experts, rows in (([3, 4, 5], 1), ([3, 6, 9], 3)):
        work = small_layers.work(
            np.array([experts], np.int32),
            8,
            24,
            tokens_of_rank=[1] + [0] * 7,
            shape=ExpertShape(512, 64),
            precision=precision,
            is_backward=is_backward,
        )
        graph, _ = replay(work)
        pushes = (graph.kind == Kind.DISPATCH_SEND) & (graph.rank == 0) & (graph.duration_ps > 0)
        assert graph.duration_ps[pushes].tolist() == [LOOK * 8 * stores // rows] * rows


def test_an_sm_stores_many_bytes_longer_than_its_thread_walks() -> None:
    graph, _ = replay(one_row(16384))
    pushes = (graph.kind == Kind.DISPATCH_SEND) & (graph.duration_ps > 0)
    assert graph.duration_ps[pushes].tolist() == [(2 * 16384 + PROBS) * 10]


def test_an_sm_takes_whole_chunks_of_tokens() -> None:
    work = small_layers.work(np.full((12, 1), 1, np.int32), 2, 2, tokens_of_rank=[12, 0], shape=ExpertShape(HIDDEN, 64))
    for chunk, used in ((128, 1), (4, 3), (2, 4)):
        graph, _ = replay(work, chunk_tokens=chunk)
        for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND, Kind.COMBINE_RECEIVE):
            busy = (graph.kind == kind) & (graph.rank == 0) & (graph.duration_ps > 0)
            assert len(set(graph.resource[busy].tolist())) == used


def test_few_tokens_leave_most_sms_without_a_chunk() -> None:
    work = small_layers.work(small_layers.draw(2 * 128, 8, 2), 2, 8, shape=ExpertShape(HIDDEN, 64))
    ends = {}
    for chunk in (128, 32):
        graph, _ = replay(work, chunk_tokens=chunk, cached_layout=True)
        timeline = schedule(graph)
        ends[chunk] = finish(timeline, Kind.DISPATCH_SEND, 0) - begin(timeline, Kind.DISPATCH_SEND, 0)
    assert ends[128] > 3 * ends[32]


def test_an_odd_number_of_gpus_is_refused() -> None:
    work = small_layers.work(small_layers.draw(6, 3, 1), 3, 3)
    assert SCHEMES["hybrid-ep"].refuses(work) == "its kernels take an even number of ranks, not 3"
