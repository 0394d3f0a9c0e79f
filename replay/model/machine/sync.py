"""Ranks that wait for one another inside running kernels, and tell one another a few bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind, flags_of
from replay.model.machine.rdma import ONE_WRITE, Writes
from replay.model.machine.times import NO_TIME, Costs, Time

if TYPE_CHECKING:
    import numpy.typing as npt

    from hwmodel import System
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.notes import Notes
    from replay.model.machine.paths import Paths
    from replay.model.machine.rdma import Rdma
    from replay.model.machine.tasks import TaskBuilder
    from replay.model.machine.times import Stored
    from replay.model.machine.transfers import Transfers


FLAG_BYTES = 8


class Sync:
    """Barriers, counts and flags.

    Who tells others of its stores says by `stored` what these were; `Costs.behind` has what it then
    waits for first. A cost of every meeting is a term of `late` in `barrier`, of every flag one of `waiting` in `flag`.
    """

    def __init__(
        self, system: System, tasks: TaskBuilder, paths: Paths, transfers: Transfers, rdma: Rdma, notes: Notes
    ) -> None:
        self._system, self._tasks, self._notes = system, tasks, notes
        self._paths, self._transfers, self._rdma = paths, transfers, rdma
        self._costs = Costs(system)

    def barrier(self, kinds: PhaseKinds, after: Tasks, *, stored: Stored, inside: bool = False) -> Tasks:
        """Let all ranks wait for all ranks: (rank,) tasks.

        Parameters
        ----------
        stored
            What `after` have written that others read behind the barrier. ``"each"`` and
            ``"multicast"`` are stores that have arrived. Between domains flags follow rows in one
            queue.
        inside
            Whether ranks wait for those of their own NVLink domain alone.

        Notes
        -----
        Between domains the ranks of a domain meet, and each tells the rank of its index in every
        other one, as DeepEP's ``nvshmem_sync_with_same_gpu_idx`` and barrier of a node do. Both
        are counted from the last rank on: its own domain waits for the others' flags, too.
        """
        domains = self._paths.domains
        most = min(len(self._paths.ranks), domains.size)
        late = self._costs.meeting(most)
        if stored == "any":
            after = self.fence(kinds, after, stored=stored)
        elif most > 1:
            late += self._behind(stored)
            if stored == "each":
                late += self._costs.release(most)
        alone = inside and domains.num > 1
        self._notes.meet("meetings of nodes" if alone else "meetings")
        meeting = self._tasks.meet(after, domains.of(self._paths.ranks) if alone else None)
        met = self._tasks.delay(kinds.sync, late, meeting)
        return met if alone or domains.num == 1 else self._meet_peers(kinds, met)

    def fence(
        self,
        kinds: PhaseKinds,
        after: Tasks,
        rank: Ranks | None = None,
        *,
        stored: Stored,
        late: Time = NO_TIME,
        has_stored: npt.NDArray[np.bool_] | None = None,
        visible: Time = NO_TIME,
    ) -> Tasks:
        """Wait until flags may tell of what `after` have stored: (task,) tasks.

        Parameters
        ----------
        rank
            (task,): who waits; without it, one task of each rank.
        late
            Waiting besides.
        has_stored
            (task,): whose stores there are to wait for; all without it.
        visible
            From the end of the wait until others may be told.
        """
        behind = self._behind(stored)
        if has_stored is not None:
            behind = Time.where(has_stored, behind, NO_TIME)
        return self._tasks.delay(kinds.sync, behind + late, after, rank, late=visible)

    def _behind(self, stored: Stored) -> Time:
        if stored != "nothing":
            self._notes.meet("fences")
        return self._costs.behind(stored)

    def _meet_peers(self, kinds: PhaseKinds, met: Ints) -> Ints:
        """Every rank is told by a rank of each other domain: (rank,) marks."""
        domains, ranks = self._paths.domains, self._paths.ranks
        told, by = [], []
        for domain in range(domains.num):
            members = domains.members(domain)
            others = ranks[domains.of(ranks) != domain]
            told.append(others)
            by.append(members[domains.local(others) % len(members)])
        dst, src = np.concatenate(told), np.concatenate(by)
        flags = self._tell(flags_of(kinds.sync), src, dst, FLAG_BYTES, met[src], self._costs.poll())
        return self._tasks.gather(flags, dst, met)

    def rails(self, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Let ranks of one index in all NVLink domains wait for one another: (rank,) tasks.

        A dissemination barrier through the NICs: in round k a rank tells the one 2^k domains on,
        and waits for the one 2^k domains before.
        """
        domains, ranks = self._paths.domains, self._paths.ranks
        self._notes.meet("meetings of rails")
        met, distance = after, 1
        while distance < domains.num:
            to = domains.peer(ranks, (domains.of(ranks) + distance) % domains.num)
            told = self._tell(flags_of(kinds.sync), ranks, to, FLAG_BYTES, met, self._costs.poll())
            met = self._tasks.gather(told, to, met)
            distance *= 2
        return met

    def exchange_counts(self, after: Tasks, bytes_to_each: int, *, inside: bool = False) -> Ints:
        """Let every rank store a few bytes into every other: (rank,) marks when all have arrived.

        Parameters
        ----------
        inside
            Whether only ranks of one NVLink domain do.
        """
        ranks = self._paths.ranks
        others = ~np.eye(len(ranks), dtype=bool)
        if inside:
            others &= ~self._paths.domains.crosses(ranks[:, None], ranks)
        src, dst = np.nonzero(others)
        kinds = (Kind.COUNT_UP, Kind.COUNT_DOWN)
        self._notes.meet("rounds of flags")
        arrived = self._tell(kinds, src, dst, bytes_to_each, after[src], NO_TIME)
        return self._tasks.gather(arrived, dst, after)

    def flag(
        self,
        src: Ranks,
        dst: Ranks,
        nbytes: int,
        after: Tasks,
        *,
        stored: Stored,
        kinds: tuple[Kind, Kind] = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN),
        late: Time = NO_TIME,
        priority: int = 0,
    ) -> Tasks:
        """Tell other GPUs by flags for which they poll: (flag,) tasks, seen by the poll.

        Parameters
        ----------
        stored
            What the flag tells of; it leaves behind that.
        late
            Pure waiting besides, before the flag or behind its poll.

        See Also
        --------
        notify : the other parameters.
        """
        waiting = self._behind(stored) + late + self._costs.poll()
        return self.notify(src, dst, nbytes, after, kinds=kinds, waiting=waiting, priority=priority)

    def notify(
        self,
        src: Ranks,
        dst: Ranks,
        nbytes: int,
        after: Tasks,
        *,
        kinds: tuple[Kind, Kind] = (Kind.NOTIFY_UP, Kind.NOTIFY_DOWN),
        waiting: Time = NO_TIME,
        priority: int = 0,
        writes: Writes = ONE_WRITE,
    ) -> Tasks:
        """Store a few bytes into another GPU's memory: (message,) tasks, visible to a poll.

        What it tells of and the poll are not in it; `flag` has them.

        Parameters
        ----------
        src, dst
            (message,) ranks, nowhere equal.
        kinds
            What the message is on its way out and on its way in.
        waiting
            Pure waiting before and after it, which is added to its latency.
        priority
            Order of the messages on the way out of their GPUs; smaller first.
        writes
            How messages to other domains are written there.
        """
        self._notes.meet("rounds of flags")
        return self._tell(kinds, src, dst, nbytes, after, waiting, priority, writes)

    def _tell(
        self,
        kinds: tuple[Kind, Kind],
        src: Ranks,
        dst: Ranks,
        nbytes: int,
        after: Tasks,
        waiting: Time,
        priority: int = 0,
        writes: Writes = ONE_WRITE,
    ) -> Ints:
        arrived, late_ps = np.empty(len(src), np.int64), int(waiting.ps)
        for path in self._paths(src, dst):
            ready = path.of(after)
            if path.is_nvlink:
                wire = self._system.link.write_wire_bytes(nbytes, 1)
                visible_ps = late_ps + self._system.fabric.write_visibility_ps
                landed = self._transfers.send(path, kinds, wire, 0, ready, late_ps=visible_ps, priority=priority)[-1]
            else:
                _, landed = self._rdma.write(
                    path,
                    kinds,
                    nbytes,
                    0,
                    ready,
                    late_ps=late_ps,
                    priority=priority,
                    writes=writes,
                )
            path.assign(arrived, landed)
        return arrived
