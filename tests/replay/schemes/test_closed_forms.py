"""Times that can be added up by hand, on a machine of round numbers."""

from __future__ import annotations

import numpy as np
from loops import every
from moments import begin, finish, tasks
from packets import response_packets, write_packets
from round_machine import NS, ROUND, US, round_machine

import hwmodel
from replay.chains.chain import ChainLink
from replay.chains.layer import build_layer
from replay.chains.replay import Replay
from replay.engine import Timeline, schedule
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES, find
from replay.schemes.contract import layers as small_layers

UP, DOWN = 150 * NS, 100 * NS  # propagation and traversal; propagation
VISIBLE, ACCESS, MERGE, POLL = 30 * NS, 20 * NS, 7 * NS, 5 * NS
GAP, TILE_OVERHEAD = 2 * US, 11 * NS
ROW = 2048  # bytes of 1024 BF16 values: 16 packets
PUSH, PULL = ROW * 10, ROW * 20  # 100 GB/s; the slower of reading at 200 and writing at 50 GB/s


def run(layer: LayerWork, scheme: str, **options: int | str) -> Timeline:
    graph, _, _ = build_layer(layer, round_machine(), find(scheme).with_options(options))
    return schedule(graph)


def run_alone(layer: LayerWork, scheme: str) -> Timeline:
    """The communication alone."""
    link = ChainLink(lambda: layer)
    alone = Replay([link], round_machine(), find(scheme), communication_only=True)
    return schedule(alone.build().built.graph)


