"""Thread blocks of one kernel of a collective: the SMs that they hold, the memory that they share.

A kernel that runs alone has all SMs and all of device memory for itself. Its blocks then cost time
where they are the limit, and nothing else can wait for them. A kernel beside others takes its SMs
out of those that are held at the same time (`replay.model.machine.sms.Split`), keeps them from its
beginning to its end, whatever it waits for in between, and reads and writes device memory in turn
with the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.machine import IntsLike, Machine
    from replay.model.machine.sms import Split
    from replay.model.machine.times import Time

HELD = "blocks of collectives"
"""Name of the SMs of kernels that run beside others; one such kernel follows another."""


def held_by(collective: str) -> str:
    """Name of the SMs of one collective's kernels: another's may run beside them."""
    return f"{HELD}: {collective}"


class PipelinedKernel(NamedTuple):
    """A kernel whose chunks another one makes or takes meanwhile.

    Attributes
    ----------
    ends
        (rank,): last tasks.
    known
        (rank, owner, ..., part): task at which a rank has a part of a chunk of an owner's share;
        -1 for what it never has.
    """

    ends: Ints
    known: Ints


class KernelBlocks:
    """The blocks of one kernel on every rank.

    Parameters
    ----------
    count
        Of each rank; each has an SM.
    beside
        SMs that are held at the same time; None for a kernel that runs alone.
    held
        Blocks that hold an SM, idle ones included; 0 for `count`.
    name
        Name of the SMs.
    """

    def __init__(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        count: int,
        beside: Split | None,
        *,
        held: int = 0,
        name: str = HELD,
    ) -> None:
        self._machine, self._kinds = machine, kinds
        self.count = count
        self._beside = beside
        self._held, self._name = held or count, name

    @property
    def alone(self) -> bool:
        """Tell whether no other kernel runs at the same time."""
        return self._beside is None

    def begin(self, begun: Tasks) -> Tasks:
        """Take the SMs, once they are free: (rank,) tasks at which the kernel has them."""
        if self._beside is None:
            return begun
        self._sms = self._beside.pool(self._name, self._held)
        self._claims = self._machine.mark(self._machine.ranks, begun)
        return self._claims

    def end(self, done: Ints) -> Tasks:
        """Give the SMs back: (rank,) last tasks."""
        if self._beside is None:
            return done
        machine = self._machine
        ends = machine.mark(machine.ranks, done)
        kernels = machine.buffers.reserve_unlisted(f"{self._name} {{rank}}, {self._held}", 1)
        machine.graph.take(self._claims, kernels, 1, released_by=ends)
        return ends

    def work(
        self,
        kind: Kind,
        time: Time,
        *after: Tasks,
        rank: Ranks | None = None,
        blocks: IntsLike | None = None,
    ) -> Tasks:
        """Do the same in all blocks of a rank at once: (task,) tasks, one per rank without `rank`.

        Parameters
        ----------
        time
            Of each block.
        after
            (task,) tasks each, for all of which it waits.
        blocks
            (task,): how many of them do so, if not all.
        """
        machine, count = self._machine, self.count if blocks is None else blocks
        of = machine.ranks if rank is None else rank
        if self._beside is None:
            done = machine.delay(kind, time, after[0], of)
            self._wait(after[1:], done)
            return done
        each = np.repeat(of, count)
        busy = machine.serve(self._sms[each], time, kind=kind, rank=each, after=np.repeat(after[0], count))
        for tasks in after[1:]:
            machine.order(np.repeat(tasks, count), busy)
        done = machine.mark(of)
        machine.order(busy, np.repeat(done, count))
        return done

    def touch(self, nbytes: IntsLike, *after: Tasks, rank: Ranks | None = None) -> Tasks | None:
        """Read and write device memory beside others: (task,) tasks, none of a kernel alone.

        Parameters
        ----------
        nbytes
            (task,) or the same for all: read and written together.
        after
            See `work`.
        """
        if self._beside is None:
            return None
        machine = self._machine
        of = machine.ranks if rank is None else rank
        done = machine.stream(self._kinds.memory, np.broadcast_to(nbytes, of.shape), of, after[0])
        self._wait(after[1:], done)
        return done

    def both(self, one: Ints, other: Ints | None, rank: Ranks | None = None) -> Tasks:
        """Wait for two things: (task,) tasks."""
        if other is None:
            return one
        met = self._machine.mark(self._machine.ranks if rank is None else rank, one)
        self._wait((other,), met)
        return met

    def _wait(self, earlier: tuple[Ints, ...], tasks: Tasks) -> None:
        for each in earlier:
            self._machine.order(each, tasks)
