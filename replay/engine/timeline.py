"""The schedule of a graph: start and end of every task, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property

import numpy as np

from replay.engine.columns import IntArray
from replay.engine.taskgraph import Bools, Int8s, Int32s, Int64s, TaskGraph


class TouchOutcome(IntFlag):
    """Outcome of a touch: ``touched & OUTCOME`` is one of three, to which ``EVICTED`` is added."""

    #: The key was in the table.
    HIT = 0
    #: It never was, or was dropped since.
    NEW = 1
    #: It was evicted earlier.
    MISSED = 2
    #: Mask of the above.
    OUTCOME = 3
    #: The table was full: another key left.
    EVICTED = 4


@dataclass(frozen=True, eq=False)
class LineDraws:
    """Draws of touches of tables from lines, one row per draw.

    Attributes
    ----------
    resource, start_ps, end_ps
        (draw,): the line, and when it served it.
    touch
        (draw,): the touch that drew.
    """

    resource: IntArray
    start_ps: Int64s
    end_ps: Int64s
    touch: IntArray

    @classmethod
    def of(cls, graph: TaskGraph, port_served: Int64s, backing_served: Int64s) -> LineDraws:
        """Collect the draws from the times at which each touch's are served (touch,), 0 for none.

        Both are empty where no table has such a line.
        """
        from replay.engine.kernels.reading import Draws, find_draws

        tables, touches = graph.tables, graph.touches
        size = np.count_nonzero(port_served) + np.count_nonzero(backing_served)
        resource, touch = np.empty(size, np.int32), np.empty(size, np.int32)
        start, end = np.empty(size, np.int64), np.empty(size, np.int64)
        found = 0
        for line, served, duration in (
            (tables.port, port_served, touches.port_duration_ps),
            (tables.backing, backing_served, touches.miss_duration_ps),
        ):
            draws = Draws(
                num_touches=served.size,
                served=served,
                table=touches.table,
                line=line,
                duration=duration,
                num_found=found,
                resource=resource,
                start=start,
                end=end,
                touch=touch,
            )
            found = find_draws(draws)
        return cls(resource, start, end, touch)


@dataclass(frozen=True, eq=False)
class Timeline:
    """The schedule of a graph.

    Attributes
    ----------
    graph
        What was scheduled.
    start_ps, end_ps
        When each task got its server and left it (task,), in picoseconds; longer than its
        ``duration_ps`` by what touches of tables cost.
    landed_tile
        Tile each membership landed in (membership,), in the order of
        :attr:`~replay.engine.taskgraph.Gates.member_task`.
    touched
        What each touch found (touch,), in the order of :meth:`GraphBuilder.touch`; see
        :class:`TouchOutcome`.
    extra_latency_ps
        How much longer than its ``latency_ps`` each task was on its way, for what touches of
        tables cost (task,).
    drawn
        What touches drew from lines.

    Examples
    --------
    >>> from replay.engine import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("gpu0.uplink", group="uplink")
    >>> idle = builder.resource("gpu1.uplink", group="uplink")
    >>> ids = builder.add(2, resource=port, duration_ps=10, latency_ps=5, payload_bytes=64)
    >>> timeline = schedule(builder.build())
    >>> timeline.busy_ps().tolist(), timeline.makespan_ps
    ([20, 0], 25)
    """

    graph: TaskGraph
    start_ps: Int64s
    end_ps: Int64s
    landed_tile: Int32s
    touched: Int8s
    extra_latency_ps: Int64s
    drawn: LineDraws

    @property
    def service_ps(self) -> Int64s:
        """(task,): time that each task held its server; on the null resource, the delay itself."""
        return self.end_ps - self.start_ps

    @property
    def extra_service_ps(self) -> Int64s:
        """(task,): time that each task was in service beyond its ``duration_ps``."""
        return self.service_ps - self.graph.duration_ps

    @property
    def on_the_way_ps(self) -> Int64s:
        """(task,): time from the end of each task until it was visible."""
        return self.visible_ps - self.end_ps

    @cached_property
    def visible_ps(self) -> Int64s:
        """(task,): time at which each task became visible to its successors."""
        visible = self.end_ps + self.graph.latency_ps
        if len(self.graph.touches):
            visible += self.extra_latency_ps
        return visible

    @cached_property
    def makespan_ps(self) -> int:
        """Time at which the last task became visible; 0 for a graph without tasks."""
        return int(self.visible_ps.max(initial=0))

    def busy_ps(self, served: Int64s | None = None) -> Int64s:
        """Time in service of each resource, summed over its servers (resource,).

        What tasks elsewhere draw from a line counts. `served` is that of the resource's own tasks
        (resource,), where it is known already.
        """
        size, drawn = len(self.graph.resources), self.drawn
        if served is None:
            served = sum_by(self.graph.resource, self.service_ps, size)
        return served + sum_by(drawn.resource, drawn.end_ps - drawn.start_ps, size)


def sum_by(key: IntArray, values: IntArray | Bools, size: int) -> Int64s:
    """Exact sums of whole numbers by key; the key -1 is left out."""
    from replay.engine.kernels.sums import KeyedValues, sum_keyed

    total = np.zeros(size + 1, np.int64)
    sum_keyed(KeyedValues(num_rows=key.size, key=key, value=values, nobody=size, total=total))
    return total[:-1]
