"""Weight gradients and activations of experts, against sums by hand.

The machine is that of `round_machine`: an operation of a tile takes 1 ps on one SM, and a tile of
64 x 64 has 11 ns of overhead.
"""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from round_machine import NS, US, round_machine

from replay.engine import GraphBuilder, schedule
from replay.model.compute.experts import Gemm, activation_bytes
from replay.model.compute.weight_gradients import (
    DOWN,
    UP,
    weight_gradient_kernel,
    weight_gradients_beside,
)
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import place

ROWS = (7, 0, 130, 20)  # of four experts, two on each GPU
HIDDEN, INTERMEDIATE = 256, 96


def layer(precision: str = "bf16", *, gated: bool = True, is_backward: bool = True) -> LayerWork:
    ids = np.repeat(np.arange(4, dtype=np.int32), ROWS)[:, None]
    owner = (np.arange(len(ids)) >= len(ids) // 2).astype(np.int32)
    shape = ExpertShape(HIDDEN, INTERMEDIATE, gated)
    placed = place("contiguous", 4, 2)
    return LayerWork(ids, owner, placed, shape, Precision(precision), is_backward=is_backward)


def gradients(work: LayerWork, projection) -> dict[int, tuple[list[int], list[int]]]:
    """By expert: bytes that each SM's share reads and writes in memory, and its time."""
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    moved: dict[int, int] = {}

    def read(what, tasks, rank, block, nbytes, **_) -> None:
        assert what == "gradients" and len(np.unique(block)) == len(tasks)
        moved.update(zip(tasks.tolist(), nbytes.tolist(), strict=True))

    machine.l2.read = read
    pool = machine.sms.pool("sm", 100)
    weight_gradient_kernel(machine, work, projection, pool, machine.mark(machine.ranks))
    graph = machine.graph.build()
    found = {}
    for expert in np.unique(graph.tag[graph.tag >= 0]).tolist():
        tasks = np.flatnonzero((graph.kind == Kind.WGRAD) & (graph.tag == expert))
        shares = [moved[task] for task in tasks.tolist()]
        found[expert] = shares, graph.duration_ps[tasks].tolist()
    return found


@every(("precision", "value"), [("bf16", 2), ("fp8", 1), ("fp32", 4)])
@every(("projection", "inner"), [(UP, 2 * INTERMEDIATE), (DOWN, INTERMEDIATE)])
def test_a_gradient_reads_both_operands_and_reads_and_writes_its_accumulator(
    precision: str, value: int, projection, inner: int
) -> None:
    found = gradients(layer(precision), projection)
    assert sorted(found) == [0, 2, 3]  # experts with rows
    for expert, (shares, _) in found.items():
        operands = ROWS[expert] * (inner + HIDDEN) * value
        accumulator = inner * HIDDEN * 4
        assert shares == [-(-(operands + 2 * accumulator) // len(shares))] * len(shares)


def test_a_gradient_is_a_product_over_the_rows_shared_by_the_sms() -> None:
    for projection, inner in ((UP, 192), (DOWN, 96)):
        for expert, (_, shares) in gradients(layer(), projection).items():
            tiles = -(-inner // 64) * (HIDDEN // 64)
            # The last row of tiles is rounded up to 64 rows as well.
            sums = -(-6 * inner * HIDDEN // 5)  # at memory's rate, in which nothing multiplies
            total = tiles * (2 * 64 * 64 * ROWS[expert] + 11 * NS) + 100 * sums
            assert shares == [-(-total // tiles)] * tiles


@pytest.mark.parametrize(("projection", "tiles"), [(UP, [96] * 3), (DOWN, [96, 64])])
def test_tiles_of_a_gradient_draw_both_operands_and_two_share_the_larger(projection, tiles: list[int]) -> None:
    # Of 64 x 64, and 32 x 64 at the end of 96 rows; half of 64 for the operand that is shared.
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    found: list[int] = []

    def read(_what, _tasks, _rank, _block, _nbytes, *, drawn_bytes) -> None:
        found.extend(drawn_bytes.tolist())

    machine.l2.read = read
    pool = machine.sms.pool("sm", 100)
    weight_gradient_kernel(machine, layer(), projection, pool, machine.mark(machine.ranks))
    count = len(tiles) * HIDDEN // 64  # of each expert, an SM for each
    mean = 2 * sum(tiles) // len(tiles)
    assert found == [rows * mean for rows in ROWS if rows for _ in range(count)]


def test_a_model_without_gate_has_half_the_gradient_of_its_up_projection() -> None:
    shares, _ = gradients(layer(gated=False), UP)[0]
    assert sum(shares) == pytest.approx(7 * (96 + 256) * 2 + 2 * 96 * 256 * 4, abs=len(shares))


def test_gradients_beside_are_those_of_both_projections_and_wait_for_their_rows() -> None:
    work = layer()
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    pool = machine.sms.pool("sm", 100)
    rank = work.placement.expert_rank.astype(np.int64)
    done = machine.graph.add(4, resource=-1, duration_ps=[10, 20, 30, 40], kind=0, rank=rank)
    beside = weight_gradients_beside(machine, work, pool, done, np.arange(4), priority=5)
    assert len(beside) == 2
    timeline = schedule(machine.graph.build())
    graph = timeline.graph
    chosen = np.flatnonzero(graph.kind == Kind.WGRAD)
    assert (timeline.start_ps[chosen] >= 10 * (graph.tag[chosen] + 1)).all()
    assert (graph.priority[graph.kind == Kind.WGRAD] == 5).all()
    assert not weight_gradients_beside(machine, layer(is_backward=False), pool, done, np.arange(4), priority=5)


@pytest.mark.parametrize("projection", [UP, DOWN])
def test_a_kernel_of_gradients_waits_for_its_gpu_and_its_gap_and_ends_with_its_tiles(
    projection,
) -> None:
    machine = Machine(round_machine(), GraphBuilder(KIND_NAMES), 2)
    pool = machine.sms.pool("sm", 100)
    before = machine.graph.add(2, resource=-1, duration_ps=[10 * US, 20 * US], kind=0, rank=[0, 1])
    ends = weight_gradient_kernel(machine, layer(), projection, pool, before)
    timeline = schedule(machine.graph.build())
    graph = timeline.graph
    for gpu, begun in enumerate((10 * US, 20 * US)):
        tiles = (graph.kind == Kind.WGRAD) & (graph.rank == gpu)
        assert timeline.start_ps[tiles].min() == begun + 2 * US
        assert timeline.visible_ps[ends[gpu]] == timeline.visible_ps[tiles].max()


@pytest.mark.parametrize(("precision", "operand", "result"), [("bf16", 2, 2), ("fp8", 1, 2)])
def test_an_activation_reads_and_writes(precision: str, operand: int, result: int) -> None:
    rows = np.array([ROWS[0] + ROWS[1], ROWS[2] + ROWS[3]])
    inner, columns = INTERMEDIATE, 2 * INTERMEDIATE
    scales = {inner: 4 * -(-inner // 128), columns: 4 * -(-columns // 128)}  # of 128 FP8 values
    if precision != "fp8":
        scales = dict.fromkeys(scales, 0)
    forward = activation_bytes(layer(precision, is_backward=False))
    assert forward.tolist() == (rows * (columns * result + inner * operand + scales[inner])).tolist()
    # Back: the result's gradient and the GEMM's output are read; the output's gradient and the
    # result itself, for the weights' gradient, are written.
    backward = activation_bytes(layer(precision))
    read = (inner + columns) * result
    written = (columns + inner) * operand + scales[inner] + scales[columns]
    assert backward.tolist() == (rows * (read + written)).tolist()
    single = activation_bytes(layer(precision, gated=False, is_backward=False))
    assert single.tolist() == (rows * (inner * (result + operand) + scales[inner])).tolist()


def test_a_fused_activation_writes_operands_with_their_scales() -> None:
    inner, columns = INTERMEDIATE, 2 * INTERMEDIATE
    forward, backward = layer("fp8", is_backward=False), layer("fp8")
    assert Gemm.first(forward, fused_activation=True).out_bytes == inner + 4
    assert Gemm.first(backward, fused_activation=True).out_bytes == columns + 2 * 4
    assert Gemm.first(forward, fused_activation=False).out_bytes == 2 * columns
    assert Gemm.first(backward, fused_activation=False).out_bytes == 2 * inner


def test_an_activation_works_on_the_padding_of_its_layout() -> None:
    plain = activation_bytes(layer(is_backward=False))
    padded = activation_bytes(layer(is_backward=False), "contiguous")
    assert padded.tolist() == [128 * plain[0] // 7, (256 + 128) * plain[1] // 150]
