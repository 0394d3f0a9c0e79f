"""Thread blocks that walk through a buffer, and when their ranks meet.

Every thread of a block has one access of 16 bytes under way, or one to each peer; when it is done
the thread goes on to where its grid's next wave begins. So a few blocks are paced by the way there
and back, and more than fill the links change nothing.

A walk is added in *rounds*: what blocks that run in step have under way is one message. Where a
buffer takes many waves a round stands for several. It takes as long as their ways there and back
one after the other, or as its bytes on the ports, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.collectives.algorithm import Way
from replay.model.collectives.blocks import KernelBlocks
from replay.model.collectives.ring_chunks import share_of

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Ints, Ranks, Tasks
    from replay.model.collectives.algorithm import CollectiveCall
    from replay.model.machine.kinds import Kind
    from replay.model.machine.times import Stored, Time

ACCESS_BYTES = 16  # of a thread: a vector of four words
LANES, MESSAGES = 8, 64
"""Blocks, or groups of blocks in step, that are told apart: 8, or more where few ranks make that
64 messages of a rank in a round. A message passes one port after the other, as its packets do not;
the finer they are, the less of a round trip that is."""
MOST_ROUNDS = 16


@dataclass(frozen=True)
class BlockGrid:
    """Thread blocks of a kernel.

    Attributes
    ----------
    blocks
        Most of them; a short buffer has fewer.
    threads
        Of a block.
    spreads
        Whether all blocks share what there is, however little; without it a block takes a whole
        wave before another one has anything.
    """

    blocks: int
    threads: int
    spreads: bool = False

    @property
    def wave_bytes(self) -> int:
        """Bytes of the buffer that a block has under way."""
        return self.threads * ACCESS_BYTES

    def num_busy(self, nbytes: int) -> int:
        """Blocks that find something to do in so many bytes."""
        least = ACCESS_BYTES if self.spreads else self.wave_bytes
        return max(1, min(self.blocks, -(-nbytes // least)))


@dataclass(frozen=True)
class Style:
    """Style in which a library launches a kernel.

    Attributes
    ----------
    grid
        Its thread blocks.
    meets_before
        Whether all ranks meet before the first access: nobody reads what is not written yet.
    meets_after
        Whether all ranks meet behind the last: nobody goes on while others still write or read.
    """

    grid: BlockGrid
    meets_before: bool = True
    meets_after: bool = True

    def with_blocks(self, blocks: int | None) -> Style:
        """The same with at most so many blocks; None is what the library takes."""
        return self if blocks is None else replace(self, grid=replace(self.grid, blocks=blocks))

    def ways(
        self,
        name: str,
        call: CollectiveCall,
        nbytes: int,
        add: Callable[[CollectiveCall, Ints], Ints],
    ) -> list[Way]:
        """The one way of an algorithm: a kernel that `add` adds for a call.

        Parameters
        ----------
        nbytes
            What the blocks of a rank walk through.
        """
        return [Way(name, self.with_blocks(call.blocks).grid.num_busy(nbytes), 0, partial(add, call))]


class Items(NamedTuple):
    """Groups of blocks that run in step, in one round.

    Attributes
    ----------
    rank
        (item,): the rank of the blocks.
    nbytes
        (item,): bytes of the buffer.
    after
        (item,): tasks behind which they begin.
    """

    rank: Ranks
    nbytes: Bytes
    after: Tasks


@dataclass(frozen=True)
class BlockWork:
    """Work of a kernel's blocks on their bytes, wave for wave.

    Attributes
    ----------
    kind
        What the SMs do.
    busy
        Time of an SM for a block's bytes of the buffer.
    touched
        Bytes of each GPU's memory that are read or written for each byte that its blocks walk
        through, by all ranks together.
    load
        Adds the loads of a round: (item,) tasks at which they have come. None for a kernel that
        only stores.
    store
        Adds the stores of a round behind (item,) tasks of the SMs: (item,) tasks at which all is
        visible. None for a kernel that only loads.
    trips
        Ways there and back, one after the other, that a wave waits for.
    """

    kind: Kind
    busy: Callable[[int], Time]
    touched: int
    load: Callable[[Items], Ints] | None = None
    store: Callable[[Items, Ints], Ints] | None = None
    trips: int = 1


class WalkTasks(NamedTuple):
    """Tasks of a walk: (rank,) the last task of a rank's blocks; (rank,) all its data arrived."""

    left: Ints
    arrived: Tasks


