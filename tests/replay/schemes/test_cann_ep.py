"""Ascend's dispatch and combine: two rows by hand, who moves which row when, what runs where."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

import hwmodel
import replay
from hwmodel import System
from replay.engine import GraphBuilder, Timeline, schedule
from replay.errors import UserError
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.resources import ResourceClass
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.ep.cann_ep import CannEp, in_turn
from replay.schemes.registry import COMPARED, supporting_schemes

SCHEME = CannEp()
NS, US = 1_000, 1_000_000
# A byte takes 1 ps through a link and, with two vector cores a core, 2 ps through one of these.
ROUND = {
    "link.links_per_gpu": 1,
    "link.bandwidth_GB_per_s": 1000,
    "link.efficiency": 1.0,
    "link.scatter_efficiency": 1.0,
    "link.header_flits": 0,
    "link.byte_enable_flits": 0,
    "link.sm_write_ack_flits": 0,
    "link.propagation_ns": 10,
    "switch.traversal_ns": 80,
    "gpu.write_visibility_ns": 5,
    "gpu.sm_push_GB_per_s": 1000,
    "gpu.sm_read_GB_per_s": 1000,
    "gpu.sm_write_GB_per_s": 1000,
    "hbm.peak_GB_per_s": 1e6,
    "overheads.kernel_gap_stream_us": 3,
    "overheads.poll_ns": 7,
    "ai_core.sync_all_us": 2,
    "ai_core.quantised_row_us": 4,
}
WAY, VISIBLE, POLL = 100 * NS, 5 * NS, 7 * NS


def round_npus(**more: float) -> System:
    settings = {key.replace("__", "."): value for key, value in more.items()}
    return hwmodel.load("cloudmatrix384", {**ROUND, **settings})


def layer(ids: list[list[int]], num_ranks: int, precision: str, hidden: int = 512) -> LayerWork:
    experts = 1 + max(max(row) for row in ids)
    return small_layers.work(
        np.array(ids, np.int32),
        num_ranks,
        experts,
        shape=ExpertShape(hidden, 64),
        precision=precision,
    )


def run(phase: str, work: LayerWork, system: System) -> tuple[Timeline, Machine]:
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    getattr(SCHEME, phase)(work, machine, machine.mark(machine.ranks))
    return schedule(graph.build()), machine


def end_of(timeline: Timeline, kind: Kind) -> int:
    return int(timeline.end_ps[timeline.graph.kind == kind].max())


@pytest.mark.parametrize(("precision", "values", "cast"), [("bf16", 1024, 0), ("fp8", 528, 4 * US)])
def test_one_row_each_way_by_hand(precision: str, values: int, cast: int) -> None:
    """Two NPUs, whose tokens each want the other's expert: 512 values, a scale and indices."""
    work = layer([[1], [0]], 2, precision)
    timeline, _ = run("dispatch", work, round_npus())
    row = values + 32 + 12
    on_wire = -(-row // 32) * 32
    moved = 3 * US + 2 * row + cast
    there = moved + 2 * on_wire + WAY + VISIBLE
    flagged = there + WAY + 2 * US  # acknowledged; all cores meet
    counted = flagged + 2 * 32 + WAY + VISIBLE + POLL + 2 * US
    assert timeline.makespan_ps == counted + 2 * values

    timeline, _ = run("combine", work, round_npus())
    row, on_wire = 1024 + 32, 1056
    there = 3 * US + 2 * row + 2 * on_wire + WAY + VISIBLE
    assert end_of(timeline, Kind.COMBINE_RECEIVE) == there + POLL + 2 * (1024 + 1024)


def test_a_sum_waits_for_its_own_rows_and_no_barrier() -> None:
    """Token 0 has its expert at home; token 1's row comes from afar."""
    work = layer([[0], [1]], 2, "bf16")
    home, _ = run("combine", work, round_npus())
    assert end_of(home, Kind.COMBINE_RECEIVE) == 3 * US + 2 * 1056 + POLL + 2 * 2048
    far, _ = run("combine", layer([[0], [0]], 2, "bf16"), round_npus())
    adds = far.graph.kind == Kind.COMBINE_RECEIVE
    assert far.end_ps[adds].tolist() == [
        3 * US + 2 * 1056 + POLL + 2 * 2048,
        3 * US + 4 * 1056 + WAY + VISIBLE + POLL + 2 * 2048,
    ]


def test_the_more_cores_the_more_rows_at_once() -> None:
    """97 rows on 48 vector cores take three turns, 96 take two, each of a cast."""
    times = []
    for rows in (48, 96, 97):
        work = layer([[1]] * rows + [[0]], 2, "fp8")
        # All tokens but the last one lie on rank 0.
        work = LayerWork(
            work.expert_ids,
            np.array([0] * rows + [1], np.int32),
            work.placement,
            work.shape,
            work.precision,
        )
        timeline, _ = run("dispatch", work, round_npus())
        sends = timeline.graph.kind == Kind.DISPATCH_SEND
        times.append(int(timeline.end_ps[sends].max()) - 3 * US)
    row = 528 + 44
    assert times == [turns * (4 * US + 2 * row) for turns in (1, 2, 3)]


def by_brute_force(count: int, cores: int, offset: int) -> list[int]:
    """Rows of one rank in the order in which cores move them, all at the same pace."""
    shares, first = [], 0
    for core in range(cores):
        size = count // cores + (core < count % cores)
        rows = list(range(first, first + size))
        shares.append([rows[(turn + offset) % size] for turn in range(size)] if size else [])
        first += size
    longest = max(map(len, shares))
    return [share[turn] for turn in range(longest) for share in shares if turn < len(share)]


@every("counts", [(1, 0, 3), (8, 4, 5), (13, 21, 2)])
@every("cores", [1, 3, 4])
@every("staggered", [False, True])
def test_rows_leave_in_turn(counts: tuple[int, ...], cores: int, staggered: bool) -> None:
    rank = np.repeat(np.arange(3), counts)
    offset = np.arange(3) if staggered else None
    found = in_turn(rank, cores, offset)
    expected, before = [], 0
    for index, count in enumerate(counts):
        turns = by_brute_force(count, cores, index if staggered else 0) if count else []
        expected += [before + row for row in turns]
        before += count
    assert found.tolist() == expected


@every("staggered", [False, True])
def test_cores_that_begin_at_the_same_rows_store_to_the_same_npus(staggered: bool) -> None:
    """Two cores of each of four NPUs have four rows of NPUs 0 and 1, and four of 2 and 3, in this order."""
    work = layer([[0, 1, 2, 3]] * 16, 4, "bf16")
    system = round_npus(gpu__num_sms=1, ai_core__vector_cores=2)
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, work.num_ranks)
    SCHEME.combine(work, machine, machine.mark(machine.ranks), staggered=staggered)
    timeline = schedule(graph.build())
    of_rows = timeline.graph.kind == Kind.COMBINE_DOWN
    first = [int(timeline.start_ps[of_rows & (timeline.graph.rank == npu)].min()) for npu in (0, 1)]
    row = 2 * (1024 + 32)  # one core's time for it
    # NPU 3's cores begin at their fourth row, so that NPU 1 gets one in the second turn.
    assert first[1] - first[0] == (1 if staggered else 4) * row


