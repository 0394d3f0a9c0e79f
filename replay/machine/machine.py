"""The modelled system as a scheme sees it.

`Machine` is the only place where a scheme's wish ("store these rows from here to there") meets
hardware numbers: it asks `hwmodel` how long the work takes on an idle resource and adds the
tasks. Schemes see ranks, rows and bytes; the engine sees durations. Resources, transfers over
them, what the switch does by itself, and (here) kernels and synchronisation are four files of one
thing.
"""

from __future__ import annotations

import numpy as np

from replay.machine.in_switch import InSwitch
from replay.machine.kinds import Kind, PhaseKinds
from replay.machine.resources import Ints, IntsLike

__all__ = ["Ints", "IntsLike", "Machine"]


class Machine(InSwitch):
    """Resources, transfers, kernels and synchronisation of one system in one task graph.

    Parameters
    ----------
    system
        The hardware model.
    graph
        Builder that receives the resources and tasks.
    num_ranks
        Ranks in use; rank r runs on GPU r.
    """

    def mark(self, rank: Ints, after: Ints | None = None) -> Ints:
        """Add tasks that take no time, one for each entry of `rank`."""
        return self.graph.add(len(rank), resource=-1, kind=Kind.MARK, rank=rank, after=after)

    def gather(self, ids: Ints, rank: Ints, after: Ints) -> Ints:
        """One mark a rank that waits for `after` and for all of `ids` that belong to the rank."""
        marks = self.mark(self.ranks, after)
        self.graph.edges(ids, marks[rank])
        return marks

    def delay(self, kind: Kind, duration_ps: int, after: Ints, rank: Ints | None = None) -> Ints:
        """Pass time without occupying anything."""
        rank = self.ranks if rank is None else rank
        return self.graph.add(
            len(rank), resource=-1, duration_ps=duration_ps, kind=kind, rank=rank, after=after
        )

    def kernel(self, after: Ints) -> Ints:
        """Begin a kernel that was launched ahead: (rank,) tasks after the gap between kernels."""
        return self.delay(Kind.LAUNCH, self.system.overheads.kernel_gap_ps(), after)

    def launch(self, after: Ints) -> Ints:
        """Begin a kernel that the host could not launch ahead: (rank,) tasks."""
        return self.graph.add(
            resource=self.host,
            duration_ps=self.system.overheads.launch_ps,
            kind=Kind.LAUNCH,
            rank=self.ranks,
            after=after,
        )

    def host_wait(self, kinds: PhaseKinds, duration_ps: int, after: Ints) -> Ints:
        """The host thread waits for the device: (rank,) tasks."""
        return self.graph.add(
            resource=self.host,
            duration_ps=duration_ps,
            kind=kinds.sync,
            rank=self.ranks,
            after=after,
        )

    def barrier(self, kinds: PhaseKinds, after: Ints) -> Ints:
        """All ranks wait for all ranks inside running kernels: (rank,) tasks."""
        meeting = self.graph.join(after, resource=-1, kind=Kind.MARK)
        return self.delay(
            kinds.sync,
            self.system.overheads.barrier_ps(self.num_ranks),
            np.full(self.num_ranks, meeting, np.int64),
        )

    def exchange_counts(self, after: Ints, bytes_to_each: int) -> Ints:
        """Every rank stores a few bytes into every other: (rank,) marks when all have arrived."""
        src, dst = np.nonzero(~np.eye(self.num_ranks, dtype=bool))
        wire = self.system.link.write_wire_bytes(bytes_to_each, 1)
        _, down = self._hop_pair(Kind.COUNT_UP, Kind.COUNT_DOWN, src, dst, wire, 0, after[src])
        return self.gather(down, dst, after)

    def notify(
        self,
        src: Ints,
        dst: Ints,
        nbytes: int,
        after: Ints,
        *,
        kinds: tuple[Kind, Kind] = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN),
        waiting_ps: int = 0,
    ) -> Ints:
        """Store a counter update into a peer's memory: (message,) tasks, visible to a poll.

        Parameters
        ----------
        kinds
            What the message is on an uplink and on a downlink.
        waiting_ps
            Pure waiting before and after it, such as a fence and a poll, which is added to its
            latency.
        """
        wire = self.system.link.write_wire_bytes(nbytes, 1)
        latency = self._write_latency + waiting_ps
        return self._hop_pair(*kinds, src, dst, wire, 0, after, latency)[1]

    def memory_kernel(self, kind: Kind, nbytes: Ints, after: Ints) -> Ints:
        """Run an elementwise kernel that is limited by HBM: (rank,) tasks.

        Parameters
        ----------
        nbytes
            (rank,): bytes read plus bytes written.
        """
        return self.graph.add(
            resource=self.hbm,
            duration_ps=self.system.hbm.stream_ps(nbytes),
            latency_ps=self.system.overheads.small_kernel_ps,
            kind=kind,
            rank=self.ranks,
            after=self.kernel(after),
        )
