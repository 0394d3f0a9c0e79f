"""Crossing of nodes where threads of the host post what warps want to send.

A warp stores a command behind a fence of system scope, and goes on. At the other end a thread sees
what arrives, and moves the counter on that the kernels poll. Room comes back chunk by chunk,
whoever waits for it. Whose threads they are, and where counters lie, is in `uccl` and
`nvshmem_proxy`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import DISPATCH, flags_of
from replay.schemes.ep.deepep.transport import COUNTER_BYTES, SLEEP_NS, WarpTransport

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.proxies import Proxies
    from replay.model.machine.times import Time
    from replay.schemes.ep.deepep.crossings import Crossings


class HostTransport(WarpTransport):
    """Writes that threads of the host post."""

    signals = False  # whether the counter's addition is a message of its own, beside the rows

    @abstractmethod
    def proxies(self, machine: Machine) -> Proxies:
        """Threads of each GPU."""

    @abstractmethod
    def poll(self, machine: Machine) -> Time:
        """Time until a GPU sees that a counter has moved on."""

    @abstractmethod
    def add(self, machine: Machine, kinds: PhaseKinds, rank: Ranks, arrived: Tasks) -> Tasks:
        """Let hosts of `rank` (add,) add what has arrived to counters: (add,) tasks."""

    def issue(self, machine: Machine) -> Time:
        """Time of a warp for a command: it counts one on, and stores it."""
        return machine.costs.cache_load()

    def cross(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        crossings: Crossings,
        ends: tuple[Ints, Ints],
        row_bytes: tuple[int, int],
        ready: Tasks,
        warps: Ints,
    ) -> tuple[Ints, Ints]:
        """Have chunks written into rings at the other end, and tails moved on behind them."""
        (src, dst), away = ends, ends[0] != ends[1]
        fenced = machine.sync.fence(kinds, ready, src, stored="any")
        sent, landed = ready.copy(), fenced.copy()
        sent[away] = machine.serve(
            warps[away], self.issue(machine), kind=kinds.send, rank=src[away], after=fenced[away]
        )
        proxies, across = self.proxies(machine), (src[away], dst[away])
        queue = crossings.channel[away] % proxies.queues
        arrived = proxies.write(machine, kinds, across, queue, crossings.rows[away], row_bytes, sent[away])
        if self.signals:
            signal = proxies.tell(machine, kinds, flags_of(kinds.sync), across, queue, COUNTER_BYTES, sent[away])
            arrived = machine.mark(dst[away], arrived)
            machine.order(signal, arrived)
        landed[away] = self.add(machine, kinds, dst[away], arrived)
        return sent, machine.delay(kinds.sync, self.poll(machine), landed, dst)

    def room_back(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        ways: tuple[Kind, Kind],
        crossings: Crossings,
        ends: tuple[Ints, Ints],
        emptied: Ints,
        asked: Ints,
    ) -> Tasks:
        """Tell senders of all whole chunks that their room is free, whoever waits for it."""
        costs, back, proxies = machine.costs, emptied.copy(), self.proxies(machine)
        whole = np.union1d(np.flatnonzero(crossings.rows == crossings.chunk_rows), asked)
        src, dst = ends[0][whole], ends[1][whole]
        told = machine.delay(kinds.sync, costs.ns(SLEEP_NS), emptied[whole], dst)
        away = src != dst
        queue = (crossings.channel[whole] + crossings.num_channels) % proxies.queues
        come = proxies.tell(machine, kinds, ways, (dst[away], src[away]), queue[away], COUNTER_BYTES, told[away])
        told[away] = self.add(machine, kinds, src[away], come)
        back[whole] = machine.delay(kinds.sync, self.poll(machine), told, src)
        return back

    def announce(
        self,
        machine: Machine,
        ways: tuple[Kind, Kind],
        ends: tuple[Ranks, Ranks],
        channel: Ints,
        nbytes: int,
        after: Tasks,
    ) -> Tasks:
        """Have it said how many rows of a channel will come, in the GPU's memory."""
        proxies = self.proxies(machine)
        come = proxies.tell(machine, DISPATCH, ways, ends, channel % proxies.queues, nbytes, after)
        return machine.delay(DISPATCH.sync, machine.costs.poll(), come, ends[1])

    def quiet(self, machine: Machine, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Have the first thread look for what is under way: (rank,) tasks; at a kernel's start nothing is."""
        first = np.zeros(machine.num_ranks, np.int64)
        stored = machine.delay(kinds.sync, self.issue(machine), after)
        looked = self.proxies(machine).take(machine, kinds, machine.ranks, first, stored)
        return machine.delay(kinds.sync, machine.costs.host_flag(), looked)
