"""Rings of T3: a piece goes on when the tracker has seen all stores into it.

The ring of chunk c begins at GPU c + 1 and ends at its owner. GPU r therefore makes the chunks
r - 1, r - 2, ... and its own last: whatever comes from its predecessor meets what it has just made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.schemes.tp.base import GATHER, REDUCE

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Pools, Ranks, Tasks
    from replay.schemes.tp.overlap.pieces import RowPieces
    from replay.schemes.tp.t3.engines import Engines


BEFORE_TILES = -1  # the block that has made a sum goes on with it, before another has its SM


def turn(rank: Ranks, chunk: Ints, num_ranks: int) -> Ints:
    """Turn in which a GPU makes a chunk, 0 first; the chunk that it owns is the last."""
    return (rank - 1 - chunk) % num_ranks


def reduce(
    engines: Engines, pieces: RowPieces, made: Ints, *, pool: Pools | None, near_memory: bool
) -> tuple[Ints, Ints]:
    """Add sums up along the ring.

    Parameters
    ----------
    made
        (rank, piece): the GPU's own sum of a piece is made, and stored but for those below.
    pool
        (rank,): SMs whose tiles store what a GPU makes in its first turn into its successor's
        memory, as they are made. None if all sums are in their own GPU's memory.
    near_memory
        Whether memories add. Otherwise the second of two stores into a piece reads the first.

    Returns
    -------
    (hop, piece) tasks with which a GPU's memory has the sum of its own part and of what came, in
    the last hop that of all GPUs; and the GPUs.
    """
    machine, n, each = engines.machine, engines.machine.num_ranks, np.arange(len(pieces))
    rows, row_bytes = pieces.rows, pieces.row_bytes
    src = (pieces.chunk + 1) % n
    there = made[src, each]
    added, ranks = [], []
    for hop in range(n - 1):
        dst = (src + 1) % n
        if hop == 0 and pool is not None:
            issued = machine.serve(
                pool[src],
                machine.costs.sm_store(pieces.nbytes),
                kind=REDUCE.send,
                rank=src,
                after=there,
                priority=BEFORE_TILES,
            )
            sent = machine.transfers.store(
                REDUCE,
                src,
                dst,
                row_bytes,
                issued,
                rows=rows,
                on=pool[src],
            )
            written = machine.stream(REDUCE.memory, pieces.nbytes, dst, sent.arrived)
        else:
            written = engines.copy(REDUCE, src, dst, rows, row_bytes, there)
        there = engines.wait(dst, written, made[dst, each])
        if not near_memory:
            there = machine.stream(REDUCE.memory, pieces.nbytes, dst, there)
        added.append(there)
        ranks.append(dst)
        src = dst
    return np.array(added), np.array(ranks)


def gather(engines: Engines, pieces: RowPieces, after: Tasks) -> Tasks:
    """Hand rows round the ring: (rank, piece) tasks, the piece is in the GPU's memory.

    Parameters
    ----------
    after
        (rank,): the rows that a GPU owns are there.
    """
    n, each = engines.machine.num_ranks, np.arange(len(pieces))
    there = np.empty((n, len(pieces)), np.int64)
    src = pieces.chunk
    there[src, each] = after[src]
    for _ in range(n - 1):
        dst = (src + 1) % n
        there[dst, each] = engines.copy(GATHER, src, dst, pieces.rows, pieces.row_bytes, there[src, each])
        src = dst
    return there
