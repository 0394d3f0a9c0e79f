"""Times that can be added up by hand, on a machine of round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from round_machine import NS, ROUND, US, round_machine

import hwmodel
from replay.contract import layers as small_layers
from replay.contract.counting import response_packets, write_packets
from replay.graph import Timeline, schedule
from replay.machine.kinds import Kind
from replay.run.layer import build_graph
from replay.schemes import SCHEMES
from replay.work.layer import ExpertShape, LayerWork

UP, DOWN = 150 * NS, 100 * NS  # propagation and traversal; propagation
VISIBLE, ACCESS, MERGE, POLL = 30 * NS, 20 * NS, 7 * NS, 5 * NS
GAP, TILE_OVERHEAD = 2 * US, 11 * NS
ROW = 2048  # bytes of 1024 BF16 values: 16 packets
PUSH, PULL = ROW * 10, ROW * 20  # 100 GB/s; the slower of reading at 200 and writing at 50 GB/s


def run(layer: LayerWork, scheme: str, **options: int) -> Timeline:
    graph, _ = build_graph(layer, round_machine(), SCHEMES[scheme].with_options(options))
    return schedule(graph)


def tasks(timeline: Timeline, kind: Kind) -> np.ndarray:
    return np.flatnonzero(timeline.graph.kind == kind)


def begin(timeline: Timeline, kind: Kind) -> int:
    return int(timeline.start_ps[tasks(timeline, kind)].min())


def finish(timeline: Timeline, kind: Kind) -> int:
    return int(timeline.visible_ps[tasks(timeline, kind)].max())


def one_token(targets: list[int], num_ranks: int = 8) -> LayerWork:
    """One token of rank 0 for one expert on each of the targets."""
    return small_layers.work(
        np.array([targets], np.int32), num_ranks, num_ranks,
        tokens_of_rank=[1] + [0] * (num_ranks - 1), shape=ExpertShape(1024, 64),
    )  # fmt: skip


def tile_ps(columns: int, inner: int) -> int:
    """One tile of up to 64 rows, at a picosecond an operation on each of the 100 SMs."""
    return 2 * 64 * columns * inner + TILE_OVERHEAD


def test_ideal_on_one_gpu_is_three_kernels_of_one_wave() -> None:
    # Four experts with 50 rows: one row tile each; 8 and 64 column tiles on 100 SMs.
    ids = np.repeat(np.arange(4, dtype=np.int32), 50)[:, None]
    shape = ExpertShape(hidden=1024, intermediate=64)
    timeline = run(small_layers.work(ids, 1, 4, shape=shape), "ideal")
    activation = 200 * (128 * 2 + 64 * 2) // 5 + 300 * NS  # 5000 GB/s: five bytes a picosecond
    second = tile_ps(64, 64)  # 64 tiles of 64 columns, less than the SMs
    assert len(tasks(timeline, Kind.GEMM1)) == 4 * 2
    assert len(tasks(timeline, Kind.GEMM2)) == 4 * 16
    assert timeline.makespan_ps == 3 * GAP + tile_ps(64, 1024) + activation + second


def test_gemm_of_one_wave_and_a_bit_takes_two() -> None:
    # Seven experts: 7 x 16 = 112 column tiles on 100 SMs.
    ids = np.repeat(np.arange(7, dtype=np.int32), 50)[:, None]
    timeline = run(small_layers.work(ids, 1, 7, shape=ExpertShape(1024, 64)), "ideal")
    length = finish(timeline, Kind.GEMM2) - begin(timeline, Kind.GEMM2)
    assert length == 2 * tile_ps(64, 64)


def test_deepep_dispatches_one_chunk_in_the_sum_of_its_steps() -> None:
    timeline = run(one_token([1], num_ranks=2), "deepep")
    assert len(tasks(timeline, Kind.DISPATCH_SEND)) == 1
    meta = 4 + 1 * (8 + 4)  # source index; expert id and weight of each slot
    nbytes = ROW + meta
    wire = write_packets(nbytes)
    assert wire == 16 * 9 * 16 + 32
    one_way = UP + DOWN
    loading = 2048 / (5 * 512) * (100 + 60)  # rounds of five loads of 512 B; latency of memory
    assert loading == 128
    expected = (
        3 * NS + (40 + 128) * NS  # one token looked at, one row begun and copied by a warp
        + wire + UP  # uplink, switch
        + wire + DOWN + VISIBLE
        + one_way  # the acknowledgement that releases the tail
        + one_way + VISIBLE + POLL  # the tail, seen by the receiver
        + -(-2 * nbytes // 5)  # the copy through HBM
        + 2 * (60 + 20) * NS  # and in two halves through the receiving warp
    )  # fmt: skip
    assert finish(timeline, Kind.DISPATCH_RECEIVE) - begin(timeline, Kind.DISPATCH_SEND) == expected


def test_deepep_chunks_of_a_ring_wait_for_room() -> None:
    # Twelve tokens of one channel in chunks of six through a ring of six: one after the other.
    ids = np.full((12, 1), 1, np.int32)
    layer = small_layers.work(ids, 2, 2, tokens_of_rank=[12, 0], shape=ExpertShape(1024, 64))
    options = {"num_sms": 2, "dispatch_chunk": 6, "combine_chunk": 6}
    tight = run(layer, "deepep", ring_tokens=6, **options)
    roomy = run(layer, "deepep", ring_tokens=12, **options)
    sends = tasks(tight, Kind.DISPATCH_SEND)
    received = tasks(tight, Kind.DISPATCH_RECEIVE)
    flag = UP + DOWN + VISIBLE + POLL  # room given back
    assert tight.start_ps[sends[1]] == tight.end_ps[received[0]] + flag
    assert roomy.start_ps[sends[1]] == roomy.end_ps[sends[0]]


@pytest.mark.parametrize("targets", [[1], [1, 2], [1, 2, 3, 4, 5, 6, 7]])
def test_dysharp_token_takes_as_long_to_one_gpu_as_to_seven(targets: list[int]) -> None:
    timeline = run(one_token(targets), "dysharp")
    out = write_packets(ROW, extra_flits=1)
    assert out == 16 * 10 * 16
    arrived = GAP + PUSH + out + UP + out + DOWN + VISIBLE
    downs = tasks(timeline, Kind.DISPATCH_DOWN)
    assert len(tasks(timeline, Kind.DISPATCH_UP)) == 1
    assert timeline.visible_ps[downs].tolist() == [arrived] * len(targets)
    # Slots are full; the poll sees it; both GEMMs, each a wave of one row tile.
    computed = arrived + POLL + tile_ps(64, 1024) + tile_ps(64, 64)
    assert finish(timeline, Kind.GEMM2) == computed
    notice = write_packets(8)
    # The notices of several GPUs queue at the owner's downlink.
    told = computed + notice + UP + len(targets) * notice + DOWN + VISIBLE
    assert finish(timeline, Kind.NOTIFY_DOWN) == told
    request, answer = 16 * 16 * (1 + 1), response_packets(ROW)
    asked = told + POLL + PULL + request + UP + request + DOWN + ACCESS
    summed = asked + answer + UP + MERGE + answer + DOWN
    assert finish(timeline, Kind.COMBINE_DOWN) == summed
    written = ROW * 5 + ROW * 20  # read at 200, written at 50 GB/s
    assert finish(timeline, Kind.COMBINE_RECEIVE) == timeline.makespan_ps == summed + written


def test_nvls_block_occupies_every_port_once_at_the_multimem_rate() -> None:
    timeline = run(one_token([1]), "nvls")
    barrier = 1000 * NS + 7 * 10 * NS
    meta = 8 * one_token([1]).expert_ids.shape[1]  # ids and weights of the slots
    out = 2 * write_packets(ROW + meta)  # half the rate of the port
    gathered = GAP + barrier + PUSH + out + UP + out + DOWN + VISIBLE
    downs = tasks(timeline, Kind.DISPATCH_DOWN)
    assert len(tasks(timeline, Kind.DISPATCH_UP)) == 1
    assert timeline.graph.rank[downs].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert timeline.visible_ps[downs].tolist() == [gathered] * 7
    request, answer = 2 * 16 * 16, 2 * response_packets(ROW)
    asked = begin(timeline, Kind.COMBINE_SEND) + PULL + request + UP + request + DOWN + ACCESS
    summed = asked + answer + UP + MERGE + answer + DOWN
    assert finish(timeline, Kind.COMBINE_DOWN) == summed
    # The owner adds its own row to the sum and writes it: two rows of memory.
    assert finish(timeline, Kind.COMBINE_MEMORY) == summed + -(-2 * ROW // 5)
    assert timeline.makespan_ps == summed + -(-2 * ROW // 5) + barrier


def test_reduction_buffer_holds_back_requests() -> None:
    # A port's buffer of 8 x 512 bytes has room for two rows; four tokens want to be summed.
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": 512})
    layer = small_layers.work(
        np.full((4, 1), 1, np.int32), 2, 2, tokens_of_rank=[4, 0], shape=ExpertShape(1024, 64)
    )
    graph, _ = build_graph(
        layer, small, SCHEMES["dysharp-basic"].with_options({"reduction": "wait"})
    )
    timeline = schedule(graph)
    asked = timeline.start_ps[tasks(timeline, Kind.COMBINE_REQUEST_UP)]
    summed = timeline.end_ps[tasks(timeline, Kind.COMBINE_DOWN)]
    assert asked[1] < summed[0] <= asked[2]
    assert asked[3] >= summed[1]
