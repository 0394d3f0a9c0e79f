"""Thread blocks of one kernel on all GPUs: their order, and how GPUs keep in step.

The block scheduler gives room on SMs to blocks in the order of the grid, and a block keeps it until
it ends. With coordination a block *registers* before it can have any: an empty packet goes to the
switch, which answers all GPUs when all have registered the block. A GPU registers as many blocks
ahead as its SMs have room for, so that this takes no SM's time.

Nothing can wait in a circle: all GPUs launch blocks in the same order of time or, without
coordination, no block that is on an SM waits for one that comes later on any GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.block_scheduler import BlockScheduler

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine


class CaisGrid:
    """Blocks of one kernel.

    Parameters
    ----------
    kinds
        Phase that the packets of coordination count to.
    group_blocks
        Consecutive blocks that register together; 0 without coordination.
    resident_blocks
        Blocks that an SM has at a time.
    """

    def __init__(self, machine: Machine, kinds: PhaseKinds, group_blocks: int, resident_blocks: int) -> None:
        self._machine, self._kinds, self._group = machine, kinds, group_blocks
        self._scheduler = BlockScheduler(machine, machine.sms.compute, resident_blocks)
        self._sets: list[tuple[Ints, Ints, Ints]] = []

    def add(self, first: Ints, last: Ints, place: Ints) -> None:
        """Add blocks.

        Parameters
        ----------
        first, last
            (rank, block): first and last task of each block.
        place
            (rank, block): places in the order of the grid, smaller first.
        """
        self._sets.append((first, last, place))

    def launch(self, begun: Tasks) -> None:
        """Let the block scheduler go through all blocks after `begun` (rank,)."""
        machine, slots = self._machine, self._scheduler.slots
        columns = zip(*self._sets, strict=True)
        first, last, place = (np.concatenate(each, axis=1) for each in columns)
        order = np.argsort(place, axis=1, kind="stable")
        first, last = (np.take_along_axis(each, order, axis=1) for each in (first, last))
        count = first.shape[1]
        rank = np.repeat(machine.ranks, count)
        if self._group:
            leaders = np.arange(0, count, self._group)
            after = np.repeat(begun[:, None], len(leaders), axis=1)
            met = machine.merging.meet(self._kinds, after)
            offered = met.released[:, np.arange(count) // self._group].ravel()
        else:
            offered = begun[rank]
        claims = self._scheduler.hold(first.ravel(), last.ravel(), rank, offered)
        if self._group:
            claims, late = claims.reshape(first.shape), np.flatnonzero(leaders >= slots)
            machine.order(claims[:, leaders[late] - slots].ravel(), met.registered[:, late].ravel())
