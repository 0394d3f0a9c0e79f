"""NVSHMEM's proxy: DeepEP's normal kernels where no card takes doorbells of a GPU, as on AWS's EFA.

One thread for each GPU takes commands out of one queue in pinned memory. A chunk is one command and
two messages: its rows by a write, and what to add to the tail by a message beside it. The thread at
the other end waits for both, loads the counter out of its GPU's memory over PCIe, stores the sum, and
writes an acknowledgement. So it adds for room and for meetings, too; nobody locks a bus.

Left out: a GPU's four cards, among which messages take turns, are one; a kernel's `quiet` finds
everything acknowledged; the queue has room for any number of commands.

Source: NVIDIA/nvshmem, ``src/host/proxy/proxy.cpp`` at 062e378 (``process_channel_put_signal``,
``process_channel_amo``, ``process_channel_qp_quiet``) and
``src/modules/transport/libfabric/libfabric.cpp`` at 002f151 (``nvshmemt_libfabric_gdr_signal``,
``nvshmemt_libfabric_put_signal_completion``, ``perform_gdrcopy_amo``, ``gdrcopy_amo_ack``);
``nvshmemi_signal_for_barrier``, which is an atomic of the proxy; awslabs/awsome-distributed-ai at
95b939cd, ``deepep/setup_deepep_efa.sh``, which has DeepEP use it.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import DISPATCH, flags_of
from replay.model.machine.proxies import Proxies
from replay.schemes.ep.deepep.host_transport import HostTransport
from replay.schemes.ep.deepep.transport import COUNTER_BYTES
from replay.schemes.ep.deepep.uccl import COMMAND_NS

if TYPE_CHECKING:
    from replay.model.arrays import Ranks, Tasks
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time


class ProxyTransport(HostTransport):
    """Writes that NVSHMEM's proxy posts."""

    signals = True

    def proxies(self, machine: Machine) -> Proxies:
        """One thread with one queue; what it takes for a message stands in, as UCCL's."""
        return Proxies("nvshmem", 1, 1, 0, machine.costs.ns(COMMAND_NS))

    def poll(self, machine: Machine) -> Time:
        """Time of a poll of the GPU's own memory."""
        return machine.costs.poll()

    def add(self, machine: Machine, kinds: PhaseKinds, rank: Ranks, arrived: Tasks) -> Tasks:
        """Load, add, store and acknowledge."""
        proxies, load = self.proxies(machine), machine.costs.host_load()
        adding = dataclasses.replace(proxies, command=proxies.command + load)
        return adding.step(machine, kinds, rank, np.zeros(len(rank), np.int64), arrived)

    def meet(self, machine: Machine, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Let GPUs of one index in all nodes wait for one another, by dissemination: (rank,) tasks."""
        domains, ranks, proxies = machine.domains, machine.ranks, self.proxies(machine)
        machine.notes.meet("meetings of rails")
        met, distance = after, 1
        while distance < domains.num:
            to = domains.peer(ranks, (domains.of(ranks) + distance) % domains.num)
            stored = machine.delay(kinds.sync, self.issue(machine), met)
            ways = flags_of(kinds.sync)
            come = proxies.tell(machine, kinds, ways, (ranks, to), np.zeros_like(ranks), COUNTER_BYTES, stored)
            added = self.add(machine, kinds, to, come)
            met = machine.gather(machine.delay(kinds.sync, self.poll(machine), added, to), to, met)
            distance *= 2
        return met

    def tell_nodes(
        self, machine: Machine, ways: tuple[Kind, Kind], ends: tuple[Ranks, Ranks], nbytes: int, after: Tasks
    ) -> Tasks:
        """Have counts written, and wait until they are there: (rank,) marks."""
        stored = machine.delay(DISPATCH.sync, self.issue(machine), after[ends[0]], ends[0])
        queue = np.zeros(len(stored), np.int64)
        come = self.proxies(machine).tell(machine, DISPATCH, ways, ends, queue, nbytes, stored)
        known = machine.transfers.completion_time(*ends) + machine.costs.host_flag()
        return machine.gather(machine.delay(DISPATCH.sync, known, come, ends[0]), ends[0], after)
