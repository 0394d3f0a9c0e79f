"""The critical path of a graph that is given in parts, of which most is gone when it is asked for.

A chain leaves a part only by tasks that later parts wait for. Once these are known, of all its
tasks only the chains that lead to them are kept: few, since chains that are followed back soon
become one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from replay.engine.critical_path import CriticalPath, Links, ServedTasks, path_of
from replay.engine.piece import PartRows, Piece
from replay.engine.taskgraph import NEVER, GraphPart, Int64s, TaskGraph

UNKNOWN = -1


@dataclass(eq=False)
class PastPart:
    """Tasks of a part, as far as they are over.

    Attributes
    ----------
    first, num_left
        Its first task, and how many are not over.
    links
        (task,): all its tasks, as if they were links; those that are not over start, and are
        visible, at `UNKNOWN`.
    entries
        Tasks of earlier parts that it waits for.
    waits_since_ps, last_start_ps, last_end_ps
        Of its tasks that are over: when the first one that had to wait for a server began to wait,
        and the last start and end at a server.
    """

    first: int
    num_left: int
    links: Links
    entries: Int64s
    waits_since_ps: int = NEVER
    last_start_ps: int = -1
    last_end_ps: int = -1

    @classmethod
    def of(cls, part: GraphPart) -> PastPart:
        """A part of which nothing is over."""
        graph, count = part.graph, part.graph.num_tasks
        # Of a task that is not over nothing is read but its end, 0, and what says so.
        ready, cause = (np.empty(count, np.int64) for _ in range(2))
        start, visible = (np.full(count, UNKNOWN, np.int64) for _ in range(2))
        end = np.zeros(count, np.int64)
        nobody = np.empty(0, np.int64)  # tasks are told by their places
        links = Links(nobody, graph.kind, graph.resource, ready, start, end, visible, cause)
        return cls(part.first_task, count, links, np.unique(part.outer_source).astype(np.int64))

    def put(self, piece: Piece, done: PartRows) -> None:
        """Note what has become of some of its tasks."""
        timeline, links, met = piece.timeline, self.links, piece.met
        for column, values in (
            (links.ready_ps, met.ready_ps),
            (links.start_ps, timeline.start_ps),
            (links.end_ps, timeline.end_ps),
            (links.visible_ps, timeline.visible_ps),
            (links.cause, met.cause),
        ):
            done.put(column, values)
        self.num_left -= done.num_tasks
        ready, start, end = (of[done.places] for of in (links.ready_ps, links.start_ps, links.end_ps))
        at_server = links.resource[done.places] >= 0
        if done.is_done is not None:
            at_server &= done.is_done
        waited = at_server & (start > ready)
        self.waits_since_ps = int(ready.min(initial=self.waits_since_ps, where=waited))
        self.last_start_ps = int(start.max(initial=self.last_start_ps, where=at_server))
        self.last_end_ps = int(end.max(initial=self.last_end_ps, where=at_server))

    @property
    def past(self) -> int:
        """First task behind it."""
        return self.first + self.links.start_ps.size


class History:
    """Follows a graph that is scheduled part by part, to tell its critical path in the end."""

    def __init__(self) -> None:
        self._told: list[PastPart] = []  # whose services others may have waited behind
        self._parts: list[PastPart] = []  # not yet told
        self._last = (-1, 0)  # when the task that is visible last is visible, and its number
        self._row: dict[int, int] = {}  # of each kept task
        self._links: list[Links] = []
        self._queueing: list[Int64s] = []
        self._behind: list[dict[str, int]] = []
        self._graph: TaskGraph | None = None

    def begin(self, part: GraphPart) -> PastPart:
        """Note that a part is added; return the record of its tasks."""
        self._parts.append(PastPart.of(part))
        self._graph = part.graph
        return self._parts[-1]

    def add(self, piece: Piece) -> None:
        """Note what has become of tasks."""
        visible = piece.timeline.visible_ps
        latest = int(visible.max(initial=-1, where=piece.is_done))
        if latest >= self._last[0]:
            last = np.flatnonzero((visible == latest) & piece.is_done)
            self._last = max(self._last, (latest, -int(piece.ids[last].min())))
        for part in self._parts:
            done = piece.of(part.first, part.past)
            if done.num_tasks:
                part.put(piece, done)
        # Later parts can only wait for tasks of the last two, and for those that one has waited
        # for; and what a task has waited behind is over when all that began before it is.
        while (
            len(self._parts) > 2
            and not self._parts[0].num_left
            and self._parts[0].last_start_ps < piece.served_since_ps
        ):
            self._tell()
        since = min((part.waits_since_ps for part in self._parts), default=NEVER)
        since = min(since, piece.waits_since_ps)
        self._told = [part for part in self._told if part.last_end_ps > since]

    def path(self) -> CriticalPath:
        """The critical path, once everything is over."""
        while self._parts:
            self._tell()
        assert self._graph is not None
        causes = np.concatenate([links.cause for links in self._links])
        chain, task = [], -self._last[1]
        while task >= 0:
            chain.append(self._row[task])
            task = int(causes[chain[-1]])
        rows = np.array(chain[::-1], np.int64)
        columns = [np.concatenate(column)[rows] for column in zip(*self._links, strict=True)]
        return path_of(
            self._graph,
            Links(*columns),
            np.concatenate(self._queueing)[rows],
            [self._behind[row] for row in rows.tolist()],
        )

    def _tell(self) -> None:
        """Keep the chains of the oldest part that is not told, with what they waited for."""
        assert self._graph is not None
        part = self._parts[0]
        kept = self._chain_ends(part)
        columns = (column[kept].astype(np.int64) for column in part.links[1:])
        links = Links(part.first + kept, *columns)
        near = [*self._told, *self._parts]
        schedules = [(of.resource, of.kind, of.start_ps, of.end_ps) for of in (part.links for part in near)]
        served = ServedTasks.meanwhile(links, len(self._graph.resources), schedules)
        queueing, behind = served.waits(self._graph, links)
        first = len(self._row)
        self._row |= {task: first + row for row, task in enumerate(links.task.tolist())}
        self._links.append(links)
        self._queueing.append(queueing)
        self._behind += behind
        self._told.append(self._parts.pop(0))

    def _chain_ends(self, part: PastPart) -> Int64s:
        """Places of the tasks on chains that leave a part."""
        entries = [later.entries for later in self._parts]
        leaves = np.concatenate([*entries, [-self._last[1]]]).astype(np.int64)
        leaves = leaves[(leaves >= part.first) & (leaves < part.past)] - part.first
        is_kept = np.zeros(part.links.start_ps.size, np.bool_)
        cause, marks, first = part.links.cause.data, is_kept.data, part.first
        for leaf in leaves.tolist():
            place = leaf
            while place >= 0 and not marks[place]:
                marks[place] = True
                place = cause[place] - first
        return np.flatnonzero(is_kept)
