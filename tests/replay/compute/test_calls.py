"""Experts as calls: launches, streams and tiles by hand, on a machine of round numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from loops import every
from round_machine import NS, ROUND, US, round_machine

import hwmodel
from replay.engine import GraphBuilder, Timeline, schedule
from replay.model.compute.calls import calls_of, per_expert_kernels
from replay.model.machine.host import Launch
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork
from replay.schemes.contract import layers as small_layers

GAP, LAUNCH, SMALL = 2 * US, 3 * US, 300 * NS
TILE_OVERHEAD = 11 * NS
SUMS = -(-6 * 64 * 64 // 5) * 100
"""Of a tile in FP32, read and written but for a value in BF16, by one of 100 SMs that share memory."""


class Run(NamedTuple):
    timeline: Timeline
    machine: Machine
    end_ps: int

    def count(self, kind: Kind) -> list[int]:
        graph = self.timeline.graph
        return [int(((graph.kind == kind) & (graph.rank == rank)).sum()) for rank in self.machine.ranks]

    def gaps(self) -> list[int]:
        graph = self.timeline.graph
        is_gap = (graph.kind == Kind.LAUNCH) & (graph.duration_ps == GAP) & (graph.resource < 0)
        return [int((is_gap & (graph.rank == rank)).sum()) for rank in self.machine.ranks]

    def starts(self, kind: Kind, rank: int = 0) -> list[int]:
        graph = self.timeline.graph
        return sorted(self.timeline.start_ps[(graph.kind == kind) & (graph.rank == rank)].tolist())


def layer(
    rows: list[int],
    num_ranks: int = 1,
    *,
    hidden: int = 64,
    precision: str = "bf16",
    is_backward: bool = False,
) -> LayerWork:
    """Rank 0 sends so many tokens to each expert; one column of tiles in either GEMM."""
    ids = np.repeat(np.arange(len(rows), dtype=np.int32), rows)[:, None]
    return small_layers.work(
        ids,
        num_ranks,
        len(rows),
        tokens_of_rank=[len(ids)] + [0] * (num_ranks - 1),
        shape=ExpertShape(hidden, 64, gated=False),
        precision=precision,
        is_backward=is_backward,
    )


def run(
    work: LayerWork,
    launch: Launch | None = None,
    system: hwmodel.System | None = None,
    **options: int,
) -> Run:
    machine = Machine(system or round_machine(), GraphBuilder(KIND_NAMES), work.num_ranks, launch=launch)
    pool = machine.sms.pool("sm", machine.sms.count)
    ends = per_expert_kernels(machine, work, pool, machine.mark(machine.ranks), **options)
    timeline = schedule(machine.graph.build())
    return Run(timeline, machine, int(timeline.visible_ps[ends].max()))


def tile_ps(inner: int, rows: int = 64) -> int:
    return 2 * rows * 64 * inner + TILE_OVERHEAD


def activation_ps(rows: int) -> int:
    """Both ways BF16 rows of 64 values, at 5000 GB/s."""
    return GAP + -(-rows * 2 * 128 // 5) + SMALL


def test_the_place_of_a_call_is_that_of_an_expert_with_rows() -> None:
    work = layer([3, 0, 5, 0, 0, 7], num_ranks=2)  # experts 0 to 2, and 3 to 5
    assert [(call.expert.tolist(), call.rows.tolist()) for call in calls_of(work)] == [
        ([0, 5], [3, 7]),
        ([2, 0], [5, 0]),
    ]


@every(("experts", "in_turn"), [(4, 1), (5, 2), (9, 3)])
def test_four_streams_run_four_calls_at_a_time(experts: int, in_turn: int) -> None:
    spent = run(layer([10] * experts, hidden=1024))
    first = in_turn * (GAP + tile_ps(1024))
    second = in_turn * (GAP + tile_ps(64))  # sixteen columns of tiles each, on a hundred SMs
    assert spent.end_ps == first + activation_ps(10 * experts) + second
    assert spent.gaps() == [2 * experts + 1]


def test_one_stream_runs_calls_one_after_the_other() -> None:
    assert run(layer([10] * 3), streams=1).end_ps == activation_ps(30) + 6 * (GAP + tile_ps(64))


def test_tiles_of_calls_beside_one_another_share_the_sms() -> None:
    few = hwmodel.load("dgx-h100", {**ROUND, "gpu.num_sms": 3})
    each = few.compute.tile_ps(64, 64, 64, "bf16")
    spent = run(layer([10] * 4), system=few)  # the fourth tile waits for an SM
    assert spent.end_ps == 2 * (GAP + 2 * each) + activation_ps(40)


def test_short_calls_take_as_long_as_their_launches() -> None:
    spent = run(layer([10] * 20), "eager")
    # Launches follow one another without a pause, and each call waits for its own.
    assert spent.starts(Kind.GEMM1)[-1] == 20 * LAUNCH
    assert spent.starts(Kind.ACTIVATION) == [21 * LAUNCH]
    assert spent.end_ps == 41 * LAUNCH + tile_ps(64)


def test_a_captured_call_has_the_gap_of_its_graph_and_no_launch() -> None:
    spent = run(layer([10] * 20), "graph")
    gap, launch = 1_500 * NS, 2_500 * NS
    assert spent.starts(Kind.GEMM1)[:4] == [launch + gap] * 4
    assert spent.starts(Kind.GEMM1)[4:8] == [launch + 2 * gap + tile_ps(64)] * 4


def test_a_gpu_launches_calls_of_its_own_experts_alone() -> None:
    work = layer([10, 0, 10, 10, 10, 10, 0, 0, 0], num_ranks=3)
    spent = run(work, "eager")
    calls = [2, 3, 0]
    assert spent.gaps() == [2 * count + 1 for count in calls]
    assert spent.count(Kind.GEMM1) == spent.count(Kind.GEMM2) == calls
    graph = spent.timeline.graph
    launched = [int(graph.duration_ps[(graph.kind == Kind.HOST) & (graph.rank == rank)].sum()) for rank in (0, 1, 2)]
    assert launched == [LAUNCH * (2 * count + 1) for count in calls]
    # Who has none does not wait for those of others.
    assert spent.starts(Kind.ACTIVATION, 2) == [LAUNCH]


def test_each_call_takes_the_tile_that_suits_its_rows() -> None:
    two = {**ROUND, "compute.bf16_blocks": [[64, 64], [128, 64]], "gpu.num_sms": 1}
    spent = run(layer([128, 10]), system=hwmodel.load("dgx-h100", two))
    graph = spent.timeline.graph
    of = {expert: (graph.kind == Kind.GEMM1) & (graph.tag == expert) for expert in (0, 1)}
    full = graph.duration_ps[of[0]].tolist()
    low = graph.duration_ps[of[1]].tolist()
    assert len(full) == len(low) == 1  # one tile of 128 rows has one overhead, two have two
    assert full[0] - TILE_OVERHEAD == 2 * (low[0] - TILE_OVERHEAD)


def test_operands_are_quantised_expert_by_expert() -> None:
    work = layer([10, 0, 30], hidden=256, precision="fp8")
    spent = run(work, quantises=True)
    graph = spent.timeline.graph
    cast = np.flatnonzero(graph.kind == Kind.CAST)
    # 8000 GB/s of reads, 4000 of writes; a value in two bytes, then in one and scales of four, both
    # by rows and by columns.
    assert graph.duration_ps[cast].tolist() == [
        -(-rows * 2 * width // 8) + -(-2 * rows * (width + 4 * -(-width // 128)) // 4)
        for width in (256, 64)
        for rows in (10, 30)
    ]
    assert spent.gaps() == [2 * 2 + 2 * 2 + 1]
    # All bytes of elementwise kernels are noted, as a stack's list has them too.
    cast_bytes = sum(40 * (4 * w + 8 * -(-w // 128)) for w in (256, 64))
    moved_bytes = [run.nbytes for run in spent.machine.host.script.runs([("", False)])]
    assert sum(moved_bytes) == cast_bytes + 40 * 2 * 128
    # The activation leaves BF16.
    moved = graph.duration_ps[graph.kind == Kind.ACTIVATION]
    assert moved.tolist() == [-(-40 * 2 * 128 // 5)]


@pytest.mark.parametrize("is_backward", [False, True])
def test_operands_by_rows_and_columns_take_the_sms_longer_than_their_bytes(
    is_backward: bool,
) -> None:
    work = layer([10, 0, 30], hidden=256, precision="fp8", is_backward=is_backward)
    graph = run(work, quantises=True).timeline.graph
    cast = np.flatnonzero(graph.kind == Kind.CAST)
    widths = [(256, 10), (256, 30), (64, 10), (64, 30)]
    bytes_ps = [
        -(-rows * 2 * width // 8) + -(-2 * rows * (width + 4 * -(-width // 128)) // 4) for width, rows in widths
    ]
    assert graph.duration_ps[cast].tolist() == bytes_ps
    # 202 ps of an SM for each value, on a hundred SMs.
    assert graph.latency_ps[cast].tolist() == [
        SMALL + round(rows * width * 2.02) - moved for (width, rows), moved in zip(widths, bytes_ps, strict=True)
    ]


def test_fp8_calls_have_one_shape_of_tile() -> None:
    # 64 columns are less than a tile; 256 are two of 128, where 64 x 64 or 128 x 64 would be more.
    for hidden, tiles in ((64, 1), (256, 2)):
        work = layer([10], hidden=hidden, precision="fp8")
        shapes = {"compute.fp8_blocks": [[64, 64], [128, 128], [128, 64]]}
        graph = run(work, system=hwmodel.load("dgx-h100", ROUND | shapes)).timeline.graph
        assert (graph.kind == Kind.GEMM2).sum() == tiles


def test_gradients_of_fp8_weights_have_scales_in_both_operands() -> None:
    rates = {"compute.fp8_peak_TFLOP_per_s": 200.0, "compute.fp8_efficiency": 1.0}
    slower = {
        **ROUND,
        **rates,
        "compute.fp8_rows_efficiency": 0.25,
        "compute.fp8_blocks": [[64, 64]],
    }
    machine = hwmodel.load("dgx-h100", slower)
    work = layer([70], precision="fp8", is_backward=True)
    graph = run(work, system=machine).timeline.graph
    gradients = graph.duration_ps[graph.kind == Kind.WGRAD]
    # 200 operations a picosecond by 100 SMs are two of each; a quarter of that.
    assert gradients.tolist() == [4 * 64 * 64 * 70 + TILE_OVERHEAD + SUMS] * 2


def test_weight_gradients_are_calls_too() -> None:
    work = layer([70, 0, 30, 20, 40, 10], is_backward=True)
    spent = run(work)
    assert spent.gaps() == [4 * 5 + 1]
    graph = spent.timeline.graph
    gradients = np.flatnonzero(graph.kind == Kind.WGRAD)
    assert graph.tag[gradients].tolist() == [0, 2, 3, 4, 5] * 2
    assert (
        graph.duration_ps[gradients].tolist()
        == [2 * 64 * 64 * rows + TILE_OVERHEAD + SUMS for rows in (70, 30, 20, 40, 10)] * 2
    )
    # The fifth call waits for the first, which has most rows.
    first, *_, last = gradients[:5]
    begins = spent.timeline.start_ps
    assert begins[last] == spent.timeline.visible_ps[first] + GAP


def test_a_gpu_without_rows_passes() -> None:
    spent = run(layer([0, 0], num_ranks=2), "eager")
    assert spent.gaps() == [1, 1]  # the activation of nothing
