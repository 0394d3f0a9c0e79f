"""The schedule of a graph: start and end of every task, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from functools import cached_property

import numpy as np
import numpy.typing as npt

from replay.engine.columns import IntArray
from replay.engine.taskgraph import Bools, Int8s, Int32s, Int64s, TaskGraph


class Touched(IntFlag):
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


@dataclass(frozen=True)
class Span:
    """Times of service of the tasks of one kind.

    Attributes
    ----------
    start_ps
        Start of the first.
    end_ps
        When the last one became visible.
    busy_ps
        Time in which at least one of them held a server.
    """

    start_ps: int
    end_ps: int
    busy_ps: int


@dataclass(frozen=True, eq=False)
class Drawn:
    """What touches of tables drew from lines, one row per draw.

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
    def of(cls, graph: TaskGraph, port_served: Int64s, backing_served: Int64s) -> Drawn:
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
        :class:`Touched`.
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
    >>> timeline.utilisation()
    {'uplink': 0.4}
    """

    graph: TaskGraph
    start_ps: Int64s
    end_ps: Int64s
    landed_tile: Int32s
    touched: Int8s
    extra_latency_ps: Int64s
    drawn: Drawn

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

        What tasks elsewhere draw from a line counts. That of the resource's own tasks is taken as
        given, if it is (resource,).
        """
        size, drawn = len(self.graph.resources), self.drawn
        if served is None:
            served = sum_by(self.graph.resource, self.service_ps, size)
        return served + sum_by(drawn.resource, drawn.end_ps - drawn.start_ps, size)

    def utilisation(self) -> dict[str, float]:
        """Share of the makespan that the servers of each group were in service (0 to 1)."""
        busy = self.busy_ps()
        shares = {}
        groups = np.array(self.graph.resources.groups)
        for group in dict.fromkeys(self.graph.resources.groups):
            is_member = groups == group
            servers = int(self.graph.resources.servers[is_member].sum(dtype=np.int64))
            offered = servers * self.makespan_ps
            shares[group] = int(busy[is_member].sum()) / offered if offered else 0.0
        return shares

    def spans(self) -> dict[str, Span]:
        """First start, last end and time in service of every kind that occurs, by name."""
        found = {}
        for kind, name in enumerate(self.graph.kind_names):
            of_kind = np.flatnonzero(self.graph.kind == kind)
            if of_kind.size:
                start, end = self.start_ps[of_kind], self.end_ps[of_kind]
                last = int(self.visible_ps[of_kind].max())
                found[name] = Span(int(start.min()), last, union_length(start, end))
        return found

    def bytes_by_resource(self) -> tuple[Int64s, Int64s]:
        """Payload and wire bytes that passed each resource, by kind: two (resource, kind)."""
        graph = self.graph
        num_kinds = len(graph.kind_names)
        shape = (len(graph.resources), num_kinds)
        key = np.where(
            graph.resource < 0, -1, graph.resource.astype(np.int64) * num_kinds + graph.kind
        )
        size = shape[0] * shape[1]
        payload = sum_by(key, graph.payload_bytes, size).reshape(shape)
        return payload, sum_by(key, graph.wire_bytes, size).reshape(shape)


def sum_by(key: IntArray, values: IntArray | Bools, size: int) -> Int64s:
    """Exact sums of whole numbers by key; the key -1 is left out."""
    from replay.engine.kernels.sums import Keyed, sum_keyed

    total = np.zeros(size + 1, np.int64)
    sum_keyed(Keyed(num_rows=key.size, key=key, value=values, nobody=size, total=total))
    return total[:-1]


def union_length(starts: npt.NDArray[np.signedinteger], ends: npt.NDArray[np.signedinteger]) -> int:
    """Length of what intervals cover together.

    Parameters
    ----------
    starts, ends
        The intervals (interval,), in any order; they may overlap.

    Examples
    --------
    >>> union_length(np.array([5, 0, 1]), np.array([6, 2, 3]))
    4
    """
    if starts.size == 0:
        return 0
    starts, ends = np.sort(starts), np.sort(ends)
    # Nothing is covered between an end and a start before which as many have begun as have ended.
    gaps = np.maximum(0, starts[1:] - ends[:-1])
    return int(ends[-1] - starts[0] - gaps.sum())


def difference_length(
    starts: npt.NDArray[np.signedinteger],
    ends: npt.NDArray[np.signedinteger],
    other_starts: npt.NDArray[np.signedinteger],
    other_ends: npt.NDArray[np.signedinteger],
) -> int:
    """Length of what the first intervals cover and the others do not.

    Parameters
    ----------
    starts, ends
        Intervals (interval,), such as those of communication.
    other_starts, other_ends
        Intervals (other,), such as those of computation.

    Examples
    --------
    >>> difference_length(np.array([0]), np.array([10]), np.array([4, 8]), np.array([5, 20]))
    7
    """
    both = union_length(np.concatenate([starts, other_starts]), np.concatenate([ends, other_ends]))
    return both - union_length(other_starts, other_ends)
