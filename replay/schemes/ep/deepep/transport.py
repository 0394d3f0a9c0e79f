"""Crossing of nodes under DeepEP's normal kernels: who posts what a warp wants to send.

`WarpTransport` are those of the library as it ships: a warp posts a write itself, through NVSHMEM's
GPU-initiated verbs, and the card does the additions to counters. `host_transport` has what posts by threads
of the host.

Room of a ring comes back a chunk at a time: a warp that coordinates looks at the others' progress,
sleeps, and adds what is free to a counter at the other end, through the NIC.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode.cu``; ``nvshmem_sync_all``
among the GPUs of an index is a dissemination barrier.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import DISPATCH
from replay.model.machine.rdma import Writes

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import Kind, PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.times import Time
    from replay.schemes.ep.deepep.crossings import Crossings

COUNTER_BYTES = 8
SLEEP_NS = 250  # half of NUM_WAIT_NANOSECONDS, which a coordinating warp sleeps (configs.cuh)


class WarpTransport:
    """Writes that warps post themselves."""

    def issue(self, machine: Machine) -> Time:
        """Time of a warp for a write."""
        return machine.costs.post()

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
        """Put chunks into rings at the other end: two (chunk,) tasks, when posted and when seen there.

        A warp posts one chunk after the other, and each of them twice: its rows, and behind them an
        addition to the tail, with a doorbell of its own. Chunks for its own node pass no NIC: a fence
        makes them visible before their tail moves.

        Parameters
        ----------
        ends
            Two (chunk,): ranks that send and that receive.
        row_bytes
            Payload of a row, and what travels with it.
        ready
            (chunk,): the task after which they can leave.
        warps
            (chunk,): the warp that posts it.
        """
        costs, (src, dst), landed = machine.costs, ends, ready.copy()
        away = src != dst
        landed[~away] = machine.sync.fence(kinds, ready[~away], src[~away], stored="any")
        src, to = src[away], dst[away]
        sent = machine.serve(warps[away], costs.post(), kind=kinds.send, rank=src, after=ready[away])
        stored = machine.transfers.store(
            kinds,
            src,
            to,
            row_bytes[0],
            sent,
            rows=crossings.rows[away],
            meta_bytes=row_bytes[1],
            writes=Writes(by="warp"),
        ).arrived
        # The tail follows its rows in their queue, and at the warp before the rows of any other chunk.
        told = machine.serve(warps[away], costs.post(), kind=kinds.sync, rank=src, after=sent, priority=-1)
        tail = machine.delay(kinds.sync, machine.transfers.crossing_time(src, to), told, to)
        landed[away] = machine.mark(to, tail)
        machine.order(stored, landed[away])
        ended = ready.copy()
        ended[away] = told
        return ended, machine.delay(kinds.sync, costs.poll(), landed, dst)

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
        """Tell senders that the room of their chunks is free: (chunk,) tasks at their end.

        Only of `asked` chunks is anybody told; the library tells senders that have ended, too.

        Parameters
        ----------
        ways
            What the counters are on their way out and in.
        ends
            Two (chunk,): ranks that sent and that received.
        emptied
            (chunk,) tasks that end when nobody reads the chunk any more.
        asked
            Chunks whose room somebody waits for.
        """
        costs, back = machine.costs, emptied.copy()
        src, dst = ends[0][asked], ends[1][asked]
        told = machine.delay(kinds.sync, costs.ns(SLEEP_NS), emptied[asked], dst)
        away = src != dst
        told[away] = machine.sync.notify(dst[away], src[away], COUNTER_BYTES, told[away], kinds=ways)
        back[asked] = machine.delay(kinds.sync, costs.poll(), told, src)
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
        """Say how many rows of a channel will come: (message,) tasks when it is seen.

        Parameters
        ----------
        ends
            Two (message,): ranks that send and that receive.
        """
        return machine.sync.flag(*ends, nbytes, after, stored="nothing", kinds=ways)

    def quiet(self, machine: Machine, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Wait for earlier writes, which have been completed: (rank,) tasks."""
        return after

    def meet(self, machine: Machine, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Let GPUs of one index in all nodes wait for one another: (rank,) tasks."""
        return machine.sync.rails(kinds, after)

    def tell_nodes(
        self, machine: Machine, ways: tuple[Kind, Kind], ends: tuple[Ranks, Ranks], nbytes: int, after: Tasks
    ) -> Tasks:
        """Put counts to GPUs of the same index: (rank,) marks.

        They are there when all puts have been completed, for which the sender waits.
        """
        put = machine.sync.notify(*ends, nbytes, after[ends[0]], kinds=ways)
        known = machine.delay(DISPATCH.sync, machine.transfers.completion_time(*ends), put, ends[0])
        return machine.gather(known, ends[0], after)


def others(machine: Machine) -> tuple[Ints, Ints]:
    """GPUs of the same index in every other node: two (message,), each rank and such a peer."""
    domains = machine.domains
    rank, node = (axis.ravel() for axis in np.indices((machine.num_ranks, domains.num), np.int64))
    away = domains.of(rank) != node
    return rank[away], domains.peer(rank[away], node[away])