def test_cube_cores_are_free_while_rows_move() -> None:
    work = layer([[1, 2], [0, 3], [1, 3], [0, 2]], 4, "fp8")
    for phase in ("dispatch", "combine"):
        timeline, machine = run(phase, work, round_npus())
        classes = machine.resources.classes(timeline.graph)
        assert not (classes == ResourceClass.SM).any()
        assert (classes == ResourceClass.VECTOR).sum() == 4
    assert SCHEME.communication_sms(round_npus()) == 0


@pytest.mark.extended
def test_two_micro_batches_take_turns_beside_experts() -> None:
    """Rows of one micro-batch travel while the experts of the other have all cube cores."""
    settings = {
        "scheme": "cann-ep",
        "system": "cloudmatrix384",
        "precision": "bf16",
        "layer": 12,
        "ranks": 4,
        "tokens_per_rank": 64,
    }
    alone = replay.run("gpt-oss-20b-decode", **settings)
    turns = replay.run("gpt-oss-20b-decode", interleave="tbo", **settings)
    assert turns.totals.makespan_us < 2 * alone.totals.makespan_us


def test_each_platform_refuses_the_other_in_one_line() -> None:
    ascend, hopper = hwmodel.load("cloudmatrix384"), hwmodel.load("dgx-h100")
    assert supporting_schemes(ascend) == [name for name, one in COMPARED.items() if one.platform != "cuda"]
    assert {"ideal", "cann-ep"} < set(supporting_schemes(ascend)) and "deepep" not in supporting_schemes(ascend)
    assert "cann-ep" not in supporting_schemes(hopper) and "cann-ep" not in SCHEMES
    assert COMPARED["deepep"].lacks(ascend) == {"cuda"}
    for scheme, system, lacking in (
        ("deepep", "cloudmatrix384", "cuda"),
        ("cann-ep", "dgx-h100", "cann"),
    ):
        with pytest.raises(UserError, match=f"needs {lacking}, which system '{system}' lacks"):
            replay.run("gpt-oss-20b-decode", scheme=scheme, system=system, layer=12)


def test_the_window_has_room_for_all_that_may_come() -> None:
    work = layer([[1, 2], [0, 3], [1, 3], [0, 2]], 2, "bf16")
    window, received, *_ = SCHEME.buffers(work, round_npus())
    # Two halves; of two experts, from two NPUs, two tokens of 1024 + 44 bytes in steps of 512, and
    # two tokens with two choices of 1024 bytes.
    assert window.stays
    assert window.nbytes.tolist() == [2 * (2 * 2 * 2 * 1536 + 2 * 2 * 1024)] * 2
    assert received.nbytes.tolist() == [4 * 1024] * 2
