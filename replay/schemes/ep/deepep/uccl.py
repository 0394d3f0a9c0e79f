"""UCCL-EP: DeepEP's normal kernels over threads of the host, as built for AWS's EFA.

A warp stores a command for each write into one of 32 queues in pinned memory, behind a fence of
system scope. Four threads for each GPU (`Proxies`) take the commands; of a queue eight writes are
under way at most. Channel c has queue c mod 32 for its rows and what is said before them, and queue
(c + channels) mod 32 for the room that comes back. EFA delivers writes in any order and adds to no
counter. So a write brings its number and what to add in its immediate, and the thread that sees it
arrive adds, in order, to a counter in pinned memory, for which the GPU polls over PCIe.

These counters are write-combined memory of the host. An atomic addition of a CPU to memory that it
does not cache locks the bus of the node, for the threads that launch kernels, too (`locked_adds`).
A GPU adds to its own, for chunks of its own node, over PCIe and locks nothing.

Barriers among nodes go through one thread of each GPU: all of a node meet in shared memory, the
first of each node tells the first of all, and that one tells them back.

Adds that come behind a kernel's last row go on beside what follows. A layer by itself is over when
the last of them is; in a step hosts stand still for these too.

Left out, since steps are the same within 0.1 % (``replay/studies/steps-measured.md``): thread i of a
GPU writes by card i of its four, which are one card here; and a thread posts nothing while its add
waits for the bus. Nothing is acknowledged, and writes that overtake each other take no add more.

Source: uccl-project/uccl at 0dc87eb (of 25 May 2026), ``ep/include/common.hpp`` (numbers),
``ep/include/uccl_ibgda.cuh`` (commands), ``ep/src/proxy.cpp`` (``post_gpu_command``,
``barrier_check``, ``quiet_cq``), ``ep/src/rdma.cpp`` (``post_rdma_async_batched_normal_mode``,
``remote_process_completions_normal_mode``), ``ep/src/uccl_proxy.cpp`` (``cudaHostAllocWriteCombined``),
``ep/src/internode.cu``; on locked adds Linux, ``Documentation/arch/x86/buslock.rst``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import DISPATCH, flags_of
from replay.model.machine.proxies import BY_HOST, Proxies, locked_adds
from replay.schemes.ep.deepep.host_transport import HostTransport
from replay.schemes.ep.deepep.transport import COUNTER_BYTES

if TYPE_CHECKING:
    from replay.model.arrays import Ranks, Tasks
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time

THREADS, QUEUES, IN_FLIGHT = 4, 32, 8  # kNumProxyThs, kChannelPerProxy of each, kMaxInflightNormal
# One thread of each GPU posts 8 KiB at 13.8 GB/s over four cards, 256 writes under way on each, without commands.
COMMAND_NS = 594  # assumed to be as long (ep/bench/alltoall/efa_alltoall_results.md: p5, the same rail)


class UcclTransport(HostTransport):
    """Writes that UCCL's threads post.

    Its `quiet` ends when no completions come any more, and waits for none. The other threads are not
    asked: the loop over threads ends with its first.
    """

    def proxies(self, machine: Machine) -> Proxies:
        """Four threads, each with eight queues."""
        return Proxies("uccl", THREADS, QUEUES, IN_FLIGHT, machine.costs.ns(COMMAND_NS))

    def poll(self, machine: Machine) -> Time:
        """Time of a poll of the host's memory."""
        return machine.costs.host_flag()

    def add(self, machine: Machine, kinds: PhaseKinds, rank: Ranks, arrived: Tasks) -> Tasks:
        """Add by locked instructions."""
        return locked_adds(machine, kinds, rank, arrived)

    def meet(self, machine: Machine, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Let all GPUs wait for one another, through one thread of each: (rank,) tasks."""
        domains, ranks, proxies = machine.domains, machine.ranks, self.proxies(machine)
        first = np.array([int(domains.members(domain)[0]) for domain in range(domains.num)], np.int64)
        thread = np.zeros(machine.num_ranks, np.int64)
        machine.notes.meet("meetings of rails")
        stored = machine.delay(kinds.sync, self.issue(machine), after)
        come = machine.meet(proxies.take(machine, kinds, ranks, thread, stored), domains.of(ranks))
        leaders, others = come[first], first[1:]
        ways, to = flags_of(kinds.sync), np.full(len(others), first[0])
        posted = proxies.step(machine, kinds, others, thread[others], leaders[1:])
        told = machine.sync.notify(others, to, COUNTER_BYTES, posted, kinds=ways, writes=BY_HOST)
        all_met = machine.join(told, np.zeros_like(told), first[:1], leaders[:1])
        released = np.repeat(all_met, domains.num)
        posted = proxies.step(machine, kinds, to, thread[to], released[1:])
        released[1:] = machine.sync.notify(to, others, COUNTER_BYTES, posted, kinds=ways, writes=BY_HOST)
        return machine.delay(kinds.sync, machine.costs.host_flag(), released[domains.of(ranks)])

    def tell_nodes(
        self, machine: Machine, ways: tuple[Kind, Kind], ends: tuple[Ranks, Ranks], nbytes: int, after: Tasks
    ) -> Tasks:
        """Have counts written, then look for completions: (rank,) marks."""
        queue = np.zeros(len(ends[0]), np.int64)
        stored = machine.delay(DISPATCH.sync, self.issue(machine), after[ends[0]], ends[0])
        come = self.proxies(machine).tell(machine, DISPATCH, ways, ends, queue, nbytes, stored)
        return machine.gather(come, ends[1], self.quiet(machine, DISPATCH, machine.gather(stored, ends[0], after)))
