"""MegaMoE: heights and order of tiles, warps that pull, the ring, stores and flags."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from loops import every
from moments import finish, tasks
from packets import write_packets
from round_machine import NS, ROUND, US, late_rank, round_machine

import hwmodel
from hwmodel.residency import BlockFootprint
from replay.chains.layer import build_layer
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.megamoe import blackwell
from replay.schemes.ep.megamoe.tasks import ring_tiles, tile_rows, turns, warm_up

SCHEME = SCHEMES["megamoe"]
WIDE = ExpertShape(1024, 64)
ROW = 2048
UP, DOWN, ACCESS, VISIBLE, POLL, MEMORY = (t * NS for t in (150, 100, 20, 30, 5, 60))
ROUND_TRIP = 2 * (UP + DOWN) + ACCESS
SEEN = VISIBLE + POLL


def work(ids: list[list[int]], tokens: list[int], experts: int, shape: ExpertShape = WIDE) -> LayerWork:
    return small_layers.work(np.array(ids, np.int32), len(tokens), experts, tokens_of_rank=tokens, shape=shape)


def scheduled(layer: LayerWork, system: hwmodel.System | None = None, **options: Any) -> Timeline:
    scheme = SCHEME.with_options(options)
    return schedule(build_layer(layer, system or round_machine(), scheme)[0])


def starts(timeline: Timeline, kind: Kind, rank: int | None = None) -> list[int]:
    return np.sort(timeline.start_ps[tasks(timeline, kind, rank)]).tolist()


# ---- tiles ---------------------------------------------------------------------------------------


@every(
    ("expected", "experts", "height"),
    [
        (1, 32, 16),
        (10, 32, 16),
        (11, 32, 32),
        (24, 32, 32),
        (25, 32, 64),  # 30 with a standard deviation
        (58, 32, 128),
        (100, 32, 128),
        (170, 32, 192),
        (190, 32, 240),
        (190, 8, 128),  # few experts take two tiles
        (256, 32, 192),
        (1024, 32, 240),
    ],
)
def test_heights_by_expected_rows(expected: float, experts: int, height: int) -> None:
    assert tile_rows(expected, experts) == height


def test_clusters_begin_gemm2_when_nobody_can_wait_for_what_is_not_drawn() -> None:
    # Ten row tiles of four and seven tasks on five clusters.
    assert warm_up(10, 5, 4, 7) == 2  # a row tile's four, and a wave more
    # Of seven and four: the last one's seven, three more for each before it, and a wave.
    assert warm_up(10, 5, 7, 4) == -(-(7 + 9 * 3) // 5) + 1
    assert warm_up(1, 5, 4, 7) == 1, "there is no more"


@every("shape", [(10, 5, 4, 7), (10, 5, 7, 4), (3, 66, 16, 28), (40, 2, 1, 3)])
def test_no_tile_of_gemm2_is_drawn_before_its_rows(shape: tuple[int, int, int, int]) -> None:
    first, second = turns(*shape)
    assert (second.min(axis=1) > first.max(axis=1)).all()
    for turn in (first, second):
        assert (np.diff(turn.ravel()) >= 0).all(), "row tile after row tile"
    warm = warm_up(*shape) * shape[1]
    assert (first.ravel()[:warm] == -1).all() and (first.ravel()[warm:] > 0).all()


def test_waves_alternate_behind_the_warm_up() -> None:
    first, second = turns(10, 5, 4, 7)
    assert first.ravel()[10:20].tolist() == [1] * 5 + [3] * 5
    assert second.ravel()[:15].tolist() == [0] * 5 + [2] * 5 + [4] * 5
    # Ten drawn are three row tiles; GEMM-1 gains 10 x 3 / 7; a wave of five is two more.
    assert ring_tiles(10, 5, 4, 7) == 3 + 5 + 2


# ---- before the rows -----------------------------------------------------------------------------


def test_counting_takes_a_round_of_additions_and_rounds_of_numbers() -> None:
    few = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 1})
    # Four warps of an SM write the numbers of 32 (token, expert) each in a round: 64 tokens.
    for tokens, rounds in ((1, 1), (64, 1), (65, 2)):
        timeline = scheduled(work([[0, 1]] * tokens, [tokens, 0], 4), few)
        graph = timeline.graph
        counting = tasks(timeline, Kind.LAYOUT, 0)
        counting = counting[graph.resource[counting] < 0]
        assert graph.duration_ps[counting].tolist() == [6500 * NS + rounds * 2 * US]


def test_numbers_of_rows_go_to_their_expert_and_counts_to_all() -> None:
    timeline = scheduled(work([[0], [1], [1], [3]], [4, 0], 4))
    sent = tasks(timeline, Kind.COUNT_UP, 0)
    wire = sorted(timeline.graph.wire_bytes[sent].tolist())
    # One number (expert 3 is on GPU 1) of four bytes, then sixteen for each of two experts.
    assert wire == sorted([write_packets(4), write_packets(2 * 16)])


def test_rows_are_pulled_when_all_have_met() -> None:
    layer = work([[0], [0]], [1, 1], 2)
    timeline = late_rank(layer, SCHEME)
    assert starts(timeline, Kind.DISPATCH_SEND)[0] > 500 * US + 6500 * NS + 2 * US
    grid = round_machine().overheads.grid_barrier_ps
    told = finish(timeline, Kind.COUNT_DOWN)
    # Counts are acknowledged, all GPUs meet, then all blocks.
    met = told + UP + DOWN + 1010 * NS + grid
    assert starts(timeline, Kind.DISPATCH_SEND)[0] == met


# ---- rows ----------------------------------------------------------------------------------------


def test_a_warp_pulls_one_row_after_the_other() -> None:
    few = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 1})
    timeline = scheduled(work([[0]] * 9, [0, 9], 2), few)
    asked = tasks(timeline, Kind.DISPATCH_SEND, 0)
    stored = tasks(timeline, Kind.DISPATCH_RECEIVE, 0)
    begin, there = timeline.start_ps[asked], timeline.visible_ps[stored]
    assert len(set(begin[:4].tolist())) == 1
    assert begin[4:].tolist() == there[:5].tolist()


@every(("pull_bytes", "pieces"), [(8192, 1), (2048, 1), (2047, 2), (600, 4)])
def test_pieces_of_a_row_are_waited_for(pull_bytes: int, pieces: int) -> None:
    timeline = scheduled(work([[0], [0]], [1, 1], 2), pull_bytes=pull_bytes)
    asked = tasks(timeline, Kind.DISPATCH_SEND, 0)
    durations = timeline.graph.duration_ps[asked].tolist()
    # Behind its number its own row comes first; the last piece of the other one travels.
    assert durations == [(1 + pieces) * MEMORY, MEMORY + (pieces - 1) * ROUND_TRIP]


def test_sources_take_turns() -> None:
    layer = work([[0]] * 7, [1, 4, 2], 3)
    timeline = scheduled(layer, tile_rows=16)
    graph = timeline.graph
    src, dst = graph.edges()
    asks = graph.kind[src] == Kind.DISPATCH_REQUEST_DOWN
    answers = asks & (graph.kind[dst] == Kind.DISPATCH_UP) & (graph.payload_bytes[dst] == ROW)
    up = dict(zip(src[answers].tolist(), graph.rank[dst[answers]].tolist(), strict=True))
    assert [up[task] for task in sorted(up)] == [1, 2, 1, 2, 1, 1]


def test_a_tile_is_multiplied_when_its_last_row_has_come() -> None:
    layer = work([[0]] * 20, [4, 16], 2)
    timeline = scheduled(layer, tile_rows=10)
    stored = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE)]
    assert starts(timeline, Kind.GEMM1)[0] == stored[:10].max() + SEEN
    assert starts(timeline, Kind.GEMM1)[-1] == stored[10:].max() + SEEN


def far(timeline: Timeline, rank: int = 0) -> tuple[int, int]:
    """When a warp asks for its only row, and when it has stored it."""
    (asked,) = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_SEND, rank)]
    (stored,) = timeline.visible_ps[tasks(timeline, Kind.DISPATCH_RECEIVE, rank)]
    return int(asked), int(stored)


def test_the_gate_weight_comes_behind_the_scales_beside_the_row() -> None:
    flit = 16  # of a request, for each packet
    row, weight = write_packets(ROW), 2 * flit  # a header and four bytes
    asked, stored = far(scheduled(work([[0]], [0, 1], 2)))
    # The weight was asked for with the row, and is the last through the reader's port.
    came = 2 * (ROW // 128) * flit + 2 * row + weight
    assert stored - asked == ROUND_TRIP + came + MEMORY
    fp8 = small_layers.work(
        np.zeros((1, 1), np.int32),
        2,
        2,
        tokens_of_rank=[0, 1],
        shape=ExpertShape(1024, 128),
        precision=small_layers.Precision("fp8", dispatch="fp8"),
    )
    asked, stored = far(scheduled(fp8))
    row, scales = write_packets(1024), flit + 4 * 1024 // 128
    came = 2 * (1024 // 128) * flit + 2 * row + scales
    # Only then is the weight asked for.
    assert stored - asked == 2 * ROUND_TRIP + came + 2 * flit + 2 * weight + MEMORY


def test_rows_wait_for_room_in_the_ring() -> None:
    layer = work([[0]] * 30, [0, 30], 2)
    timeline = scheduled(layer, tile_rows=10, ring_tiles=1)
    gemm = timeline.visible_ps[tasks(timeline, Kind.GEMM1)]
    asked = np.sort(timeline.start_ps[tasks(timeline, Kind.DISPATCH_SEND)])
    assert asked[10] == np.sort(gemm)[0] == asked[19]
    assert asked[20] == np.sort(gemm)[1]
    free = scheduled(layer, tile_rows=10, ring_tiles=3)
    assert len(set(starts(free, Kind.DISPATCH_SEND))) == 1


@every("resident", [1, 2])
def test_a_block_holds_its_sm_while_it_waits_for_rows(resident: int) -> None:
    # GPU 1 sends to expert 0 slowly; expert 1 has own rows alone, which come at once.
    room = {"sm.registers": resident * 65536, "sm.shared_bytes": resident * 228 << 10}
    slow = hwmodel.load("dgx-h100", {**ROUND, **room, "gpu.num_sms": 2, "link.efficiency": 0.001})
    layer = work([[1], [1], [0]], [2, 1], 4, ExpertShape(1024, 128))
    timeline = scheduled(layer, slow)
    gemm = tasks(timeline, Kind.GEMM1, 0)
    # Both SMs have a tile of expert 0, whose row comes last. A second block has them meanwhile.
    own = gemm[timeline.graph.tag[gemm] == 1]
    waits = timeline.start_ps[own].min() >= finish(timeline, Kind.DISPATCH_DOWN, 0) + SEEN
    assert waits == (resident == 1)


@every(("height", "stages", "stored"), [(16, 11, 8), (64, 9, 16), (192, 6, 32), (240, 5, 40)])
def test_a_block_takes_an_sm(height: int, stages: int, stored: int) -> None:
    block = blackwell.block(height, 7168)
    other = 2 * stored * 128 * 2 + 4 * 7168
    assert block == BlockFootprint(512, 128, other + stages * (height // 2 + 128) * 128)
    assert hwmodel.load("hgx-b200").resident_blocks(block) == 1


# ---- results -------------------------------------------------------------------------------------


def test_results_leave_when_both_blocks_of_a_cluster_have_them() -> None:
    timeline = scheduled(work([[0]], [0, 1], 2))
    graph = timeline.graph
    left = tasks(timeline, Kind.COMBINE_UP)
    assert graph.payload_bytes[left].tolist() == [2 * 256] * 4
    second = np.sort(timeline.visible_ps[tasks(timeline, Kind.GEMM2)]).reshape(4, 2)
    assert (np.sort(timeline.start_ps[left]) >= second.max(axis=1)).all()
    assert timeline.start_ps[left].min() == second[0].max()
    src, dst = graph.edges()
    made = (graph.kind[src] == Kind.GEMM2) & (graph.kind[dst] == Kind.COMBINE_UP)
    assert np.unique(dst[made], return_counts=True)[1].tolist() == [2] * 4


def test_an_sm_holds_on_to_what_cannot_leave() -> None:
    slow = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 2, "link.efficiency": 0.001})
    timeline = scheduled(work([[0]], [0, 1], 2), slow)
    second = np.sort(timeline.start_ps[tasks(timeline, Kind.GEMM2)])
    ends = np.sort(timeline.end_ps[tasks(timeline, Kind.COMBINE_UP)])
    # Two SMs have four places; there are four clusters of columns, so that nothing waits.
    assert second[-1] < ends[0]
    wider = work([[0]], [0, 1], 2, ExpertShape(2048, 64))
    timeline = scheduled(wider, slow)
    second = np.sort(timeline.start_ps[tasks(timeline, Kind.GEMM2)])
    ends = np.sort(timeline.end_ps[tasks(timeline, Kind.COMBINE_UP)])
    assert second[-1] >= ends[3]


def test_an_sm_holds_on_to_the_part_that_leaves_last() -> None:
    # Three owners, a cluster of two blocks, more columns than both have places for.
    slow = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 2, "link.efficiency": 0.001})
    timeline = scheduled(work([[0]] * 3, [0, 1, 1, 1], 4, ExpertShape(2048, 64)), slow)
    of_pairs = np.sort(timeline.start_ps[tasks(timeline, Kind.GEMM2)[1::2]])
    left = np.sort(timeline.end_ps[tasks(timeline, Kind.COMBINE_UP)]).reshape(8, 3)
    # Four of eight pairs of tiles have room; the next goes on when one has left whole.
    assert of_pairs[3] < left[0, 0]
    assert of_pairs[4] >= left[0, 2]


def test_sums_wait_for_the_flags_of_their_experts_alone() -> None:
    # GPU 2 has much to do for GPU 1; GPU 0's tokens have experts on GPUs 0 and 1.
    ids = [[0, 1], [0, 1]] + [[2, 0]] * 400
    timeline = scheduled(work(ids, [2, 400, 0], 3))
    added = tasks(timeline, Kind.COMBINE_RECEIVE)
    of_first = timeline.start_ps[added[timeline.graph.rank[added] == 0]]
    flags = tasks(timeline, Kind.NOTIFY_DOWN, 0)
    assert len(flags) == 2
    assert of_first.min() >= timeline.visible_ps[flags].min()


@pytest.mark.parametrize("slower", [1, 1000])
def test_flags_are_sent_when_a_gpus_stores_are_acknowledged(slower: int) -> None:
    system = hwmodel.load("dgx-h100", {**ROUND, "link.efficiency": 1 / slower})
    timeline = scheduled(work([[0]], [0, 1], 2), system)
    stored = finish(timeline, Kind.COMBINE_DOWN)
    grid = round_machine().overheads.grid_barrier_ps
    told = timeline.start_ps[tasks(timeline, Kind.NOTIFY_UP, 0)].max()
    done = finish(timeline, Kind.GEMM2) + grid
    assert told == max(stored, done) and (slower == 1 or stored > done)
    flag = 2 * slower * write_packets(8) + UP + DOWN + VISIBLE + UP + DOWN + POLL
    assert finish(timeline, Kind.NOTIFY_DOWN, 1) == told + flag
    assert starts(timeline, Kind.COMBINE_MEMORY, 1)[0] == told + flag


def test_a_gpu_stays_until_all_have_done_their_tiles() -> None:
    layer = work([[0]] * 200, [100, 100, 0], 3)
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 3)
    ends = SCHEME.build(layer, machine, machine.mark(machine.ranks))
    timeline = schedule(machine.graph.build())
    done = finish(timeline, Kind.GEMM2) + round_machine().overheads.grid_barrier_ps
    sent = max(done, finish(timeline, Kind.COMBINE_DOWN))
    assert timeline.visible_ps[ends[2]] == sent + UP + DOWN + 1020 * NS


def test_its_memory() -> None:
    layer = work([[0, 1], [2, 3], [0, 2]], [2, 1], 4)
    tokens, ring, back, numbers = SCHEME.buffers(layer, round_machine())
    assert tokens.nbytes.tolist() == [2 * (ROW + 2 * 12)] * 2
    assert ring.nbytes.tolist() == [2 * 16 * (ROW + 128)] * 2  # a tile of each expert
    assert back.nbytes.tolist() == [2 * 2 * ROW] * 2
    assert numbers.nbytes.tolist() == [4 * 2 * 4] * 2
    assert SCHEME.intermediates(layer) == ()


def test_rows_are_multiplied_as_they_come() -> None:
    mixed = small_layers.work(
        np.zeros((2, 1), np.int32), 2, 2, precision=small_layers.Precision("fp8", dispatch="bf16")
    )
    assert SCHEME.refuses(mixed) == "its fp8 GEMMs read rows as they come, which are bf16"
