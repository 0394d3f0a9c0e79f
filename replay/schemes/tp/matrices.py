"""Products of a layer as tiles on SMs: whole kernels, and tiles that wait for their rows.

A weight matrix of a GPU is to the tiles of `replay.model.compute` what an expert is: the GPU has
one, or one for each expert that it holds a slice of.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.footprints import mma_sync_block, resident_blocks
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import Raster, TileTasks, gemm_kernel, gemm_tasks
from replay.model.compute.matrix import matrix_kernel
from replay.model.compute.row_tiles import RowTiles, row_tiles
from replay.model.compute.weight_gradients import UP, weight_gradient_kernel
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.placement import place
from replay.model.work.precision import Precision
from replay.model.work.transformer_layer import BF16, Product

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.machine.host import Bools
    from replay.model.machine.kinds import Kind
    from replay.model.machine.machine import Machine

__all__ = ["TiledProduct", "gradient", "kernel", "resident_blocks", "tiles_of", "work_of"]


@lru_cache(maxsize=64)
def work_of(num_ranks: int, product: Product) -> LayerWork:
    """The rows of a product as those of experts: (rank x group,) experts, each with its rows."""
    ranks, groups = np.arange(num_ranks), product.groups
    group = np.arange(product.rows) % groups
    ids = (ranks[:, None] * groups + np.sort(group)).reshape(-1, 1)
    return LayerWork(
        ids.astype(np.int32),
        np.repeat(ranks, product.rows).astype(np.int32),
        place("contiguous", num_ranks * groups, num_ranks),
        ExpertShape(product.k, product.n, gated=False),
        Precision("bf16"),
    )


def gemm_of(product: Product, kind: Kind) -> Gemm:
    """The GEMM of a product."""
    return Gemm(product.n, product.k, kind, product.n * BF16)


def kernel(machine: Machine, product: Product, kind: Kind, pool: Pools, after: Tasks) -> Ints:
    """Run a product as a kernel of its own: (rank,) marks of its end.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs, all that compute.
    """
    work, gemm = work_of(machine.num_ranks, product), gemm_of(product, kind)
    if product.groups > 1:
        return gemm_kernel(machine, work, gemm, pool, after).end
    return matrix_kernel(machine, work, gemm, pool, after)


def gradient(machine: Machine, product: Product, pool: Pools, after: Tasks) -> Ints:
    """Make the gradient of a product's weights in a kernel: (rank,) marks of its end."""
    return weight_gradient_kernel(machine, work_of(machine.num_ranks, product), UP, pool, after)


def blocks_on_an_sm(machine: Machine, tiles: RowTiles) -> int:
    """Count the blocks of a product that are on an SM at a time, by the size of their tiles."""
    block = mma_sync_block(int(tiles.block_m[0]), int(tiles.block_n[0]))
    return resident_blocks(machine, block)


class TiledProduct(NamedTuple):
    """A product in tiles.

    Attributes
    ----------
    tiles
        Row tiles of all GPUs: their `rank` and `rows`, in order of the rows of each GPU.
    tasks
        Tasks of the column tiles, and (tile,) marks of complete row tiles.
    first_row
        (tile,): number of a row tile's first row among those of its GPU.
    columns
        (task,): columns of the column tile.
    """

    tiles: RowTiles
    tasks: TileTasks
    first_row: Ints
    columns: Ints


def cut(machine: Machine, product: Product, kind: Kind, num_sms: int) -> tuple[RowTiles, Ints]:
    """Row tiles of a product for so many SMs, and (tile,) the first row of each on its GPU."""
    work = work_of(machine.num_ranks, product)
    layout = "matrix" if product.groups == 1 else "plain"
    tiles = row_tiles(machine, work, gemm_of(product, kind), num_sms, layout=layout)
    before = np.cumsum(tiles.rows) - tiles.rows
    is_first = np.searchsorted(tiles.rank, np.arange(machine.num_ranks))
    return tiles, before - before[is_first][tiles.rank]


def tiles_of(
    machine: Machine,
    product: Product,
    kind: Kind,
    pool: Pools,
    after: Tasks,
    *,
    cuts: tuple[RowTiles, Ints],
    raster: Raster = "groups",
    priority: Ints | None = None,
    kept: Bools | None = None,
    steps: Ints | None = None,
) -> TiledProduct:
    """Add the tiles of a product to a kernel that has begun.

    Parameters
    ----------
    pool
        (rank,): resource of the SMs that compute.
    after
        (tile,): task that each row tile waits for: its rows are there, and its kernel has begun.
    cuts
        Row tiles and their first rows, as `cut` gives them.
    raster, priority, kept, steps
        See `replay.model.compute.gemm_tiles.gemm_tasks`.
    """
    tiles, first_row = cuts
    work = work_of(machine.num_ranks, product)
    tasks = gemm_tasks(
        machine,
        work,
        gemm_of(product, kind),
        tiles,
        pool,
        after,
        raster=raster,
        priority=priority,
        kept=kept,
        steps=steps,
        routed=False,
    )
    block_n = tiles.block_n[tiles.rank[tasks.column_tile]]
    columns = np.minimum(block_n, product.n - tasks.column_index * block_n)
    return TiledProduct(tiles, tasks, first_row, columns)
