"""The experts' two GEMMs as tiles on SMs, shared by every scheme.

A *row tile* is up to `block_m` rows of one expert; its *column tiles* are the units that run on
an SM. Weights and activations stream through HBM beside the SMs. A row tile is complete when all
its column tiles and its memory traffic are.

The layout of the rows of a rank's experts in memory decides what a kernel does with a partial tile:

- ``"plain"``: experts follow one another without gaps, and a tile works on the rows it has.
- ``"contiguous"``: each expert is padded to the height of a tile, which is fixed. Serving engines
  mark padding as rows of the expert (the scatter kernel of SGLang fills ``m_indices`` to the end),
  so that it is read, multiplied and written like any other row.
- ``"masked"``: a buffer of fixed size has a count for each expert. Row tiles beyond the count are
  skipped, and so is the multiplication of a warp group (64 rows) that begins beyond it; all other
  tiles are read and written whole. The host does not know the counts and chooses the tile for an
  expected number of rows. The scheduler of every SM walks through the counts of all experts.
- ``"matrix"``: the rank has one expert, whose rows end with the buffer, so that loads of a partial
  tile ask for rows that do not exist. This is the layout of dense layers.

Source of the contiguous and the masked layout: deepseek-ai/DeepGEMM,
``csrc/jit_kernels/heuristics`` and, under ``deep_gemm/include/deep_gemm``,
``common/scheduler.cuh`` and ``impls/sm90_fp8_gemm_1d2d.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.weight_gradients import DOWN, UP, element_bytes, weight_gradient_kernel
from replay.machine.kinds import Kind
from replay.work.ragged import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork


LAYOUTS = ("plain", "contiguous", "masked", "matrix")
CONTIGUOUS_ROWS = 128  # DeepGEMM's alignment of a contiguous layout, which is also its tile height
MASKED_ROWS = (64, 128)  # heights that its masked kernels have: one warp group or two
COUNT_LINE_BYTES = 128  # counts of four bytes are read by the line; later looks hit the L1 cache


@dataclass(frozen=True)
class RowTiles:
    """Row tiles of a layer, ordered by expert.

    Attributes
    ----------
    expert, rank, rows
        (tile,): expert, its rank, and number of rows that are multiplied.
    moved_rows
        (tile,): number of rows that are read and written; above `rows` where a layout has padding.
    first_of_expert
        (expert + 1,): offsets; the tiles of expert e are ``[first[e], first[e + 1])``.
    block_n
        (rank,): columns of the tiles that run on an SM.
    absent_rows
        (tile,): rows of the tile's loads beyond the end of the buffer; None if there are none.
    """

    expert: Ints
    rank: Ints
    rows: Ints
    moved_rows: Ints
    first_of_expert: Ints
    block_n: Ints
    absent_rows: Ints | None = None

    def __len__(self) -> int:
        return len(self.expert)


def row_tiles(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    num_sms: int,
    tile_rows: int | None = None,
    layout: str = "plain",
) -> RowTiles:
    """Cut every expert's rows into tiles; the last one of an expert may be partial.

    Parameters
    ----------
    num_sms
        Number of SMs per GPU that compute; each rank takes the tile shape that suits its rows best
        on them.
    tile_rows
        Height of a tile, if the scheme prescribes it.
    layout
        Layout of the rows of a rank's experts in memory, one of `LAYOUTS`.
    """
    assert layout in LAYOUTS, layout
    compute, dtype = machine.system.compute, work.precision.name
    rows = work.rows_of_expert
    rank_of = work.placement.expert_rank.astype(np.int64)
    if layout == "contiguous":
        tile_rows = CONTIGUOUS_ROWS
    grids = []
    for experts in work.experts_of_rank:
        known = _expected_rows(rows[experts]) if layout == "masked" else rows[experts]
        height = _masked_rows(known) if layout == "masked" else tile_rows
        grids.append(
            compute.gemm_tiles(known, gemm.n, gemm.k, dtype, block_m=height, num_sms=num_sms)
        )
    block_m = np.array([grid.block_m for grid in grids], dtype=np.int64)[rank_of]
    tiles = -(-rows // block_m)
    first = np.concatenate(([0], np.cumsum(tiles))).astype(np.int64)
    expert = np.repeat(np.arange(work.num_experts, dtype=np.int64), tiles)
    filled = np.minimum(block_m[expert], rows[expert] - places(tiles) * block_m[expert])
    return RowTiles(
        expert=expert,
        rank=rank_of[expert],
        rows=block_m[expert] if layout == "contiguous" else filled,
        moved_rows=block_m[expert] if layout in ("contiguous", "masked") else filled,
        first_of_expert=first,
        block_n=np.array([grid.block_n for grid in grids], dtype=np.int64),
        absent_rows=compute.absent_rows(filled, int(block_m[0])) if layout == "matrix" else None,
    )


def _expected_rows(rows: Ints) -> Ints:
    """(expert,): rows per expert that the host expects, their mean rounded up."""
    return np.full(len(rows), -(-int(rows.sum()) // max(len(rows), 1)), np.int64)


def _masked_rows(expected: Ints) -> int:
    """Height of a masked kernel's tile: the lower one where it holds an expert's expected rows."""
    low, high = MASKED_ROWS
    return low if int(expected.max(initial=0)) <= low else high


@dataclass(frozen=True)
class Gemm:
    """One GEMM of the layer: (rows, k) x (k, n) for every expert.

    A pass has two of them in sequence. Forward: up (and gate) projection, then down projection.
    Backward: the input gradients of the down projection, then those of the up projection.
    """

    n: int
    k: int
    kind: Kind
    memory_kind: Kind
    out_bytes: int  # of one output row in HBM

    @classmethod
    def first(cls, work: LayerWork, fused_activation: bool) -> Gemm:
        """Make the GEMM that reads dispatched rows; a fused activation writes only its result."""
        shape, element, result = work.shape, element_bytes(work), work.precision.result_bytes
        if work.is_backward:
            out = shape.gemm1_columns * element if fused_activation else shape.intermediate * result
            return cls(shape.intermediate, shape.hidden, Kind.GEMM2, Kind.GEMM2_MEMORY, out)
        out = shape.intermediate * element if fused_activation else shape.gemm1_columns * result
        return cls(shape.gemm1_columns, shape.hidden, Kind.GEMM1, Kind.GEMM1_MEMORY, out)

    @classmethod
    def second(cls, work: LayerWork) -> Gemm:
        """Make the GEMM whose output is combined."""
        shape, out = work.shape, work.combine_row_bytes
        if work.is_backward:
            return cls(shape.hidden, shape.gemm1_columns, Kind.GEMM1, Kind.GEMM1_MEMORY, out)
        return cls(shape.hidden, shape.intermediate, Kind.GEMM2, Kind.GEMM2_MEMORY, out)


@dataclass(frozen=True)
class TileTasks:
    """Tasks of one GEMM.

    Attributes
    ----------
    columns, column_tile
        (task,): tasks on SMs in the order of the row tiles, and the row tile of each.
    column_index
        (task,): position of the column tile within the row tile.
    memory
        (tile,): HBM task of each row tile.
    """

    columns: Ints
    column_tile: Ints
    column_index: Ints
    memory: Ints


def gemm_tasks(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    tiles: RowTiles,
    pool: Ints,
    after: Ints,
    *,
    weight_passes: int = 1,
    column_major: bool = False,
    priority: Ints | None = None,
    resident_blocks: int = 1,
) -> TileTasks:
    """Add the tiles of one GEMM.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs that compute.
    after
        (tile,): task that each row tile waits for.
    weight_passes
        Number of times that an expert's weights are read from HBM: 1 if tiles of an expert run
        together, so that all but the first find them in the L2 cache; the number of the expert's
        tiles if none does.
    column_major
        Whether the tiles of one rank are taken column by column over all its experts.
    priority
        (tile,): order among ready tiles, smaller first.
    resident_blocks
        Number of blocks that share an SM. While one fills its pipeline or stores its result the
        others multiply, so that only the share ``1 / resident_blocks`` of a tile's overhead keeps
        the SM from other tiles. The tile itself is done as late as with one block.
    """
    compute, dtype = machine.system.compute, work.precision.name
    hidden_ps = compute.tile_overhead_ps - compute.tile_overhead_ps // resident_blocks
    block_n = tiles.block_n[tiles.rank]
    num_columns = -(-gemm.n // block_n)
    tile = np.repeat(np.arange(len(tiles), dtype=np.int64), num_columns)
    column = places(num_columns)
    widths = np.minimum(block_n[tile], gemm.n - column * block_n[tile])
    duration = np.zeros(len(tile), np.int64)
    for width in np.unique(widths):
        same = widths == width
        of = tile[same]
        absent = 0 if tiles.absent_rows is None else tiles.absent_rows[of]
        duration[same] = compute.tile_ps(tiles.rows[of], int(width), gemm.k, dtype, absent)
    order = column if column_major else (0 if priority is None else priority[tile])
    columns = machine.graph.add(
        len(tile),
        resource=pool[tiles.rank[tile]],
        duration_ps=duration - hidden_ps,
        latency_ps=hidden_ps,
        priority=order,
        kind=gemm.kind,
        rank=tiles.rank[tile],
        tag=tiles.expert[tile],
        after=after[tile],
    )
    per_expert = np.diff(tiles.first_of_expert)[tiles.expert]
    reads = np.minimum(weight_passes, per_expert)
    weights = -(-compute.weight_bytes(gemm.n, gemm.k, dtype) * reads // np.maximum(per_expert, 1))
    activations = compute.activation_bytes(tiles.moved_rows, gemm.k, dtype)
    activations += tiles.moved_rows * gemm.out_bytes
    memory = machine.graph.add(
        len(tiles),
        resource=machine.resources.hbm[tiles.rank],
        duration_ps=machine.system.hbm.stream_ps(weights + activations),
        # What comes last from memory must still be multiplied, and the result stored.
        latency_ps=compute.tile_overhead_ps,
        kind=gemm.memory_kind,
        rank=tiles.rank,
        tag=tiles.expert,
        after=after,
    )
    return TileTasks(columns, tile, column, memory)


def gemm_kernel(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    pool: Ints,
    after: Ints,
    *,
    launched_early: bool = False,
    layout: str = "plain",
) -> Ints:
    """Run one grouped GEMM as a kernel of its own on every rank.

    Parameters
    ----------
    launched_early
        Whether the kernel is on the GPU before its input is complete (programmatic dependent
        launch), so that there is no gap.
    layout
        Layout of the rows of a rank's experts in memory, one of `LAYOUTS`.

    Returns
    -------
    (rank,) marks of the kernel's end.
    """
    begun = machine.mark(machine.ranks, after) if launched_early else machine.kernel(after)
    if layout == "masked":
        most = max((len(experts) for experts in work.experts_of_rank), default=0)
        lines = -(-4 * most // COUNT_LINE_BYTES)
        begun = machine.delay(Kind.LAUNCH, machine.costs.cache_load() * lines, begun)
    tiles = row_tiles(machine, work, gemm, machine.sms.count, layout=layout)
    tasks = gemm_tasks(machine, work, gemm, tiles, pool, begun[tiles.rank])
    return machine.gather(
        np.concatenate((tasks.columns, tasks.memory)),
        np.concatenate((tiles.rank[tasks.column_tile], tiles.rank)),
        begun,
    )


def fused_tiles(
    machine: Machine,
    work: LayerWork,
    tiles: RowTiles,
    pool: Ints,
    ready: Ints,
    *,
    tile_order: str,
    weight_passes: int,
    second_pool: Ints | None = None,
    between: Callable[[Ints], Ints] | None = None,
) -> Ints:
    """Run both GEMMs of each row tile as soon as it is ready.

    Parameters
    ----------
    ready
        (tile,): task after which the tile's rows are complete.
    tile_order
        ``"expert"``: among ready tiles, those of one expert run together, so that they find its
        weights in the L2 cache. ``"arrival"``: tiles run in the order in which they became ready;
        experts then alternate, and `weight_passes` should say that weights are read again.
    second_pool
        (rank,): resource of the SMs of the second GEMM, if they are not those of the first.
    between
        Turns (tile,) ends of the first GEMM into the tasks that its tiles wait for in the second.

    Returns
    -------
    (tile,) marks of the second GEMM's end.
    """
    priority = tiles.expert if tile_order == "expert" else None
    for gemm in (Gemm.first(work, fused_activation=True), Gemm.second(work)):
        tasks = gemm_tasks(
            machine, work, gemm, tiles, pool, ready,
            weight_passes=weight_passes, priority=priority,
        )  # fmt: skip
        ready = machine.mark(tiles.rank, tasks.memory)
        machine.graph.edges(tasks.columns, ready[tasks.column_tile])
        if between is not None:
            ready, between = between(ready), None
        if second_pool is not None:
            pool = second_pool
    return ready


def padded_rows(work: LayerWork, layout: str) -> Ints:
    """(rank,): rows that a kernel between the GEMMs works on, including a layout's padding."""
    rows = work.rows_of_expert
    if layout == "contiguous":
        rows = -(-rows // CONTIGUOUS_ROWS) * CONTIGUOUS_ROWS
    return np.bincount(work.placement.expert_rank, rows, work.num_ranks).astype(np.int64)


def activation_bytes(work: LayerWork, layout: str = "plain") -> Ints:
    """(rank,): bytes that an activation kernel reads and writes in HBM.

    Forward, it reads GEMM-1's output and writes GEMM-2's input. Backward, it reads the gradient of
    that input and GEMM-1's output, and writes the gradient of the latter and once more the input,
    which the weight gradient needs.
    """
    rows = padded_rows(work, layout)
    shape, element, result = work.shape, element_bytes(work), work.precision.result_bytes
    if work.is_backward:
        read = (shape.intermediate + shape.gemm1_columns) * result
        return rows * (read + (shape.gemm1_columns + shape.intermediate) * element)
    return rows * (shape.gemm1_columns * result + shape.intermediate * element)


def separate_kernels(
    machine: Machine, work: LayerWork, pool: Ints, after: Ints, *, layout: str = "plain"
) -> Ints:
    """Run the experts as kernels one after the other on every rank: (rank,) marks of their end.

    Forward, these are GEMM-1, activation and GEMM-2. Backward, in the order of automatic
    differentiation, they are the input and weight gradients of the down projection, the activation,
    and the input and weight gradients of the up projection.
    """
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    done = gemm_kernel(machine, work, first, pool, after, layout=layout)
    if work.is_backward:
        done = weight_gradient_kernel(machine, work, DOWN, pool, done)
    done = machine.memory_kernel(Kind.ACTIVATION, activation_bytes(work, layout), done)
    done = gemm_kernel(machine, work, second, pool, done, layout=layout)
    if work.is_backward:
        done = weight_gradient_kernel(machine, work, UP, pool, done)
    return done
