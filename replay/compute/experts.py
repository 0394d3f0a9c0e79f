"""The experts' two GEMMs as tiles on SMs, shared by every scheme.

A *row tile* is up to `block_m` rows of one expert; its *column tiles* are the units that run on
an SM. Weights and activations stream through HBM beside the SMs, once. A row tile is complete when
all its column tiles and its memory traffic are.

A column tile reads one block of weights and one of activations through the L2 cache
(`replay.machine.l2`), whose rate all SMs share. How often a block has to come from HBM again
follows from the order in which the tiles start: nothing else says so.

The layout of the rows of a rank's experts in memory decides what a kernel does with a partial tile:

- ``"plain"``: experts follow one another without gaps, and a tile works on the rows it has.
- ``"contiguous"``: each expert is padded to the height of a tile, which is fixed. Serving engines
  mark padding as rows of the expert (the scatter kernel of SGLang fills ``m_indices`` to the end),
  so that it is read, multiplied and written like any other row.
- ``"skipped"``: the same padding, marked as nobody's rows (vLLM fills the indices with -1 first).
  It is read and written, but a warp group (64 rows) that begins in it does not multiply.
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
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from replay.compute.casts import cast_tiles
from replay.compute.weight_gradients import DOWN, UP, element_bytes, weight_gradient_kernel
from replay.machine.kinds import KIND_NAMES, Kind
from replay.work.ragged import places

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork


Raster = Literal["rows", "columns", "groups"]

LAYOUTS = ("plain", "contiguous", "skipped", "masked", "matrix")
PADDED = ("contiguous", "skipped")  # each expert fills whole tiles
CONTIGUOUS_ROWS = 128  # DeepGEMM's alignment of a contiguous layout, which is also its tile height
MASKED_ROWS = (64, 128)  # heights that its masked kernels have: one warp group or two
GROUP_TILES = (8, 16)  # row tiles that kernels go through together; see `_group_rows`
QUANTISATION = "quantisation"  # name of the kernel behind an activation that writes no operands
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
    block_m, block_n
        (rank,): rows and columns of the full tiles that run on an SM.
    absent_rows
        (tile,): rows of the tile's loads beyond the end of the buffer; None if there are none.
    """

    expert: Ints
    rank: Ints
    rows: Ints
    moved_rows: Ints
    first_of_expert: Ints
    block_m: Ints
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
    tuned_rows: int | None = None,
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
    tuned_rows
        Number of rows per expert that the tile shape is chosen for. By default it is their mean on
        the rank, since the host does not know their counts; a matrix has the rows that it has.
    """
    assert layout in LAYOUTS, layout
    compute, dtype = machine.system.compute, work.precision.gemm
    rows, grouped = work.rows_of_expert, layout != "matrix"
    rank_of = work.placement.expert_rank.astype(np.int64)
    if layout in PADDED:
        tile_rows = CONTIGUOUS_ROWS
    grids = []
    for experts in work.experts_of_rank:
        known = _expected_rows(rows[experts]) if grouped else rows[experts]
        if tuned_rows is not None:
            known = np.full(len(experts), tuned_rows, np.int64)
        height = _masked_rows(known) if layout == "masked" else tile_rows
        grids.append(
            compute.gemm_tiles(
                known, gemm.n, gemm.k, dtype,
                block_m=height, num_sms=num_sms, grouped=grouped,
            )
        )  # fmt: skip
    height_of_rank = np.array([grid.block_m for grid in grids], dtype=np.int64)
    block_m = height_of_rank[rank_of]
    tiles = -(-rows // block_m)
    first = np.concatenate(([0], np.cumsum(tiles))).astype(np.int64)
    expert = np.repeat(np.arange(work.num_experts, dtype=np.int64), tiles)
    filled = np.minimum(block_m[expert], rows[expert] - places(tiles) * block_m[expert])
    return RowTiles(
        expert=expert,
        rank=rank_of[expert],
        rows=block_m[expert] if layout == "contiguous" else filled,
        moved_rows=block_m[expert] if layout in (*PADDED, "masked") else filled,
        first_of_expert=first,
        block_m=height_of_rank,
        block_n=np.array([grid.block_n for grid in grids], dtype=np.int64),
        absent_rows=compute.absent_rows(filled, int(block_m[0]), gemm.n)
        if layout == "matrix"
        else None,
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
    out_bytes: int  # of one output row in HBM

    @classmethod
    def first(cls, work: LayerWork, fused_activation: bool) -> Gemm:
        """Make the GEMM that reads dispatched rows; a fused activation writes only its result."""
        shape, element, result = work.shape, element_bytes(work), work.precision.result_bytes
        if work.is_backward:
            out = shape.gemm1_columns * element if fused_activation else shape.intermediate * result
            return cls(shape.intermediate, shape.hidden, Kind.GEMM2, out)
        out = shape.intermediate * element if fused_activation else shape.gemm1_columns * result
        return cls(shape.gemm1_columns, shape.hidden, Kind.GEMM1, out)

    @classmethod
    def second(cls, work: LayerWork) -> Gemm:
        """Make the GEMM whose output is combined."""
        shape, out = work.shape, work.result_row_bytes
        if work.is_backward:
            return cls(shape.hidden, shape.gemm1_columns, Kind.GEMM1, out)
        return cls(shape.hidden, shape.intermediate, Kind.GEMM2, out)


@dataclass(frozen=True)
class TileTasks:
    """Tasks of one GEMM.

    Attributes
    ----------
    columns, column_tile
        (task,): tasks on SMs in the order in which a kernel takes them, and the row tile of each.
    column_index
        (task,): position of the column tile within the row tile.
    done
        (tile,): marks; all columns of the row tile are there.
    outputs
        (tile,): blocks of the L2 cache with the results.
    """

    columns: Ints
    column_tile: Ints
    column_index: Ints
    done: Ints
    outputs: Ints


class TileColumns(NamedTuple):
    """Tasks of the column tiles: (task,) tasks, row tiles, columns and their widths."""

    tasks: Ints
    tile: Ints
    column: Ints
    width: Ints


def gemm_tasks(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    tiles: RowTiles,
    pool: Ints,
    after: Ints,
    *,
    inputs: Ints | None = None,
    raster: Raster = "rows",
    priority: Ints | None = None,
    resident_blocks: int = 1,
    clusters: bool = True,
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
        within groups of row tiles (`_group_rows`).
    priority
        (tile,): order among ready tiles, smaller first.
    resident_blocks
        Number of blocks that share an SM. While one fills its pipeline or stores its result the
        others multiply, so that only the share ``1 / resident_blocks`` of a tile's overhead keeps
        the SM from other tiles. The tile itself is done as late as with one block.
    clusters
        Whether blocks run in clusters, which load what their tiles share once.
    """
    compute, dtype = machine.system.compute, work.precision.gemm
    hidden_ps = compute.tile_overhead_ps - compute.tile_overhead_ps // resident_blocks
    block_n = tiles.block_n[tiles.rank]
    num_columns = -(-gemm.n // block_n)
    tile, column = _in_raster(tiles, num_columns, raster, num_sms=machine.sms.count)
    widths = np.minimum(block_n[tile], gemm.n - column * block_n[tile])
    duration = np.zeros(len(tile), np.int64)
    for width in np.unique(widths):
        same = widths == width
        of = tile[same]
        absent = 0 if tiles.absent_rows is None else tiles.absent_rows[of]
        duration[same] = compute.tile_ps(
            tiles.rows[of], int(width), gemm.k, dtype, absent,
            block_m=tiles.block_m[tiles.rank[of]], grouped=tiles.absent_rows is None,
        )  # fmt: skip
    columns = machine.graph.add(
        len(tile),
        resource=pool[tiles.rank[tile]],
        duration_ps=duration - hidden_ps,
        latency_ps=hidden_ps,
        priority=0 if priority is None else priority[tile],
        kind=gemm.kind,
        rank=tiles.rank[tile],
        tag=tiles.expert[tile],
        after=after[tile],
    )
    outputs = _read_operands(
        machine, gemm, tiles, dtype, TileColumns(columns, tile, column, widths), inputs, clusters
    )
    done = machine.mark(tiles.rank)
    machine.graph.edges(columns, done[tile])
    return TileTasks(columns, tile, column, done, outputs)


def _in_raster(
    tiles: RowTiles, num_columns: Ints, raster: Raster, *, num_sms: int
) -> tuple[Ints, Ints]:
    """Row tile and column of every tile, in the order of a raster: two (task,).

    Parameters
    ----------
    num_columns
        (tile,): column tiles of each row tile.
    """
    tile = np.repeat(np.arange(len(tiles), dtype=np.int64), num_columns)
    column = places(num_columns)
    if raster == "rows" or not len(tile):
        return tile, column
    # Row tiles are numbered over all ranks; groups and columns count within a rank.
    rank = tiles.rank[tile]
    if raster == "groups":
        by_rank = np.argsort(tiles.rank, kind="stable")
        place = np.empty(len(tiles), np.int64)
        place[by_rank] = places(np.bincount(tiles.rank))
        group = (place // _group_rows(tiles, num_sms)[tiles.rank])[tile]
        order = np.lexsort((tile, column, group, rank))
    else:
        order = np.lexsort((tile, column, rank))
    return tile[order], column[order]


def _group_rows(tiles: RowTiles, num_sms: int) -> Ints:
    """(rank,): row tiles that a kernel goes through together, column by column.

    DeepGEMM takes 8 or 16, whichever lets the blocks that run at a time read less
    (``common/scheduler.cuh``, ``get_num_1d_blocks_per_group``). CUTLASS and cuBLAS go through
    groups likewise.
    """
    height = np.zeros(len(tiles.block_n), np.int64)
    np.maximum.at(height, tiles.rank, tiles.rows)
    usage = [size * height + -(-num_sms // size) * tiles.block_n for size in GROUP_TILES]
    sizes: Ints = np.array(GROUP_TILES, np.int64)[np.argmin(usage, axis=0)]
    return sizes


def _read_operands(
    machine: Machine,
    gemm: Gemm,
    tiles: RowTiles,
    dtype: str,
    added: TileColumns,
    inputs: Ints | None,
    clusters: bool,
) -> Ints:
    """Let tiles read their weights and activations through the L2 cache, and leave results there.

    Where blocks run in clusters, neighbouring tiles share the load of the larger operand: weights
    with the next row tile of the expert, activations with the next column. That the last tile of an
    odd number has nobody to share with is left out of account.

    Returns
    -------
    (tile,) blocks of the cache that hold the results.
    """
    compute, tile = machine.system.compute, added.tile
    expert, rank = tiles.expert[tile], tiles.rank[tile]
    num_columns = int(added.column.max(initial=0)) + 1
    num_weights = len(tiles.first_of_expert) * num_columns
    blocks = machine.l2.new_blocks(num_weights + 2 * len(tiles))
    rows_of_tile = blocks + num_weights + np.arange(len(tiles)) if inputs is None else inputs
    outputs: Ints = blocks + num_weights + len(tiles) + np.arange(len(tiles))

    weights: Ints = compute.weight_bytes(added.width, np.full_like(added.width, gemm.k), dtype)
    activations: Ints = compute.activation_bytes(tiles.moved_rows, gemm.k, dtype)[tile]
    share = compute.cluster_tiles if clusters else 1
    has_next_row = (np.diff(tiles.first_of_expert) >= share)[expert]
    of_weights = np.where(has_next_row & (weights >= activations), share, 1)
    of_activations = np.where(of_weights > 1, 1, share)
    machine.l2.read(
        "weights", added.tasks, rank, blocks + expert * num_columns + added.column, weights,
        drawn_bytes=-(-weights // of_weights),
    )  # fmt: skip
    machine.l2.read(
        "activations", added.tasks, rank, rows_of_tile[tile], activations,
        drawn_bytes=-(-activations // of_activations),
    )  # fmt: skip
    first = np.flatnonzero(added.column == 0)
    machine.l2.write(
        added.tasks[first], rank[first], outputs[tile[first]],
        (tiles.moved_rows * gemm.out_bytes)[tile[first]],
    )  # fmt: skip
    return outputs


def gemm_kernel(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    pool: Ints,
    after: Ints,
    *,
    launched_early: bool = False,
    layout: str = "plain",
    tuned_rows: int | None = None,
    num_sms: int = 0,
) -> Ints:
    """Run one grouped GEMM as a kernel of its own on every rank.

    Parameters
    ----------
    launched_early
        Whether the kernel is on the GPU before its input is complete (programmatic dependent
        launch), so that there is no gap.
    layout
        Layout of the rows of a rank's experts in memory, one of `LAYOUTS`.
    tuned_rows
        Number of rows per expert that the tile shape is chosen for, if it is not their mean.
    num_sms
        SMs of the pool; 0 if it has all.

    Returns
    -------
    (rank,) marks of the kernel's end.
    """
    begun = machine.kernel(after, KIND_NAMES[gemm.kind], has_gap=not launched_early)
    if layout == "masked":
        most = max((len(experts) for experts in work.experts_of_rank), default=0)
        lines = -(-4 * most // COUNT_LINE_BYTES)
        begun = machine.delay(Kind.LAUNCH, machine.costs.cache_load() * lines, begun)
    sms = num_sms or machine.sms.count
    tiles = row_tiles(machine, work, gemm, sms, layout=layout, tuned_rows=tuned_rows)
    tasks = gemm_tasks(machine, work, gemm, tiles, pool, begun[tiles.rank], raster="groups")
    return machine.gather(tasks.done, tiles.rank, begun)


def fused_tiles(
    machine: Machine,
    work: LayerWork,
    tiles: RowTiles,
    pool: Ints,
    ready: Ints,
    *,
    tile_order: str,
    second_pool: Ints | None = None,
    between: Callable[[Ints], Ints] | None = None,
) -> Ints:
    """Run both GEMMs of each row tile as soon as it is ready.

    Parameters
    ----------
    ready
        (tile,): task after which the tile's rows are complete.
    tile_order
        ``"expert"``: among ready tiles, those of one expert run together. ``"arrival"``: tiles run
        in the order in which they became ready, so that experts alternate.
    second_pool
        (rank,): resource of the SMs of the second GEMM, if they are not those of the first.
    between
        Turns (tile,) ends of the first GEMM into the tasks that its tiles wait for in the second.

    Returns
    -------
    (tile,) marks of the second GEMM's end.
    """
    priority = tiles.expert if tile_order == "expert" else None
    order = np.zeros_like(tiles.expert) if priority is None else priority
    ready = cast_tiles(machine, work, tiles.rank, tiles.moved_rows, pool, ready, order).done
    inputs = None
    for gemm in (Gemm.first(work, fused_activation=True), Gemm.second(work)):
        tasks = gemm_tasks(
            machine, work, gemm, tiles, pool, ready, inputs=inputs, priority=priority
        )
        ready, inputs = tasks.done, tasks.outputs
        if between is not None:
            ready, between = between(ready), None
        if second_pool is not None:
            pool = second_pool
    return ready


def padded_rows(work: LayerWork, layout: str) -> Ints:
    """(rank,): rows that a kernel between the GEMMs works on, including a layout's padding."""
    rows = work.rows_of_expert
    if layout in PADDED:
        rows = -(-rows // CONTIGUOUS_ROWS) * CONTIGUOUS_ROWS
    return np.bincount(work.placement.expert_rank, rows, work.num_ranks).astype(np.int64)


def activation_bytes(work: LayerWork, layout: str = "plain", *, quantises: bool = True) -> Ints:
    """(rank,): bytes that an activation kernel reads and writes in HBM.

    Forward, it reads GEMM-1's output and writes GEMM-2's input. Backward, it reads the gradient of
    that input and GEMM-1's output, and writes the gradient of the latter and once more the input,
    which the weight gradient needs.

    Parameters
    ----------
    layout
        See `gemm_kernel`.
    quantises
        Whether it writes the operands' type, and not what a kernel behind it makes them of.
    """
    rows = padded_rows(work, layout)
    shape, result = work.shape, work.precision.result_bytes
    element = element_bytes(work) if quantises else result
    if work.is_backward:
        read = (shape.intermediate + shape.gemm1_columns) * result
        return rows * (read + (shape.gemm1_columns + shape.intermediate) * element)
    return rows * (shape.gemm1_columns * result + shape.intermediate * element)


def quantisation_bytes(work: LayerWork, layout: str = "plain") -> Ints:
    """(rank,): bytes that a kernel reads and writes which quantises what the activation wrote."""
    shape, types = work.shape, work.precision
    widths = (
        (shape.intermediate, shape.gemm1_columns) if work.is_backward else (shape.intermediate,)
    )
    each = sum(types.token_row_bytes(width) + types.operand_row_bytes(width) for width in widths)
    return padded_rows(work, layout) * each


def separate_kernels(
    machine: Machine,
    work: LayerWork,
    pool: Ints,
    after: Ints,
    *,
    layout: str = "plain",
    num_sms: int = 0,
    quantises_apart: bool = False,
) -> Ints:
    """Run the experts as kernels one after the other on every rank: (rank,) marks of their end.

    Forward, these are GEMM-1, activation and GEMM-2. Backward, in the order of automatic
    differentiation, they are the input and weight gradients of the down projection, the activation,
    and the input and weight gradients of the up projection.

    Parameters
    ----------
    quantises_apart
        Whether FP8 operands of the second GEMM are made by a kernel behind the activation.
    """
    apart = quantises_apart and work.precision.gemm == "fp8"
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    done = gemm_kernel(machine, work, first, pool, after, layout=layout, num_sms=num_sms)
    if work.is_backward:
        done = weight_gradient_kernel(machine, work, DOWN, pool, done, num_sms)
    activated = activation_bytes(work, layout, quantises=not apart)
    done = machine.memory_kernel(Kind.ACTIVATION, activated, done)
    if apart:
        quantised = quantisation_bytes(work, layout)
        done = machine.memory_kernel(Kind.ACTIVATION, quantised, done, QUANTISATION)
    done = gemm_kernel(machine, work, second, pool, done, layout=layout, num_sms=num_sms)
    if work.is_backward:
        done = weight_gradient_kernel(machine, work, UP, pool, done, num_sms)
    return done
