"""Thread blocks of one kernel of a collective: the SMs that they hold, the memory that they share.

A kernel that runs alone has all SMs and all of device memory for itself. Its blocks then cost time
where they are the limit, and nothing else can wait for them. A kernel beside others takes its SMs
out of those that are held at the same time (`replay.machine.sms.Split`), keeps them from its
beginning to its end, whatever it waits for in between, and reads and writes device memory in turn
with the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from replay.machine.kinds import Kind, PhaseKinds
    from replay.machine.machine import Ints, Machine
    from replay.machine.sms import Split
    from replay.machine.times import Time

HELD = "blocks of collectives"
"""Name of the SMs of kernels that run beside others; one such kernel follows another."""


class Blocks:
    """The blocks of one kernel on every rank.

    Parameters
    ----------
    count
        Of each rank; each has an SM.
    beside
        SMs that are held at the same time; None for a kernel that runs alone.
    """

    def __init__(
        self, machine: Machine, kinds: PhaseKinds, count: int, beside: Split | None
    ) -> None:
        self._machine, self._kinds = machine, kinds
        self.count = count
        self._beside = beside

    @property
    def alone(self) -> bool:
        """Whether no other kernel runs at the same time."""
        return self._beside is None

    def begin(self, begun: Ints) -> Ints:
        """Take the SMs, once they are free: (rank,) tasks at which the kernel has them."""
        if self._beside is None:
            return begun
        self._sms = self._beside.pool(HELD, self.count)
        self._claims = self._machine.mark(self._machine.ranks, begun)
        return self._claims

    def end(self, done: Ints) -> Ints:
        """Give the SMs back: (rank,) last tasks."""
        if self._beside is None:
            return done
        machine = self._machine
        ends = machine.mark(machine.ranks, done)
        kernels = machine.buffers.unnamed(f"{HELD} {{rank}}, {self.count}", 1)
        machine.graph.take(self._claims, kernels, 1, released_by=ends)
        return ends

    def work(self, kind: Kind, time: Time, *after: Ints) -> Ints:
        """Do the same in all blocks of every rank at once: (rank,) tasks.

        Parameters
        ----------
        time
            Of each block.
        after
            (rank,) tasks each, for all of which it waits.
        """
        machine, ranks = self._machine, self._machine.ranks
        if self._beside is None:
            done = machine.delay(kind, time, after[0])
            self._wait(after[1:], done)
            return done
        every = np.repeat(ranks, self.count)
        busy = machine.serve(self._sms[every], time, kind=kind, rank=every, after=after[0][every])
        for tasks in after[1:]:
            machine.graph.edges(tasks[every], busy)
        return machine.gather(busy, every, after[0])

    def touch(self, nbytes: int, *after: Ints) -> Ints | None:
        """Read and write device memory beside others: (rank,) tasks, none of a kernel alone.

        Parameters
        ----------
        nbytes
            Of each rank, read and written together.
        after
            See `work`.
        """
        if self._beside is None:
            return None
        machine = self._machine
        every = np.full(machine.num_ranks, nbytes)
        done = machine.stream(self._kinds.memory, every, machine.ranks, after[0])
        self._wait(after[1:], done)
        return done

    def both(self, one: Ints, other: Ints | None) -> Ints:
        """Wait for two things: (rank,) tasks."""
        if other is None:
            return one
        met = self._machine.mark(self._machine.ranks, one)
        self._wait((other,), met)
        return met

    def _wait(self, earlier: tuple[Ints, ...], tasks: Ints) -> None:
        for each in earlier:
            self._machine.graph.edges(each, tasks)
