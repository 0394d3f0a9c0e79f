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
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.collectives.ring_chunks import share_of

if TYPE_CHECKING:
    from replay.machine.kinds import Kind, PhaseKinds
    from replay.machine.machine import Ints, Machine
    from replay.machine.times import Time

ACCESS_BYTES = 16  # of a thread: a vector of four words
MOST_LANES = 8  # blocks, or groups of blocks in step, that are told apart
MOST_ROUNDS = 16


@dataclass(frozen=True)
class Grid:
    """Thread blocks of a kernel.

    Attributes
    ----------
    blocks
        Most of them; a short buffer has fewer.
    threads
        Of a block.
    """

    blocks: int
    threads: int

    @property
    def wave_bytes(self) -> int:
        """Bytes of the buffer that a block has under way."""
        return self.threads * ACCESS_BYTES

    def used(self, nbytes: int) -> int:
        """Blocks that find something to do in so many bytes."""
        return max(1, min(self.blocks, -(-nbytes // self.wave_bytes)))


@dataclass(frozen=True)
class Style:
    """How a library launches a kernel.

    Attributes
    ----------
    grid
        Its thread blocks.
    meets_before
        Whether all ranks meet before the first access: nobody reads what is not written yet.
    meets_after
        Whether all ranks meet behind the last: nobody goes on while others still write or read.
    """

    grid: Grid
    meets_before: bool = True
    meets_after: bool = True


class Items(NamedTuple):
    """What blocks in step do in a round.

    Attributes
    ----------
    rank
        (item,): who they belong to.
    nbytes
        (item,): bytes of the buffer.
    after
        (item,): tasks behind which they begin.
    """

    rank: Ints
    nbytes: Ints
    after: Ints


class Walked(NamedTuple):
    """Tasks of a walk: (rank,) the last task of a rank's blocks; (rank,) all its data arrived."""

    left: Ints
    arrived: Ints


@dataclass(frozen=True)
class Work:
    """What the blocks of a kernel do with their bytes, wave for wave.

    Attributes
    ----------
    load
        Adds the loads of a round: (item,) tasks at which they have come. None for a kernel that
        only stores.
    busy
        Time of an SM for a block's bytes of the buffer.
    kind
        What the SMs do.
    store
        Adds the stores of a round behind (item,) tasks of the SMs: (item,) tasks at which all is
        visible. None for a kernel that only loads.
    trips
        Ways there and back, one after the other, that a wave waits for.
    """

    load: Callable[[Items], Ints] | None
    busy: Callable[[int], Time]
    kind: Kind
    store: Callable[[Items, Ints], Ints] | None = None
    trips: int = 1


def walk(
    machine: Machine, kinds: PhaseKinds, grid: Grid, nbytes: int, begun: Ints, work: Work
) -> Walked:
    """Let every rank's blocks walk through so many bytes.

    Threads ask for their next bytes as soon as the last have come. What an SM does with a round is
    behind what it does with the round before, and threads do not get ahead of it by more than one.

    Parameters
    ----------
    begun
        (rank,): behind which a rank's blocks begin.
    """
    used = grid.used(nbytes)
    lanes = min(used, MOST_LANES)
    waves = max(1, -(-nbytes // (used * grid.wave_bytes)))
    rounds = min(waves, MOST_ROUNDS)
    of_wave = work.busy(min(grid.wave_bytes, -(-nbytes // used)))
    of_trips = work.trips * machine.costs.remote_load()
    rank = np.tile(machine.ranks, lanes)
    at, sms, done = np.tile(begun, lanes), None, []
    for index in range(rounds):
        of_lane = [share_of(share_of(nbytes, lane, lanes), index, rounds) for lane in range(lanes)]
        of_item = np.repeat(np.array(of_lane, np.int64), machine.num_ranks)
        together = share_of(waves, index, rounds)
        items = Items(rank, of_item, at)
        loaded = at if work.load is None else work.load(items)
        busy = machine.delay(work.kind, together * of_wave, loaded, rank)
        done.append(busy if work.store is None else work.store(items, busy))
        free = [loaded]
        if sms is not None:
            machine.graph.edges(sms, busy)
            free.append(sms)
        if together > 1:
            # Waves that are one message still go there and back one after the other.
            free.append(machine.delay(kinds.sync, together * of_trips, at, rank))
        at, sms = _behind(machine, rank, free), busy
    all_done = np.concatenate(done)
    of_task = np.tile(machine.ranks, len(all_done) // machine.num_ranks)
    left = begun if sms is None else machine.gather(sms, rank, begun)
    return Walked(left, machine.gather(all_done, of_task, begun))


def _behind(machine: Machine, rank: Ints, tasks: list[Ints]) -> Ints:
    """(item,) tasks behind several (item,) each."""
    if len(tasks) == 1:
        return tasks[0]
    marks = machine.mark(rank, tasks[0])
    for others in tasks[1:]:
        machine.graph.edges(others, marks)
    return marks


def meet_before(machine: Machine, kinds: PhaseKinds, style: Style, begun: Ints) -> Ints:
    """All ranks meet, if the library lets them: (rank,) tasks."""
    return machine.sync.barrier(kinds, begun) if style.meets_before else begun


def meet_after(
    machine: Machine, kinds: PhaseKinds, style: Style, walked: Walked, *, stored: bool
) -> Ints:
    """All ranks meet, if the library lets them: (rank,) tasks.

    Parameters
    ----------
    stored
        Whether they stored into others' memory: flags that tell of it leave when all has been
        acknowledged.
    """
    ended = machine.gather(walked.arrived, machine.ranks, walked.left)
    if not style.meets_after:
        return ended
    return machine.sync.barrier(kinds, ended, behind_stores=stored)
