"""One GEMM of the experts as tiles on SMs, and as a kernel, shared by every scheme.

The *column tiles* of a row tile are the units that run on an SM. Each reads one block of weights
and one of activations through the L2 cache (`replay.model.machine.l2`), whose rate all SMs share.
How often a block has to come from HBM again follows from the order in which the tiles start:
nothing else says so. A row tile is complete when all its column tiles are.

The module is long because tiles, what they read and what they leave behind share one plan, and every function
describes its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from replay.model.compute.operands import WGMMA_TMA
from replay.model.compute.row_tiles import row_tiles
from replay.model.compute.tile_steps import add_steps
from replay.model.compute.warp_work import PLAIN
from replay.model.machine.host import Operation
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.work.ragged import places

if TYPE_CHECKING:
    from collections.abc import Collection

    from replay.model.arrays import Counts, Ints, Picoseconds, Pools, Tasks
    from replay.model.compute.gemm import Gemm
    from replay.model.compute.operands import OperandPath
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.compute.warp_work import WarpWork
    from replay.model.machine.host import Bools
    from replay.model.machine.machine import Machine
    from replay.model.machine.notes import Read
    from replay.model.work.layer import LayerWork


Raster = Literal["rows", "columns", "blocks", "groups", "experts"]

GROUP_TILES = (8, 16)  # row tiles that kernels go through together; see `_group_rows`
COUNT_LINE_BYTES = 128  # counts of four bytes are read by the line; later looks hit the L1 cache


@dataclass(frozen=True)
class TileTasks:
    """Tasks of one GEMM.

    Attributes
    ----------
    columns, column_tile
        (task,): tasks on SMs in the order in which a kernel takes them, and the row tile of each;
        where tiles multiply in several steps, the last step's.
    column_index
        (task,): position of the column tile within the row tile.
    done
        (tile,): marks; all columns of the row tile are there.
    outputs
        (tile,): blocks of the L2 cache with the results.
    begins
        (task,): where tiles multiply in several steps, the first step's tasks.
    """

    columns: Ints
    column_tile: Ints
    column_index: Ints
    done: Ints
    outputs: Ints
    begins: Ints


class PlannedTiles(NamedTuple):
    """Column tiles of a GEMM in the order in which kernels take them.

    Attributes
    ----------
    tile, column, width
        (task,): row tile, position in it, and columns.
    duration_ps, ending_ps, late_ps
        (task,): see `add_steps`.
    """

    tile: Ints
    column: Ints
    width: Ints
    duration_ps: Picoseconds
    ending_ps: Picoseconds
    late_ps: Picoseconds


def gemm_tasks(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    tiles: RowTiles,
    pool: Pools,
    after: Tasks,
    *,
    inputs: Ints | None = None,
    raster: Raster = "rows",
    block_columns: int = 0,
    priority: Ints | None = None,
    by_columns: bool = False,
    resident_blocks: int = 1,
    clusters: bool = True,
    path: OperandPath = WGMMA_TMA,
    kept: Bools | None = None,
    steps: Ints | None = None,
    warps: WarpWork = PLAIN,
    routed: bool = True,
    found: Collection[Read] = (),
) -> TileTasks:
    """Add the tiles of one GEMM.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs that compute.
    after
        (tile,): task that each row tile waits for.
    inputs
        (tile,): blocks of the L2 cache with the rows of each tile, if somebody has put them there.
    raster
        Order of tiles that are ready at the same time: ``"rows"`` takes row tile after row tile,
        ``"columns"`` goes column by column over all row tiles of the rank, ``"groups"`` does so
        within groups of row tiles (`_group_rows`), ``"experts"`` within such groups of one expert,
        ``"blocks"`` takes row tile after row tile through each block of columns.
    block_columns
        Columns of a block; a tile is of the block in which it begins.
    priority
        (tile,): order among ready tiles, smaller first.
    by_columns
        Whether the column is added to it; see `replay.model.compute.tile_order`.
    resident_blocks
        Number of blocks that share an SM. While one fills its pipeline or stores its result the
        others multiply, so that only the share ``1 / resident_blocks`` of a tile's overhead keeps
        the SM from other tiles. The tile itself is done as late as with one block.
    clusters
        Whether blocks run in clusters, which load what their tiles share once.
    path
        How the kernel's operands get to the tensor cores.
    kept
        (tile,): whether a tile's result is written into its own GPU's memory; all are by default.
        Others go to another GPU instead.
    steps
        (step, tile): where tiles begin to multiply before their rows are there in full, the tasks
        that equal shares of the inner dimension wait for, all but the last, which is `after`.
    warps
        What its warps do beside the products; other blocks of the SM multiply meanwhile.
    routed
        Whether the tiles are of routed experts, whose number a result states.
    found
        Operands that the L2 cache has from the start.
    """
    plan = plan_tiles(
        machine,
        work,
        gemm,
        tiles,
        raster=raster,
        block_columns=block_columns,
        resident_blocks=resident_blocks,
        path=path,
        warps=warps,
    )
    tile, column = plan.tile, plan.column
    waits = (*(() if steps is None else steps), after)
    chain = add_steps(
        machine,
        plan.duration_ps,
        plan.ending_ps,
        [one[tile] for one in waits],
        resource=pool[tiles.rank[tile]],
        late_ps=plan.late_ps,
        priority=(0 if priority is None else priority[tile]) + (column if by_columns else 0),
        kind=gemm.kind,
        rank=tiles.rank[tile],
        tag=tiles.expert[tile],
    )
    columns = chain[-1]
    outputs = read_operands(
        machine,
        work,
        gemm,
        tiles,
        plan,
        chain,
        inputs=inputs,
        clusters=clusters,
        kept=kept,
        path=path,
        found=found,
    )
    done = machine.join(columns, tile, tiles.rank)
    if routed:
        machine.notes.multiply(tiles.matrix)
    return TileTasks(columns, tile, column, done, outputs, chain[0])


def plan_tiles(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    tiles: RowTiles,
    *,
    raster: Raster,
    block_columns: int = 0,
    resident_blocks: int = 1,
    path: OperandPath = WGMMA_TMA,
    warps: WarpWork = PLAIN,
) -> PlannedTiles:
    """Find order, columns and times of the column tiles; see `gemm_tasks` for the parameters."""
    compute, number_type = machine.system.compute, work.precision.operands
    block_n = tiles.block_n[tiles.kernel]
    num_columns = -(-gemm.n // block_n)
    tile, column = _in_raster(tiles, num_columns, raster, num_sms=machine.sms.compute)
    if raster == "blocks":
        by_block = np.lexsort((column * block_n[tile] // block_columns, tiles.rank[tile]))
        tile, column = tile[by_block], column[by_block]
    # Columns of a row tile are alike but for the last: two (tile,).
    widths = np.stack((block_n, gemm.n - (num_columns - 1) * block_n))
    rows = warps.multiplied_rows(tiles.rows, tiles.block_m[tiles.kernel])
    beside = warps.ps(machine, gemm, tiles.rows, rows, widths, number_type)
    duration = _column_ps(machine, tiles, rows, widths, gemm.k, number_type, path) + beside
    overhead = compute.tile_overhead_ps + beside
    hidden_ps = np.maximum(overhead - overhead // resident_blocks, compute.hidden_ps(duration, overhead))
    kind = (column == (num_columns - 1)[tile]) * len(tiles) + tile
    found = (widths, duration - hidden_ps, overhead - hidden_ps, hidden_ps)
    return PlannedTiles(tile, column, *(one.reshape(-1)[kind] for one in found))


def _in_raster(tiles: RowTiles, num_columns: Ints, raster: Raster, *, num_sms: int) -> tuple[Ints, Ints]:
    """Row tile and column of every tile, in the order of a raster: two (task,).

    Parameters
    ----------
    num_columns
        (tile,): column tiles of each row tile; the same for all of a kernel.
    """
    if raster in ("rows", "blocks"):
        ordered, in_group = np.arange(len(tiles), dtype=np.int64), np.ones(len(tiles), np.int64)
    else:  # row tiles are numbered over all kernels; groups and columns count within one
        which, most = tiles.kernel, _group_rows(tiles, num_sms)
        if raster == "experts":
            kernel_of_matrix = np.zeros(len(tiles.first_of_expert) - 1, np.int64)
            kernel_of_matrix[tiles.matrix] = tiles.kernel
            which, most = tiles.matrix, most[kernel_of_matrix]
        ordered, count = which.argsort(kind="stable"), np.bincount(which, minlength=len(most))
        most = np.maximum(count, 1) if raster == "columns" else most
        full, rest = np.divmod(count, most)
        num_groups = full + (rest > 0)
        in_group = most.repeat(num_groups)
        in_group[num_groups.cumsum()[rest > 0] - 1] = rest[rest > 0]
    first = in_group.cumsum() - in_group
    cells = in_group * num_columns[ordered[first]]
    column, place = np.divmod(places(cells), in_group.repeat(cells))
    return ordered[first.repeat(cells) + place], column


def _column_ps(
    machine: Machine,
    tiles: RowTiles,
    rows: Counts,
    widths: Ints,
    k: int,
    number_type: str,
    path: OperandPath,
) -> Picoseconds:
    """Time of tiles of so many rows (tile,) and columns (kind, tile) of each row tile: (kind, tile)."""
    time = np.zeros(widths.shape, np.int64)
    for width in {*widths.reshape(-1).tolist()}:
        kind, of = (widths == width).nonzero()
        absent = 0 if tiles.absent_rows is None else tiles.absent_rows[of]
        time[kind, of] = machine.system.compute.tile_ps(
            rows[of],
            width,
            k,
            number_type,
            absent,
            block_m=tiles.block_m[tiles.kernel[of]],
            grouped=tiles.absent_rows is None,
            path=path,
        )
    return time


def _group_rows(tiles: RowTiles, num_sms: int) -> Ints:
    """(kernel,): row tiles that it goes through together, column by column.

    DeepGEMM takes 8 or 16, whichever lets the blocks that run at a time read less
    (``common/scheduler.cuh``, ``get_num_1d_blocks_per_group``). CUTLASS and cuBLAS go through
    groups likewise.
    """
    height = np.zeros(len(tiles.block_n), np.int64)
    np.maximum.at(height, tiles.kernel, tiles.rows)
    usage = [size * height + -(-num_sms // size) * tiles.block_n for size in GROUP_TILES]
    sizes: Ints = np.array(GROUP_TILES, np.int64)[np.argmin(usage, axis=0)]
    return sizes


def read_operands(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    tiles: RowTiles,
    plan: PlannedTiles,
    steps: list[Ints],
    *,
    inputs: Ints | None = None,
    clusters: bool = True,
    kept: Bools | None = None,
    path: OperandPath = WGMMA_TMA,
    found: Collection[Read] = (),
) -> Ints:
    """Let tiles read their weights and activations through the L2 cache, and leave results there.

    Where blocks run in clusters, neighbouring tiles share the load of the larger operand: weights
    with the next row tile of the expert, activations with the next column. That the last tile of an
    odd number has nobody to share with is left out of account.

    Parameters
    ----------
    steps
        Tasks (task,) of each step of the tiles.
    inputs, clusters, kept, path, found
        See `gemm_tasks`.

    Returns
    -------
    (tile,) blocks of the cache that hold the results.
    """
    compute, number_type, tile = machine.system.compute, work.precision.operands, plan.tile
    matrix, rank = tiles.matrix[tile], tiles.rank[tile]
    num_columns, num_steps = int(plan.column.max(initial=0)) + 1, len(steps)
    num_weights = len(tiles.first_of_expert) * num_columns
    blocks = machine.l2.new_blocks(num_steps * num_weights + (num_steps + 1) * len(tiles) + len(tile))
    ours = blocks + num_steps * num_weights + np.arange(len(tiles))
    outputs: Ints = ours + num_steps * len(tiles)

    weights: Ints = compute.weight_bytes(plan.width, gemm.k, number_type)
    activations: Ints = compute.activation_bytes(tiles.moved_rows, gemm.k, number_type)[tile]
    share = compute.cluster_tiles if clusters else 1
    slots = partial(machine.system.l2.slots_bytes, piece_bytes=path.step_bytes)
    has_next_row = (tiles.first_of_expert[1:] - tiles.first_of_expert[:-1] >= share)[matrix]
    of_weights = np.where(has_next_row & (weights >= activations), share, 1)
    of_activations = np.where(of_weights > 1, 1, share)
    from_memory = None
    if path.reads_rows:
        from_memory = compute.weights_from_memory_ps(plan.width, gemm.k // num_steps, number_type, path)
    columns, rows = blocks + matrix * num_columns + plan.column, (ours if inputs is None else inputs)[tile]
    # Of each operand: blocks of the first step, how far behind are those of the next, bytes in memory, bytes drawn.
    behind = len(tiles) if inputs is None else 0
    operands: tuple[tuple[Read, Ints, int, Ints, Ints], ...] = (
        ("weights", columns, num_weights, -(-weights // num_steps), slots(-(-weights // (num_steps * of_weights)))),
        (
            "activations",
            rows,
            behind,
            -(-activations // num_steps),
            slots(-(-activations // (num_steps * of_activations))),
        ),
    )
    numbered = [*enumerate(steps)]
    tasks = np.concatenate([of_step for _, of_step in numbered])
    for what, first, each, nbytes, drawn in operands:
        machine.l2.read(
            what,
            tasks,
            rank,
            np.concatenate([first + step * each for step, _ in numbered]),
            nbytes,
            drawn_bytes=drawn,
            reads_on=np.arange(len(tasks)) < len(tasks) - len(tile),
            is_found=what in found,
            from_memory_ps=from_memory if what == "weights" else None,
        )
    # Each column tile writes its own part; who reads the row tile finds it by its first.
    wrote = np.arange(len(tile)) if kept is None else kept[tile].nonzero()[0]
    column, whole = plan.column[wrote], (tiles.moved_rows * gemm.out_bytes)[tile[wrote]]
    begin = column * tiles.block_n[tiles.kernel[tile[wrote]]]
    end = begin + plan.width[wrote]
    parts = blocks + num_steps * num_weights + (num_steps + 1) * len(tiles) + wrote
    machine.l2.write(
        steps[-1][wrote],
        rank[wrote],
        np.where(column == 0, outputs[tile[wrote]], parts),
        whole * end // gemm.n - whole * begin // gemm.n,
    )
    return outputs


class GemmKernel(NamedTuple):
    """A grouped GEMM that is a kernel of its own on every rank.

    Attributes
    ----------
    tiles, tasks
        Its row tiles, and their tasks.
    end
        (rank,): marks of the kernel's end.
    """

    tiles: RowTiles
    tasks: TileTasks
    end: Ints


def gemm_kernel(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    pool: Pools,
    after: Tasks,
    *,
    launched_early: bool = False,
    layout: str = "plain",
    tuned_rows: Counts | int | None = None,
    num_sms: int = 0,
    raster: Raster | None = None,
    path: OperandPath = WGMMA_TMA,
    found: Collection[Read] = (),
) -> GemmKernel:
    """Run one grouped GEMM as a kernel of its own on every rank.

    Parameters
    ----------
    launched_early
        Whether the kernel is on the GPU before its input is complete (programmatic dependent
        launch), so that there is no gap.
    layout
        Layout of the rows of a rank's experts in memory, one of `LAYOUTS`.
    tuned_rows
        See `row_tiles`.
    num_sms
        SMs of the pool; 0 if it has all.
    raster
        See `gemm_tasks`. None: groups of row tiles; of one expert after the other in a masked
        layout, whose scheduler walks so (DeepGEMM, ``kMasked``).
    path, found
        See `gemm_tasks`.
    """
    raster = raster or ("experts" if layout == "masked" else "groups")
    what = Operation(
        KIND_NAMES[gemm.kind],
        moves="operands and results of all experts",
        source="grouped GEMM of all experts",
    )
    begun = machine.kernel(after, what, kind=gemm.kind, has_gap=not launched_early)
    if layout == "masked" and gemm.kind not in machine.graph.left_out:
        most = max((len(experts) for experts in work.experts_of_rank), default=0)
        lines = -(-4 * most // COUNT_LINE_BYTES)
        begun = machine.delay(Kind.LAUNCH, machine.costs.cache_load() * lines, begun)
    sms = num_sms or machine.sms.compute
    tiles = row_tiles(machine, work, gemm, sms, layout=layout, tuned_rows=tuned_rows)
    tasks = gemm_tasks(machine, work, gemm, tiles, pool, begun[tiles.rank], raster=raster, path=path, found=found)
    return GemmKernel(tiles, tasks, machine.gather(tasks.done, tiles.rank, begun))
