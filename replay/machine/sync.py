"""Ranks that wait for one another inside running kernels, and tell one another a few bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import Kind
from replay.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.machine.kinds import PhaseKinds
    from replay.machine.paths import Paths
    from replay.machine.resources import Ints
    from replay.machine.tasks import Tasks
    from replay.machine.transfers import Transfers


class Sync:
    """Barriers, counts and notifications."""

    def __init__(self, system: System, tasks: Tasks, paths: Paths, transfers: Transfers) -> None:
        self._system, self._tasks = system, tasks
        self._paths, self._transfers = paths, transfers

    def barrier(self, kinds: PhaseKinds, after: Ints, *, behind_stores: bool = False) -> Ints:
        """All ranks wait for all ranks: (rank,) tasks.

        Parameters
        ----------
        behind_stores
            Whether `after` are stores that have arrived at other GPUs. A flag that tells of them
            leaves when they have been acknowledged.
        """
        num_ranks, fabric = len(self._paths.ranks), self._system.fabric
        ps = self._system.overheads.barrier_ps(num_ranks)
        if behind_stores and num_ranks > 1:
            ps += fabric.uplink_latency_ps + fabric.downlink_latency_ps
        return self._tasks.delay(kinds.sync, Time(ps), self._tasks.meet(after))

    def exchange_counts(self, after: Ints, bytes_to_each: int) -> Ints:
        """Every rank stores a few bytes into every other: (rank,) marks when all have arrived."""
        num_ranks = len(self._paths.ranks)
        src, dst = np.nonzero(~np.eye(num_ranks, dtype=bool))
        kinds = (Kind.COUNT_UP, Kind.COUNT_DOWN)
        arrived = self._tell(kinds, src, dst, bytes_to_each, after[src], NO_TIME)
        return self._tasks.gather(arrived, dst, after)

    def notify(
        self,
        src: Ints,
        dst: Ints,
        nbytes: int,
        after: Ints,
        *,
        kinds: tuple[Kind, Kind] = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN),
        waiting: Time = NO_TIME,
        priority: int = 0,
    ) -> Ints:
        """Store a counter update into another GPU's memory: (message,) tasks, visible to a poll.

        Parameters
        ----------
        src, dst
            (message,) ranks, nowhere equal.
        kinds
            What the message is on its way out and on its way in.
        waiting
            Pure waiting before and after it, such as a fence and a poll, which is added to its
            latency.
        priority
            Order of the messages on the way out of their GPUs; smaller first.
        """
        return self._tell(kinds, src, dst, nbytes, after, waiting, priority)

    def _tell(
        self,
        kinds: tuple[Kind, Kind],
        src: Ints,
        dst: Ints,
        nbytes: int,
        after: Ints,
        waiting: Time,
        priority: int = 0,
    ) -> Ints:
        arrived = np.empty(len(src), np.int64)
        for path in self._paths(src, dst):
            late_ps, wire = int(waiting.ps), nbytes
            if path.is_nvlink:
                late_ps += self._system.fabric.write_visibility_ps
                wire = self._system.link.write_wire_bytes(nbytes, 1)
            landed = self._transfers.send(
                path, kinds, wire, 0, path.of(after), late_ps=late_ps, priority=priority
            )[-1]
            if path.messages is None:
                return landed
            arrived[path.messages] = landed
        return arrived