class Kernel:
    """One kernel of all ranks.

    Parameters
    ----------
    call
        What it is asked for.
    style
        How its library launches it, where the call does not say how many blocks.
    nbytes
        What the blocks of a rank walk through.
    """

    def __init__(self, call: CollectiveCall, style: Style, nbytes: int) -> None:
        self.machine, self.kinds, self.payload = call.machine, call.kinds, call.payload
        self.nbytes = nbytes
        self._style = style.with_blocks(call.blocks)
        self._used = self._style.grid.num_busy(nbytes)
        self._blocks = KernelBlocks(call.machine, call.kinds, self._used, call.beside)

    @property
    def block_bytes(self) -> int:
        """Bytes of the block that has most."""
        return -(-self.nbytes // self._used)

    def begin(self, begun: Tasks) -> Tasks:
        """Take the SMs, and meet where the library does: (rank,) tasks."""
        started = self._blocks.begin(begun)
        return self.meet(started, stored="nothing") if self._style.meets_before else started

    def meet(self, after: Tasks, *, stored: Stored) -> Tasks:
        """Let all ranks meet: (rank,) tasks.

        Parameters
        ----------
        stored
            What they stored into others' memory.
        """
        return self.machine.sync.barrier(self.kinds, after, stored=stored)

    def end(self, walked: WalkTasks, *, stored: Stored) -> Tasks:
        """Meet where the library does, and give the SMs back: (rank,) last tasks; see `meet`."""
        ended = self.machine.gather(walked.arrived, self.machine.ranks, walked.left)
        return self.give_back(self.meet(ended, stored=stored) if self._style.meets_after else ended)

    def give_back(self, ended: Tasks) -> Tasks:
        """Give the SMs back: (rank,) last tasks."""
        return self._blocks.end(ended)

    def walk(self, begun: Tasks, work: BlockWork) -> WalkTasks:
        """Let every rank's blocks walk through the bytes.

        Threads ask for their next bytes as soon as the last have come. What an SM does with a round
        is behind what it does with the round before, and threads do not get ahead of it by more
        than one.

        Parameters
        ----------
        begun
            (rank,): behind which a rank's blocks begin.
        """
        machine = self.machine
        lanes = min(self._used, max(LANES, MESSAGES // machine.num_ranks))
        wave = self._style.grid.wave_bytes
        waves = max(1, -(-self.nbytes // (self._used * wave)))
        rounds = min(waves, MOST_ROUNDS)
        of_block = min(wave, self.block_bytes)
        of_wave = work.busy(of_block)
        # On the way back a wave's bytes are those of all ranks: each asks all of them, or some in turn.
        asked = machine.num_ranks * of_block * -(-self._used // lanes) // max(1, work.trips)
        trip = machine.costs.remote_load() + machine.costs.entering(asked)
        rank = np.tile(machine.ranks, lanes)
        sizes = [share_of(self._used, lane, lanes) for lane in range(lanes)]
        blocks = np.repeat(np.array(sizes, np.int64), machine.num_ranks)
        at, busy, done = np.tile(begun, lanes), np.zeros(0, np.int64), []
        for index in range(rounds):
            of_lane = [share_of(share_of(self.nbytes, lane, lanes), index, rounds) for lane in range(lanes)]
            together = share_of(waves, index, rounds)
            items = Items(rank, np.repeat(np.array(of_lane, np.int64), machine.num_ranks), at)
            loaded = at if work.load is None else work.load(items)
            before, free = busy, [loaded]
            busy = self._blocks.work(work.kind, together * of_wave, loaded, rank=rank, blocks=blocks)
            stored = busy if work.store is None else work.store(items, busy)
            touched = self._blocks.touch(work.touched * items.nbytes, at, rank=rank)
            done.append(self._blocks.both(stored, touched, rank))
            if len(before):
                machine.order(before, busy)
                free.append(before)
            if together > 1:
                # Waves that are one message still go there and back one after the other.
                paced = machine.delay(self.kinds.sync, together * work.trips * trip, at, rank)
                free.append(paced)
            at = self._behind(rank, free)
        all_done = np.concatenate(done)
        of_task = np.tile(machine.ranks, len(all_done) // machine.num_ranks)
        return WalkTasks(machine.gather(busy, rank, begun), machine.gather(all_done, of_task, begun))

    def _behind(self, rank: Ranks, tasks: list[Tasks]) -> Tasks:
        """(item,) tasks behind several (item,) each."""
        if len(tasks) == 1:
            return tasks[0]
        behind = self.machine.mark(rank, tasks[0])
        for others in tasks[1:]:
            self.machine.order(others, behind)
        return behind
