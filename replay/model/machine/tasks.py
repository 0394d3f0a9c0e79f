"""Tasks of the simplest kinds: work on a server, pure delays, marks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from replay.engine import GraphBuilder
    from replay.engine.builder import Position
    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.machine.notes import Notes
    from replay.model.machine.resources import IntsLike, Resources


class TaskBuilder:
    """Builder of the tasks of one graph."""

    def __init__(self, graph: GraphBuilder, resources: Resources, notes: Notes) -> None:
        self._graph = graph
        self._resources = resources
        self._notes = notes

    @property
    def count(self) -> int:
        """Tasks added so far; also the number of the next one."""
        return self._graph.num_tasks

    def serve(
        self,
        servers: IntsLike,
        time: Time,
        *,
        kind: Kind,
        rank: Ranks,
        after: Tasks | None = None,
        late: Time = NO_TIME,
        priority: IntsLike = 0,
        each: Time | None = None,
    ) -> Tasks:
        """Occupy servers: (task,) tasks.

        Parameters
        ----------
        servers
            (task,) resources.
        time
            How long each is occupied.
        rank
            (task,): the GPU each task belongs to.
        after
            (task,): what each waits for.
        late
            From the end of the service until the result is there.
        priority
            Order among what waits for the same server, smaller first.
        each
            Time of one, where each task is several of the same, as launches in a row; see `SpentValues`.
        """
        first, graph = self._graph.num_tasks, self._graph
        added = graph.add(
            len(rank),
            resource=servers,
            duration_ps=time.ps,
            latency_ps=late.ps,
            priority=priority,
            kind=kind,
            rank=rank,
            after=after,
        )
        if time.of or late.of or each is not None:
            self._notes.spend(first, graph.num_tasks, time.of, late.of, None if each is None else each.ps)
        return added

    def mark(self, rank: Ranks, after: Tasks | None = None) -> Ints:
        """Add tasks that take no time, one for each entry of `rank`."""
        return self._graph.add(len(rank), resource=-1, kind=Kind.MARK, rank=rank, after=after)

    def gather(self, ids: Ints, rank: Ranks, after: Tasks) -> Ints:
        """One mark for each rank: it waits for `after` and for all `ids` that belong to the rank.

        Parameters
        ----------
        ids, rank
            (task,): tasks, and the rank of each.
        after
            (rank,) tasks.
        """
        return self.join(ids, rank, self._resources.ranks, after)

    def join(self, ids: Ints, of: Ints, rank: Ranks, after: Tasks | None = None) -> Tasks:
        """Marks, each of which waits for all tasks that belong to it: (mark,) tasks.

        Parameters
        ----------
        ids, of
            (task,): tasks, and the mark that each belongs to.
        rank
            (mark,): the GPU of each mark.
        after
            (mark,): what each waits for besides.
        """
        marks = self.mark(rank, after)
        self.order(ids, marks[of])
        return marks

    def order(self, earlier: Ints, later: Ints) -> None:
        """Let tasks `later` wait for tasks `earlier`: (task,) each."""
        self._graph.edges(earlier, later)

    def delay(
        self,
        kind: Kind,
        time: Time,
        after: Tasks | None,
        rank: Ranks | None = None,
        *,
        late: Time = NO_TIME,
        each: Time | None = None,
    ) -> Tasks:
        """Pass time without occupying anything: (task,) tasks, one per rank without `rank`; see `serve`."""
        ranks = self._resources.ranks if rank is None else rank
        return self.serve(-1, time, kind=kind, rank=ranks, after=after, late=late, each=each)

    def meet(self, after: Tasks, group: Ints | None = None) -> Tasks:
        """One mark of all ranks: (rank,) the same task, which waits for all of `after`.

        Parameters
        ----------
        group
            (rank,): whose ranks meet one another alone, if not all do.
        """
        if group is not None:
            met = np.empty_like(after)
            for members in (group == number for number in np.unique(group)):
                met[members] = self._graph.join(after[members], resource=-1, kind=Kind.MARK)
            return met
        meeting = self._graph.join(after, resource=-1, kind=Kind.MARK)
        return np.full(self._resources.num_ranks, meeting, np.int64)

    def repeat(self, since: Position, times: int) -> int:
        """Add all tasks since a position again, `times` times: by how many tasks the last are later.

        Of their notes, service times and places only; no other notes may lie between.

        See Also
        --------
        GraphBuilder.repeat : what they wait for.
        Notes.repeat : what is refused.
        """
        count = self.count - since.task
        moved = self._graph.repeat(since, times)
        self._notes.repeat(since.task, count, times)
        return moved
