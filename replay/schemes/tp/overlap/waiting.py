"""Products whose tiles begin as their rows come."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.gemm_tiles import GROUP_TILES
from replay.model.machine.block_scheduler import BlockScheduler
from replay.schemes.tp import matrices
from replay.schemes.tp.overlap.pieces import chunks_of, pieces_between

if TYPE_CHECKING:
    from collections.abc import Callable

    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.kinds import Kind
    from replay.model.machine.machine import Machine
    from replay.model.work.transformer_layer import Product, TensorLayer
    from replay.schemes.tp.overlap.pieces import RowPieces


class InOrder(NamedTuple):
    """Row tiles in the order in which GPUs take them.

    Attributes
    ----------
    cuts
        Row tiles and their first rows; see `replay.schemes.tp.matrices.cut`.
    run
        (tile,): number of the run of tiles that begin together, over all GPUs.
    """

    cuts: tuple[RowTiles, Ints]
    run: Ints


def in_order(machine: Machine, layer: TensorLayer, product: Product, kind: Kind, place: Callable[..., Ints]) -> InOrder:
    """Sort row tiles, and cut them into runs that begin together.

    A kernel reads weights once for the tiles that it goes through together. These begin when the
    rows of all of them are there: `GROUP_TILES[0]` tiles of one place at most.

    Parameters
    ----------
    place
        Function of ranks, chunks and first rows (tile,) each: places (tile,) among the tiles of a
        GPU, smaller first; tiles of one place follow one another.
    """
    tiles, first_row = matrices.cut(machine, product, kind, machine.sms.compute)
    chunk = chunks_of(tiles, first_row, layer)[0]
    of = place(tiles.rank, chunk, first_row)
    order = np.lexsort((first_row, of, tiles.rank))
    tiles, first_row, of = tiles.only(order), first_row[order], of[order]
    begins = np.flatnonzero(np.diff(of, prepend=-1) | np.diff(tiles.rank, prepend=-1))
    place_in = np.arange(len(of)) - begins[np.searchsorted(begins, np.arange(len(of)), "right") - 1]
    run = np.cumsum(place_in % GROUP_TILES[0] == 0) - 1
    return InOrder((tiles, first_row), run)


def product(
    machine: Machine,
    what: Product,
    kind: Kind,
    pool: Pools,
    begun: Tasks,
    *,
    ordered: InOrder,
    pieces: RowPieces,
    there: Ints,
    tell: Callable[[Ints, Ints], Ints],
    resident_blocks: int,
) -> Ints:
    """Multiply rows as they come: (rank,) marks of the kernel's end.

    Blocks come onto the SMs run by run, and wait there.

    Parameters
    ----------
    begun
        (rank,): the kernel runs.
    there
        (rank, piece): tasks with which a piece of rows is in a GPU's memory.
    tell
        Function of ranks and marks (run,): tasks (run,) with which SMs know that rows are there.
    resident_blocks
        Blocks that an SM has at a time; 0 is as many as their tiles leave room for.
    """
    (tiles, first_row), run = ordered.cuts, ordered.run
    rank_of_run = tiles.rank[np.flatnonzero(np.diff(run, prepend=-1))]
    ready = machine.mark(rank_of_run, begun[rank_of_run])
    tile, piece = pieces_between(pieces, first_row, tiles.rows)
    machine.order(there[tiles.rank[tile], piece], ready[run[tile]])
    known = tell(rank_of_run, ready)
    tasks = matrices.tiles_of(machine, what, kind, pool, known[run], cuts=ordered.cuts).tasks
    resident = resident_blocks or matrices.blocks_on_an_sm(machine, tiles)
    grid = np.argsort(run[tasks.column_tile], kind="stable")
    rank = tiles.rank[tasks.column_tile[grid]]
    BlockScheduler(machine, machine.sms.compute, resident).hold(
        tasks.begins[grid], tasks.columns[grid], rank, begun[rank]
    )
    return machine.gather(tasks.done, tiles.rank, begun)
