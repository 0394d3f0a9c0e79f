"""A kernel for one matrix, whose inner dimension is cut into slices where it has few tiles.

With fewer tiles than SMs a library lets several SMs multiply one tile, each a slice of the inner
dimension. Each writes an FP32 sum of its own for the whole tile, and a second kernel adds these and
writes the result. The sums stay in the L2 cache: cuBLAS's workspace for them is smaller. Which tile
and how many slices is the library's choice (:meth:`hwmodel.Compute.gemm_tiles`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from collections.abc import Collection

    from hwmodel import TileGrid
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.compute.gemm import Gemm
    from replay.model.machine.machine import Machine
    from replay.model.machine.notes import Read
    from replay.model.work.layer import LayerWork


def matrix_kernel(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    pool: Pools,
    after: Tasks,
    *,
    launched_early: bool = False,
    found: Collection[Read] = (),
) -> Ints:
    """Multiply the rows of each rank's only expert by its weights.

    Parameters and result are those of :func:`replay.model.compute.gemm_tiles.gemm_kernel`.
    """
    grids = [
        machine.system.compute.gemm_tiles(
            work.rows_of_expert[experts],
            gemm.n,
            gemm.k,
            work.precision.operands,
            num_sms=machine.sms.compute,
            split_k=True,
        )
        for experts in work.experts_of_rank
    ]
    if any(grid.slices > 1 for grid in grids):
        begun = machine.kernel(after, KIND_NAMES[gemm.kind], kind=gemm.kind, has_gap=not launched_early)
        return _multiply_slices(machine, work, gemm, grids, pool, begun, found)
    return gemm_kernel(
        machine,
        work,
        gemm,
        pool,
        after,
        launched_early=launched_early,
        layout="matrix",
        found=found,
    ).end


def _multiply_slices(
    machine: Machine,
    work: LayerWork,
    gemm: Gemm,
    grids: list[TileGrid],
    pool: Pools,
    begun: Tasks,
    found: Collection[Read],
) -> Ints:
    """Multiply the slices of every tile, then add their sums: (rank,) marks of the end."""
    assert all(grid.slices > 1 for grid in grids), "matrices of all ranks are alike"
    compute, number_type = machine.system.compute, work.precision.operands
    ends, adds, written = [], [], []
    for rank, grid in enumerate(grids):
        stores, add = compute.sums_ps(grid)
        inner = grid.slice_inner(gemm.k)
        tile, column, part = (
            index.ravel() for index in np.indices((grid.num_row_tiles, grid.column_tiles, grid.slices))
        )
        rows, columns = grid.rows_in_tile, grid.columns_in_tile
        durations = np.stack(
            [compute.tile_ps(rows, int(width), inner, number_type, block_m=grid.block_m) for width in columns], axis=1
        )  # (row tile, column tile)
        where = np.full(len(tile), rank)
        products = machine.graph.add(
            len(tile),
            resource=pool[where],
            duration_ps=durations[tile, column] + stores,
            kind=gemm.kind,
            rank=where,
            after=begun[where],
        )
        # Each slice of the weights' columns and of the rows is a block of its own.
        length = np.minimum(inner, gemm.k - part * inner)
        values = compute.weight_bytes(1, 1, number_type)
        blocks = machine.l2.new_blocks((grid.column_tiles + grid.num_row_tiles) * grid.slices)
        first_row = blocks + grid.column_tiles * grid.slices
        machine.l2.read(
            "weights",
            products,
            where,
            blocks + column * grid.slices + part,
            values * columns[column] * length,
            is_found="weights" in found,
        )
        machine.l2.read(
            "activations",
            products,
            where,
            first_row + tile * grid.slices + part,
            values * rows[tile] * length,
            is_found="activations" in found,
        )
        ends.append(machine.gather(products, where, begun)[rank])
        adds.append(add)
        written.append(int(rows.sum()) * gemm.out_bytes)
    added = machine.delay(gemm.kind, Time(np.array(adds)), np.array(ends))
    return machine.memory_kernel(gemm.kind, np.array(written), added)
