"""Norms between two products of one kernel: rows whose sums are there, as blocks of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.sync import FLAG_BYTES
from replay.schemes.tp.base import REDUCE
from replay.schemes.tp.cais.rows import overlaps

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.work.transformer_layer import Norm
    from replay.schemes.tp.cais.kernels import LoadingBlocks, PushingBlocks
    from replay.schemes.tp.kernels import TensorKernels

NORM_ROWS = 8  # of a block: it takes about as long as a small tile


class NormBlocks(NamedTuple):
    """Blocks that normalise rows.

    Attributes
    ----------
    first, end
        (rank, block): the first and the last task of each block.
    follows
        (rank, block): place of the last block, on any GPU, that makes sums of the rows that the
        block of this number on any GPU works on.
    needs
        (tile,): the largest of these, of all blocks that a row tile of the second product needs.
    """

    first: Ints
    end: Ints
    follows: Ints
    needs: Ints


def normalise(kernels: TensorKernels, norm: Norm, pushing: PushingBlocks, loading: LoadingBlocks) -> NormBlocks:
    """Add the residual to rows and normalise them; tell all GPUs which can be loaded.

    A block has an SM while it waits for its sums, like every other; it comes in the grid behind
    those that make them, and before those that need its rows.
    """
    machine, layer = kernels.machine, kernels.layer
    num, per_rank = machine.num_ranks, -(-layer.own_rows // NORM_ROWS)
    home, place = np.divmod(np.arange(layer.tokens), layer.own_rows)
    block = home * per_rank + place // NORM_ROWS  # (row,)
    rank = np.repeat(machine.ranks, per_rank)

    entry = machine.mark(rank)
    complete = machine.mark(rank, entry)
    summed = machine.join(pushing.added.tasks, pushing.added.piece, pushing.cut.home)
    piece, at = overlaps(np.repeat(np.arange(len(summed)), pushing.cut.rows), block)
    machine.order(summed[piece], complete[at])
    tile, at = overlaps(pushing.part, block)
    machine.order(pushing.made[rank[at], tile], complete[at])

    seen = machine.delay(REDUCE.sync, machine.costs.poll(), complete, rank)
    nbytes = np.bincount(block) * norm.row_bytes
    worked = machine.serve(
        kernels.pool[rank],
        machine.costs.sm_copy(nbytes // 2),
        kind=Kind.BETWEEN,
        rank=rank,
        after=seen,
    )
    moved = machine.stream(REDUCE.memory, nbytes, rank, seen)
    normed = machine.mark(rank, worked)
    machine.order(moved, normed)

    group, of_row = np.unique(np.stack((loading.part, home)), axis=1, return_inverse=True)
    part, owner = group
    known = machine.mark(owner)
    member, of = overlaps(block, of_row.reshape(-1))
    machine.order(normed[member], known[of])
    told = np.repeat(known[:, None], num, axis=1)
    which, other = np.nonzero(owner[:, None] != machine.ranks)
    told[which, other] = machine.sync.flag(owner[which], other, FLAG_BYTES, known[which], stored="nothing")
    machine.order(told.T.ravel(), loading.ready[:, part].ravel())

    made = np.zeros(int(pushing.part[-1]) + 1, np.int64)  # last block of each row tile, anywhere
    np.maximum.at(made, pushing.tile, pushing.place.max(axis=0))
    follows = np.zeros(per_rank, np.int64)
    np.maximum.at(follows, at % per_rank, made[tile])
    needs = np.zeros(int(loading.part[-1]) + 1, np.int64)
    np.maximum.at(needs, part[of], follows[member % per_rank])
    return NormBlocks(entry.reshape(num, -1), worked.reshape(num, -1), np.tile(follows, (num, 1)), needs)


def blocks_to_follow(loading: LoadingBlocks, norming: NormBlocks) -> Ints:
    """(rank, block): the block of the first product that each of the second one follows.

    From the first rows on that are there, blocks of both products take turns.
    """
    order = np.argsort(loading.place, axis=1)
    step = np.arange(order.shape[1])
    needs = np.tile(norming.needs[loading.tile], (len(order), 1))
    wanted = np.take_along_axis(needs, order, axis=1) - step
    place = np.empty_like(order)
    np.put_along_axis(place, order, np.maximum.accumulate(wanted, axis=1) + step, axis=1)
    return place
