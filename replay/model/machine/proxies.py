"""Proxies: threads of the host that post what a GPU's kernels want to send to other domains.

A kernel stores a command into a queue in pinned memory (`Costs.host_flag`). A thread takes commands
of its queues, posts a write for each, and sees to its completion, which takes it the time of a
command. A queue has only so many writes under way: its next command waits for the completion of the
oldest, and commands of other queues pass it. One queue thus carries `in_flight` writes in the time
of a command, the way there and the completion's way back, and a thread no more than one write in
the time of a command.

NCCL's proxies, which also offer buffers to senders, are in `replay.model.collectives.proxies`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.rdma import Writes
from replay.model.machine.resources import ResourceClass

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time

BY_HOST = Writes(by="host")


@dataclass(frozen=True)
class Proxies:
    """Threads that a library has for each GPU.

    Attributes
    ----------
    name
        Of the library, for reports.
    threads, queues
        Threads of a GPU, and queues that its kernels have in all; queue q is of thread q modulo
        `threads`.
    in_flight
        Writes of a queue that may be under way at a time; 0 for any number.
    command
        Time of a thread for a command.
    """

    name: str
    threads: int
    queues: int
    in_flight: int
    command: Time

    def take(self, machine: Machine, kinds: PhaseKinds, rank: Ranks, thread: Ints, after: Tasks) -> Tasks:
        """Store commands for threads of `rank`, and let them see to these: (command,) tasks.

        Parameters
        ----------
        thread
            (command,): thread of the rank.
        """
        told = machine.delay(kinds.sync, machine.costs.host_flag(), after, rank)
        return self.step(machine, kinds, rank, thread, told)

    def step(self, machine: Machine, kinds: PhaseKinds, rank: Ranks, thread: Ints, after: Tasks) -> Tasks:
        """Occupy threads of `rank` with a command each, of which they know: (command,) tasks."""
        lanes = machine.resources.once("proxies", self.name, lambda: self._threads(machine))
        lane = lanes[rank * self.threads + thread]
        return machine.serve(lane, self.command, kind=kinds.sync, rank=rank, after=after)

    def write(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        ends: tuple[Ranks, Ranks],
        queue: Ints,
        rows: Counts,
        row_bytes: tuple[int, int],
        after: Tasks,
    ) -> Tasks:
        """Write rows to other domains: (message,) tasks when they are there.

        Parameters
        ----------
        ends
            Two (message,): ranks that send and that receive.
        queue, rows
            (message,): queue of the rank that sends, and rows.
        row_bytes
            Payload of a row, and what travels with it.
        """
        posted = self.take(machine, kinds, ends[0], queue % self.threads, after)
        arrived = machine.transfers.store(
            kinds, *ends, row_bytes[0], posted, rows=rows, meta_bytes=row_bytes[1], writes=BY_HOST
        ).arrived
        self._bound(machine, ends, queue, posted, arrived)
        return arrived

    def tell(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        ways: tuple[Kind, Kind],
        ends: tuple[Ranks, Ranks],
        queue: Ints,
        nbytes: int,
        after: Tasks,
    ) -> Tasks:
        """Write a few bytes each, which are no rows: (message,) tasks when they are there.

        Parameters
        ----------
        ways
            What the messages are on their way out and in.

        See Also
        --------
        write : the other parameters.
        """
        posted = self.take(machine, kinds, ends[0], queue % self.threads, after)
        arrived = machine.sync.notify(*ends, nbytes, posted, kinds=ways, writes=BY_HOST)
        self._bound(machine, ends, queue, posted, arrived)
        return arrived

    def _threads(self, machine: Machine) -> Ints:
        """(rank x thread,): a command that may not leave holds up no other."""
        names = [f"{self.name} proxy {rank}.{i}" for rank in range(machine.num_ranks) for i in range(self.threads)]
        owners = np.repeat(machine.ranks, self.threads).tolist()
        return machine.resources.several(
            f"{self.name} proxies", ResourceClass.PROXY, names, owners, kind="part of the machine", discipline="voq"
        )

    def _bound(self, machine: Machine, ends: tuple[Ranks, Ranks], queue: Ints, posted: Tasks, arrived: Tasks) -> None:
        """Let commands wait for the completions of those before them in their queue."""
        if not self.in_flight:
            return
        pools = machine.buffers.pools(f"{self.name} writes in flight", self.in_flight, self.queues)
        back = machine.transfers.completion_time(*ends)
        completed = machine.delay(Kind.MARK, back, arrived, ends[0])
        machine.graph.take(posted, pools[ends[0], queue], released_by=completed)


def locked_adds(machine: Machine, kinds: PhaseKinds, rank: Ranks, after: Tasks) -> Tasks:
    """Let hosts add to counters in memory that they do not cache: (add,) tasks.

    A locked access to such memory locks the bus, so that a node does one at a time, and whatever
    its other CPUs do not find in their first cache waits (``scripts/locked_adds.cpp``). The threads
    that launch kernels stand still meanwhile, whenever that is; proxies, of which others go on, are
    taken not to.

    Parameters
    ----------
    rank
        (add,): the GPU of each counter.

    Raises
    ------
    UserError
        If nothing is known of the machine's hosts.
    """
    domains, time = machine.domains, machine.costs.locked_add()
    members = [domains.members(domain) for domain in range(domains.num)]

    def make() -> Ints:
        names = [f"bus {domain}" for domain in range(domains.num)]
        owners = [int(ranks[0]) for ranks in members]
        return machine.resources.several("buses", ResourceClass.PROXY, names, owners, kind="part of the machine")

    domain = domains.of(rank)
    buses = machine.resources.once("buses", "", make)
    added = machine.serve(buses[domain], time, kind=kinds.sync, rank=rank, after=after)
    for number, ranks in enumerate(members):
        of_node = added[domain == number]
        hosts = np.tile(ranks, len(of_node))
        behind = np.repeat(of_node, len(ranks))
        machine.host.halt(kinds.sync, time, hosts, behind)
    return added
