"""Ways through a scheduled graph: how something came from some tasks to others, and why then."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.engine.export.programs import resolved_edges
from replay.engine.timeline import Timeline

Int64s = npt.NDArray[np.int64]


class Ways:
    """Ways in the graph of a schedule, gates as it resolved them.

    Parameters
    ----------
    timeline
        The schedule.

    Examples
    --------
    >>> from replay.engine import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send", "tile", "add"])
    >>> sends = builder.add(2, resource=-1, duration_ps=[3, 9])
    >>> tiles = builder.add(2, resource=-1, duration_ps=5, kind=1, after=sends)
    >>> done = builder.join(tiles, kind=2)
    >>> ways = Ways(schedule(builder.build()))
    >>> [way.tolist() for way in ways.between(sends, np.array([done]))]
    [[0, 2, 4], [1, 3, 4]]
    """

    def __init__(self, timeline: Timeline) -> None:
        self._start_ps, self._visible_ps = timeline.start_ps, timeline.visible_ps
        size = timeline.graph.num_tasks
        source, target = resolved_edges(timeline)
        self._onward = _Rows.of(source, target, size)
        self._back = _Rows.of(target, source, size)

    def between(self, sources: Int64s, targets: Int64s) -> list[Int64s]:
        """Find, for each source, the way from it that the targets waited for last.

        Each way is walked back from the last target that needs the source, always to the task that
        became visible last among those that need the source too; of equals, to the first.

        Parameters
        ----------
        sources, targets
            (task,)

        Returns
        -------
        Ways (task,) from a source to a target, in the order of the sources; none for a source that
        no target needs.
        """
        begin = self._start_ps[sources].min(initial=np.iinfo(np.int64).max)
        needed = self._back.reached(targets, among=self._start_ps >= begin)
        ways = []
        for source in np.unique(sources).tolist():
            if not needed[source]:
                continue
            follows = self._onward.reached(np.array([source]), among=needed)
            task = self._last(np.unique(targets[follows[targets]]))
            way = [task]
            while task != source:
                before = self._back.of_one(task)
                task = self._last(before[follows[before]])
                way.append(task)
            ways.append(np.array(way[::-1], np.int64))
        return ways

    def _last(self, tasks: Int64s) -> int:
        """The one that became visible last; of equals, the one with the smallest number."""
        tasks = np.sort(tasks)
        return int(tasks[np.argmax(self._visible_ps[tasks])])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Neighbours of tasks in one direction, in compressed rows."""

    indptr: Int64s
    neighbours: Int64s

    @classmethod
    def of(cls, source: Int64s, target: Int64s, size: int) -> _Rows:
        order = np.argsort(source, kind="stable")
        indptr = np.zeros(size + 1, np.int64)
        np.cumsum(np.bincount(source, minlength=size), out=indptr[1:])
        return cls(indptr, target[order])

    def of_one(self, task: int) -> Int64s:
        return self.neighbours[self.indptr[task] : self.indptr[task + 1]]

    def reached(
        self, tasks: Int64s, among: npt.NDArray[np.bool_] | None = None
    ) -> npt.NDArray[np.bool_]:
        """Whether each task can be reached from some, which can be (task,)."""
        found = np.zeros(self.indptr.size - 1, np.bool_)
        found[tasks] = True
        while tasks.size:
            first, past = self.indptr[tasks], self.indptr[tasks + 1]
            count = past - first
            ends = np.cumsum(count)
            rows = np.arange(int(ends[-1])) + np.repeat(first - ends + count, count)
            near = self.neighbours[rows]
            near = near[~found[near]] if among is None else near[~found[near] & among[near]]
            found[near] = True
            tasks = np.unique(near)
        return found