def adding(parts: int) -> int:
    """Time of adding up parts of a row that arrive at once.

    Four planes of 400 G additions a second, four bytes each, for eight GPUs: 0.8 bytes per
    picosecond. n parts are n - 1 rows to add.
    """
    each = -(-ROW * (parts - 1) // parts)
    return parts * -(-each * 10 // 8)


def one_token(targets: list[int], num_ranks: int = 8) -> LayerWork:
    """One token of rank 0 for one expert on each of the targets."""
    return small_layers.work(
        np.array([targets], np.int32),
        num_ranks,
        num_ranks,
        tokens_of_rank=[1] + [0] * (num_ranks - 1),
        shape=ExpertShape(1024, 64),
    )


def tile_ps(columns: int, inner: int) -> int:
    """One tile of up to 64 rows, at a picosecond an operation on each of the 100 SMs."""
    return 2 * 64 * columns * inner + TILE_OVERHEAD


def test_experts_alone_on_one_gpu_are_three_kernels_of_one_wave() -> None:
    # Four experts with 50 rows: one row tile each; 8 and 64 column tiles on 100 SMs.
    ids = np.repeat(np.arange(4, dtype=np.int32), 50)[:, None]
    shape = ExpertShape(hidden=1024, intermediate=64)
    timeline = run(small_layers.work(ids, 1, 4, shape=shape), "ideal", form="kernels")
    activation = 200 * (128 * 2 + 64 * 2) // 5 + 300 * NS  # 5000 GB/s: five bytes a picosecond
    second = tile_ps(64, 64)  # 64 tiles of 64 columns, less than the SMs
    assert len(tasks(timeline, Kind.GEMM1)) == 4 * 2
    assert len(tasks(timeline, Kind.GEMM2)) == 4 * 16
    assert timeline.makespan_ps == 3 * GAP + tile_ps(64, 1024) + activation + second


def test_gemm_of_one_wave_and_a_bit_takes_two() -> None:
    # Seven experts: 7 x 16 = 112 column tiles on 100 SMs.
    ids = np.repeat(np.arange(7, dtype=np.int32), 50)[:, None]
    timeline = run(small_layers.work(ids, 1, 7, shape=ExpertShape(1024, 64)), "ideal", form="kernels")
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
        3 * NS
        + (40 + 128) * NS  # one token looked at, one row begun and copied by a warp
        + wire
        + UP  # uplink, switch
        + wire
        + DOWN
        + VISIBLE
        + one_way  # the acknowledgement that releases the tail
        + one_way
        + VISIBLE
        + POLL  # the tail, seen by the receiver
        + -(-2 * nbytes // 5)  # the copy through HBM
        + 2 * (60 + 20) * NS  # and in two halves through the receiving warp
    )
    assert finish(timeline, Kind.DISPATCH_RECEIVE) - begin(timeline, Kind.DISPATCH_SEND) == expected


def test_deepep_rows_travel_with_what_names_them() -> None:
    timeline = run(one_token([1], num_ranks=2), "deepep")
    # Source index, then expert id and weight of each slot; back, the weight alone.
    for kind, meta in ((Kind.DISPATCH_UP, 4 + 8 + 4), (Kind.COMBINE_UP, 4 + 4)):
        wire = timeline.graph.wire_bytes[tasks(timeline, kind)]
        assert wire.tolist() == [write_packets(ROW + meta)]


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


def test_deepep_chunks_of_a_ring_stay_in_order() -> None:
    # Chunks of six, six and two rows through a ring of eight: the last finds room at once.
    ids = np.full((14, 1), 1, np.int32)
    layer = small_layers.work(ids, 2, 2, tokens_of_rank=[14, 0], shape=ExpertShape(1024, 64))
    options = {"num_sms": 2, "dispatch_chunk": 6, "combine_chunk": 6}
    timeline = run(layer, "deepep", ring_tokens=8, **options)
    for kind in (Kind.DISPATCH_UP, Kind.COMBINE_UP):
        ups = tasks(timeline, kind)
        in_order = ups[np.argsort(timeline.start_ps[ups])]
        assert timeline.graph.payload_bytes[in_order].tolist() == [6 * ROW, 6 * ROW, 2 * ROW]
    # Each depends on the one before, which a bound counts.
    edges = set(zip(*(ends.tolist() for ends in timeline.graph.edges()), strict=True))
    for kind in (Kind.DISPATCH_SEND, Kind.COMBINE_SEND):
        first, second, third = tasks(timeline, kind).tolist()
        assert {(first, second), (second, third)} <= edges


def test_deepep_takes_an_own_row_out_of_its_ring_when_it_has_seen_the_tail() -> None:
    timeline = run(one_token([0], num_ranks=2), "deepep")
    nbytes = ROW + 4 + 1 * (8 + 4)
    copied = 3 * NS + (40 + 128) * NS  # looked at, begun, read
    received = POLL + -(-2 * nbytes // 5) + 2 * (60 + 20) * NS  # tail, memory, in two halves
    length = finish(timeline, Kind.DISPATCH_RECEIVE) - begin(timeline, Kind.DISPATCH_SEND)
    assert length == copied + received


@every("targets", [[1], [1, 2], [1, 2, 3, 4, 5, 6, 7]])
def test_dysharp_token_takes_as_long_to_one_gpu_as_to_seven(targets: list[int]) -> None:
    timeline = run(one_token(targets), "dysharp")
    # Behind sixteen packets a packet with the gate weights.
    out = write_packets(ROW + 4 * len(targets), extra_flits=1)
    assert out == 16 * 10 * 16 + (1 + 1 + -(-len(targets) // 4) + (len(targets) % 4 > 0)) * 16
    on_port = 2 * out  # half the rate of the port, as multimem instructions reach
    arrived = GAP + PUSH + on_port + UP + on_port + DOWN + VISIBLE
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
    request, answer = 2 * 16 * 16 * (1 + 1), 2 * response_packets(ROW)
    asked = told + POLL + PULL + request + UP + request + DOWN + ACCESS
    summed = asked + answer + UP + MERGE + adding(len(targets)) + answer + DOWN
    assert finish(timeline, Kind.COMBINE_DOWN) == summed
    written = ROW * 5 + ROW * 20  # read at 200, written at 50 GB/s
    assert finish(timeline, Kind.COMBINE_RECEIVE) == summed + written
    assert timeline.makespan_ps == summed + written + ROW // 4  # memory is written at 4000 GB/s


MEET = (1000 + 10) * NS  # a barrier of two GPUs
ACKNOWLEDGED = UP + DOWN  # of stores, before the flags of a barrier leave
RELEASED = 9 * NS  # of copies that the switch made, behind that
OUT, BACK = write_packets(ROW), response_packets(ROW)
# A wave of GEMM-1, the activation of one row, a wave of GEMM-2: kernels, each behind its gap.
KERNELS = 3 * GAP + tile_ps(64, 1024) + -(-2 * (128 + 64) // 5) + 300 * NS + tile_ps(64, 64)
TILES = tile_ps(64, 1024) + tile_ps(64, 64)
TOLD = 2 * write_packets(8) + UP + DOWN + VISIBLE + POLL  # the owner polls for a notice
# One row read at 200, the sum written at 50 GB/s, and then to memory at 4000.
ADDED = ROW * 5 + ROW * 20 + ROW // 4


def test_plain_token_takes_the_sum_of_its_kernels() -> None:
    timeline = run(one_token([1], num_ranks=2), "plain")
    stored = GAP + PUSH + OUT + UP + OUT + DOWN + VISIBLE + ACKNOWLEDGED + MEET
    summed = GAP + ROW // 8 + ROW // 4 + 300 * NS  # read at 8000 GB/s, written at half of that
    assert timeline.makespan_ps == stored + KERNELS + stored + summed


def test_ideal_token_takes_its_kernels_alone_wherever_its_expert_is() -> None:
    kernels = SCHEMES["ideal"].with_options({"form": "kernels"})
    graph, ends, _ = build_layer(one_token([1], num_ranks=2), round_machine(), kernels)
    timeline = schedule(graph)
    assert timeline.visible_ps[ends].tolist() == [KERNELS, KERNELS]


def test_plain_token_alone_takes_the_sum_of_what_moves_it() -> None:
    """Experts take no time, and their kernels no gap."""
    timeline = run_alone(one_token([1], num_ranks=2), "plain")
    stored = GAP + PUSH + OUT + UP + OUT + DOWN + VISIBLE + ACKNOWLEDGED + MEET
    summed = GAP + ROW // 8 + ROW // 4 + 300 * NS
    assert timeline.makespan_ps == stored + stored + summed


def test_plain_layer_alone_launches_no_kernels_of_experts() -> None:
    layer = one_token([1], num_ranks=2)
    link = ChainLink(lambda: layer)
    whole, alone = (
        Replay([link], round_machine(), find("plain"), "eager", communication_only=only).build()
        for only in (False, True)
    )
    names = [[one.name for one in built.built.machine.host.program] for built in (whole, alone)]
    assert names == [
        ["dispatch", "gemm1", "activation", "gemm2", "combine", "unpermute"],
        ["dispatch", "combine", "unpermute"],
    ]


def pushed_ps(wire: int) -> int:
    """A row through the switch, at half the rate of its ports."""
    return GAP + PUSH + 2 * wire + UP + 2 * wire + DOWN + VISIBLE


def pulled_ps() -> int:
    """A request with a list of experts, and the sum of one row."""
    request, answer = 2 * 16 * 16 * (1 + 1), 2 * BACK
    asked = PULL + request + UP + request + DOWN + ACCESS
    return asked + answer + UP + MERGE + adding(1) + answer + DOWN + ADDED


def test_dysharp_basic_token_meets_two_barriers_and_no_notice() -> None:
    timeline = run(one_token([1], num_ranks=2), "dysharp-basic")
    pushed = pushed_ps(write_packets(ROW + 4, extra_flits=1))
    assert timeline.makespan_ps == pushed + ACKNOWLEDGED + RELEASED + MEET + KERNELS + GAP + MEET + pulled_ps()


def test_dysharp_comet_token_meets_one_gap_between_its_gemms() -> None:
    timeline = run(one_token([1], num_ranks=2), "dysharp-comet")
    pushed = pushed_ps(write_packets(ROW + 4, extra_flits=1))
    assert timeline.makespan_ps == pushed + POLL + TILES + GAP + TOLD + pulled_ps()


def test_dysharp_token_without_the_switch_is_stored_and_loaded() -> None:
    timeline = run(one_token([1], num_ranks=2), "dysharp-fusion-only")
    out = write_packets(ROW + 2 + 4)  # with the expert's id and its gate weight
    pushed = GAP + PUSH + out + UP + out + DOWN + VISIBLE
    request = 16 * 16
    pulled = PULL + request + UP + request + DOWN + ACCESS + BACK + UP + BACK + DOWN + ADDED
    assert timeline.makespan_ps == pushed + POLL + TILES + TOLD + pulled


def test_dysharp_token_alone_goes_back_when_it_has_come() -> None:
    timeline = run_alone(one_token([1], num_ranks=2), "dysharp")
    pushed = pushed_ps(write_packets(ROW + 4, extra_flits=1))
    assert timeline.makespan_ps == pushed + POLL + TOLD + pulled_ps()


def test_reduction_buffer_holds_back_requests() -> None:
    # A port's buffer of 8 x 512 bytes has room for two rows; four tokens want to be summed.
    small = hwmodel.load("dgx-h100", {**ROUND, "switch.reduction_buffer_bytes": 512})
    layer = small_layers.work(np.full((4, 1), 1, np.int32), 2, 2, tokens_of_rank=[4, 0], shape=ExpertShape(1024, 64))
    graph, _, _ = build_layer(layer, small, SCHEMES["dysharp-basic"].with_options({"reduction": "wait"}))
    timeline = schedule(graph)
    asked = timeline.start_ps[tasks(timeline, Kind.COMBINE_REQUEST_UP)]
    summed = timeline.end_ps[tasks(timeline, Kind.COMBINE_DOWN)]
    assert asked[1] < summed[0] <= asked[2]
    assert asked[3] >= summed[1]
