"""Critical path of a schedule: the chain of tasks and waits that adds up to its time.

The module is long because every cause of a wait (a task, a resource, credits, a table) is followed
here, by one walk back through the schedule.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from replay.engine.columns import IntArray, every, order_of
from replay.engine.taskgraph import LINE, NEVER, Bools, Int64s, TaskGraph
from replay.engine.timeline import Timeline

#: Stands among the kinds for what touches of tables draw from a line.
DRAWN = "(drawn)"
#: What the time of a link goes by with.
CAUSES = ("service", "queueing", "latency", "credits")


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """A chain of tasks, each ready when the one before became visible, up to the last of all.

    Every picosecond of the makespan belongs to one task of the chain and one cause. All arrays
    have shape (link,), first task first; times are in picoseconds.

    Attributes
    ----------
    kind_names, groups
        Names of the kinds of task, and the group of each resource.
    task, kind, resource
        The tasks of the chain.
    queueing_ps
        Waiting while all servers of the resource were in service.
    credits_ps
        Waiting while a server was free: for credits, one's own or those of a task ahead.
    service_ps
        Holding a server (or, on the null resource, the delay itself).
    latency_ps
        On the way, after leaving the server.
    behind
        (link,): the queueing time by the kind of the tasks that were in service meanwhile (`DRAWN`
        for what was drawn from a line); each adds up to its ``queueing_ps``.
    """

    kind_names: tuple[str, ...]
    groups: tuple[str, ...]
    task: Int64s
    kind: IntArray
    resource: IntArray
    queueing_ps: Int64s
    credits_ps: Int64s
    service_ps: Int64s
    latency_ps: Int64s
    behind: list[dict[str, int]]

    @property
    def behind_ps(self) -> dict[str, int]:
        """The queueing time of the chain by the kind of what was in service meanwhile."""
        return _add(self.behind)

    def by_cause(self) -> dict[str, int]:
        """Time by cause; adds up to the makespan."""
        return {cause: int(self.of(cause).sum()) for cause in CAUSES}

    def of(self, cause: str) -> Int64s:
        """(link,): time of one of `CAUSES`."""
        times: Int64s = getattr(self, f"{cause}_ps")
        return times

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Time by kind of task and cause, kinds in order of their first appearance."""
        return self._by([self.kind_names[kind] for kind in self.kind.tolist()])

    def by_group(self) -> dict[str, dict[str, int]]:
        """Time by group of resources and cause; pure delays are the group ``(delay)``."""
        groups = (*self.groups, "(delay)")  # the null resource counts from the end
        return self._by([groups[where] for where in self.resource.tolist()])

    def behind_by_kind(self) -> dict[str, dict[str, int]]:
        """Queueing time by the kind of the task that waited, and of what was in service meanwhile."""
        waited: dict[str, list[dict[str, int]]] = {}
        for kind, behind in zip(self.kind.tolist(), self.behind, strict=True):
            if behind:
                waited.setdefault(self.kind_names[kind], []).append(behind)
        return {kind: _add(behind) for kind, behind in waited.items()}

    def lengths(self, kinds: Collection[str], cause: str) -> Iterator[tuple[int, str, str, int]]:
        """Give tasks of some kinds with time of a cause: number, kind, group as in `by_group`, picoseconds."""
        groups = (*self.groups, "(delay)")
        columns = (self.task, self.kind, self.resource, self.of(cause))
        for task, kind, where, length in zip(*(column.tolist() for column in columns), strict=True):
            if length and self.kind_names[kind] in kinds:
                yield task, self.kind_names[kind], groups[where], length

    def _by(self, names: list[str]) -> dict[str, dict[str, int]]:
        sums = {name: dict.fromkeys(CAUSES, 0) for name in dict.fromkeys(names)}
        for cause in CAUSES:
            for name, time in zip(names, self.of(cause).tolist(), strict=True):
                sums[name][cause] += time
        return sums


@dataclass(frozen=True, eq=False)
class LastMet:
    """Ready times of tasks, and the last task that each waited for.

    Attributes
    ----------
    ready_ps
        (task,): when the last one that it waited for became visible; 0 if it waited for none.
    cause
        (task,): the number of that one, -1 for none.
    """

    ready_ps: Int64s
    cause: Int64s

    @classmethod
    def nobody(cls, num_tasks: int) -> LastMet:
        """Table of tasks that have met nobody yet."""
        return cls(np.zeros(num_tasks, np.int64), np.full(num_tasks, -1, np.int64))


def last_met(
    timeline: Timeline,
    is_visible: Bools | None = None,
    before: LastMet | None = None,
    left: IntArray | None = None,
) -> tuple[LastMet, LastMet]:
    """Look at what each task waited for.

    Parameters
    ----------
    timeline
        A schedule.
    is_visible
        (task,): whether it has become visible in this schedule; all by default.
    before
        The task that each waited for last in earlier schedules, edges alone; it is overwritten.
    left
        Tasks that are still to wait (left task,).

    Returns
    -------
    That of all tasks; and that of those left, edges alone. Of several that became visible at one
    moment the one with the smallest number is taken, edges before gates.
    """
    from replay.engine.kernels.reading import Causes, last_admitted, last_met_edges

    graph, gates = timeline.graph, timeline.graph.gates
    met = LastMet.nobody(graph.num_tasks) if before is None else before
    whole = Causes(
        timeline,
        graph,
        gates,
        met,
        is_visible=every(graph.num_tasks) if is_visible is None else is_visible,
        number=np.arange(graph.num_tasks, dtype=np.int32) if graph.ids is None else graph.ids,
    )
    last_met_edges(whole)
    rows = np.zeros(0, np.int64) if left is None else left
    edges = LastMet(met.ready_ps[rows], met.cause[rows])
    last_admitted(whole)
    return met, edges


class Links(NamedTuple):
    """Tasks that are links of a chain, and what they waited for.

    Attributes
    ----------
    task, kind, resource
        (link,).
    ready_ps, start_ps, end_ps, visible_ps
        (link,).
    cause
        (link,): for whom each waited last, -1 for nobody.
    """

    task: Int64s
    kind: IntArray
    resource: IntArray
    ready_ps: Int64s
    start_ps: Int64s
    end_ps: Int64s
    visible_ps: Int64s
    cause: Int64s


def critical_path(timeline: Timeline) -> CriticalPath:
    """Walk back from the task that became visible last, always to whoever was waited for last.

    Of several that became visible at that moment the one with the smallest id is taken (edges
    before gates), so that the path is the same in every run.

    Parameters
    ----------
    timeline
        A schedule.

    Returns
    -------
    The chain, whose parts add up to ``timeline.makespan_ps`` exactly.

    Examples
    --------
    >>> from replay.engine import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send", "compute"])
    >>> port = builder.resource("uplink", group="uplink")
    >>> sends = builder.add(2, resource=port, duration_ps=10, latency_ps=5)
    >>> done = builder.join(sends, duration_ps=7, kind=1)
    >>> path = critical_path(schedule(builder.build()))
    >>> path.task.tolist(), path.by_cause()
    ([1, 2], {'service': 17, 'queueing': 10, 'latency': 5, 'credits': 0})
    """
    graph = timeline.graph
    task = np.zeros(0, np.int64)
    cause = ready = task
    if graph.num_tasks:
        met, _ = last_met(timeline)
        cause, ready = met.cause, met.ready_ps
        task = _walk_back(int(np.argmax(timeline.visible_ps)), cause)
    links = Links(
        task,
        graph.kind[task].astype(np.int64),
        graph.resource[task].astype(np.int64),
        ready[task],
        timeline.start_ps[task],
        timeline.end_ps[task],
        timeline.visible_ps[task],
        cause[task],
    )
    schedule = (graph.resource, graph.kind, timeline.start_ps, timeline.end_ps)
    served = ServedTasks.meanwhile(links, len(graph.resources), [schedule])
    return path_of(graph, links, *served.waits(graph, links))


def _walk_back(last: int, cause: Int64s) -> Int64s:
    """Tasks of the chain that ends with ``last``, first one first."""
    causes = cause.data  # NumPy's own numbers would take five times as long
    chain = []
    while last >= 0:
        chain.append(last)
        last = causes[last]
    return np.array(chain[::-1], np.int64)


def path_of(graph: TaskGraph, links: Links, queueing_ps: Int64s, behind: list[dict[str, int]]) -> CriticalPath:
    """Put links and their waits together.

    Parameters
    ----------
    graph
        What names kinds and resources.
    links
        The chain, first task first.
    queueing_ps, behind
        (link,): how long each waited for servers, and the same by what these did.
    """
    path = CriticalPath(
        graph.kind_names,
        graph.resources.groups,
        links.task,
        links.kind,
        links.resource,
        queueing_ps,
        links.start_ps - links.ready_ps - queueing_ps,
        links.end_ps - links.start_ps,
        links.visible_ps - links.end_ps,
        behind,
    )
    _check(path, graph, int(links.visible_ps.max(initial=0)))
    return path


def _add(several: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in several:
        for name, time in one.items():
            total[name] = total.get(name, 0) + time
    return total


def waiting(links: Links) -> Int64s:
    """Links that waited at a resource."""
    return ((links.start_ps > links.ready_ps) & (links.resource >= 0)).nonzero()[0]


def _check(path: CriticalPath, graph: TaskGraph, makespan_ps: int) -> None:
    """Refuse a path with a negative part, or whose parts do not add up to the makespan."""
    for cause in CAUSES:
        parts = path.of(cause)
        if parts.size and int(parts.min()) < 0:
            link = int(np.argmin(parts))
            where = graph.resources.name(int(path.resource[link]))
            message = (
                f"defect of moereplay: task {int(path.task[link])} "
                f"({path.kind_names[int(path.kind[link])]} on {where}) "
                f"on the critical path has {parts[link]} ps of {cause}"
            )
            raise AssertionError(message)
    total, behind = sum(path.by_cause().values()), sum(path.behind_ps.values())
    if total != makespan_ps or behind != int(path.queueing_ps.sum()):
        message = (
            f"defect of moereplay: the critical path adds up to {total} ps of {makespan_ps}, "
            f"its queueing by kind to {behind} ps of {path.queueing_ps.sum()}"
        )
        raise AssertionError(message)


class ServedTasks:
    """Services of tasks, by resource and start: what was in service during a wait is one slice.

    Parameters
    ----------
    resource, kind, start_ps, end_ps
        (service,): of real resources; services of no length are left out.
    """

    def __init__(self, resource: IntArray, kind: IntArray, start_ps: Int64s, end_ps: Int64s) -> None:
        order = order_of(resource, start_ps)
        resource, self._kind = resource[order], kind[order]
        self._start_ps, self._end_ps = start_ps[order], end_ps[order]
        size = int(resource.max(initial=-1)) + 1
        self._first = resource.searchsorted(np.arange(size + 1))
        self._longest = np.zeros(size, np.int64)
        np.maximum.at(self._longest, resource, self._end_ps - self._start_ps)

    @classmethod
    def meanwhile(
        cls,
        links: Links,
        num_resources: int,
        schedules: Iterable[tuple[IntArray, IntArray, Int64s, Int64s]],
    ) -> ServedTasks:
        """Find the services of schedules that links may have waited for.

        Parameters
        ----------
        schedules
            Resources, kinds, starts and ends of tasks, four (task,) each.
        """
        from replay.engine.kernels.reading import Meanwhile, find_services

        waits = waiting(links)
        where = links.resource[waits]
        low, high = np.full(num_resources + 1, NEVER), np.full(num_resources + 1, -1, np.int64)
        np.minimum.at(low, where, links.ready_ps[waits])
        np.maximum.at(high, where, links.start_ps[waits])
        rows = []
        for resource, kind, start_ps, end_ps in schedules:
            found = np.empty(resource.size, np.int32)
            count = find_services(
                Meanwhile(
                    num_services=resource.size,
                    resource=resource,
                    start=start_ps,
                    end=end_ps,
                    low=low,
                    high=high,
                    null=num_resources,
                    found=found,
                )
            )
            some = found[:count]
            rows.append([resource[some], kind[some], start_ps[some], end_ps[some]])
        return cls(*(np.concatenate(column) for column in zip(*rows, strict=True)))

    def waits(self, graph: TaskGraph, links: Links) -> tuple[Int64s, list[dict[str, int]]]:
        """Time that each link waited for busy servers, and the kinds of task that they served."""
        queueing = np.zeros(len(links.task), np.int64)
        behind: list[dict[str, int]] = [{} for _ in queueing]
        for link in waiting(links).tolist():
            low, high = int(links.ready_ps[link]), int(links.start_ps[link])
            resource = int(links.resource[link])
            kinds, begin, end = self._during(resource, low, high)
            if graph.resources.discipline[resource] == LINE:
                # What is no task's is drawn by touches: nobody waits at a line for anything else.
                queueing[link] = high - low
                drawn = high - low - int((end - begin).sum())
                if drawn:
                    behind[link][DRAWN] = drawn
                _share(behind[link], graph, kinds, end - begin, high - low - drawn)
                continue
            queueing[link] = _full_length(begin, end, int(graph.resources.servers[resource]))
            _share(behind[link], graph, kinds, end - begin, int(queueing[link]))
        return queueing, behind

    def _during(self, resource: int, low: int, high: int) -> tuple[IntArray, Int64s, Int64s]:
        """Kinds, beginnings and ends of what a resource serves between two moments."""
        if resource >= self._longest.size:
            return self._kind[:0], self._start_ps[:0], self._end_ps[:0]
        some = slice(int(self._first[resource]), int(self._first[resource + 1]))
        starts = self._start_ps[some]
        near = slice(
            some.start + int(starts.searchsorted(low - self._longest[resource])),
            some.start + int(starts.searchsorted(high)),
        )
        serves = (self._end_ps[near] > low).nonzero()[0] + near.start
        begin = np.maximum(self._start_ps[serves], low)
        return self._kind[serves], begin, np.minimum(self._end_ps[serves], high)


def _full_length(begin: Int64s, end: Int64s, servers: int) -> int:
    """Length of the time in which all servers are in service at once."""
    if servers == 1:
        return int((end - begin).sum())
    times = np.concatenate([begin, end])
    order = times.argsort(kind="stable")
    busy = np.where(order < begin.size, 1, -1).cumsum()
    return int((np.diff(times[order]) * (busy[:-1] == servers)).sum())


def _share(behind: dict[str, int], graph: TaskGraph, kind: IntArray, overlap: Int64s, total: int) -> None:
    """Split a wait over the kinds in service meanwhile, in proportion; what is left goes last."""
    if total == 0:
        return
    kinds = np.bincount(kind, weights=overlap)
    present = kinds.nonzero()[0]
    weight = int(kinds.sum())
    rest = total
    for kind in present[:-1].tolist():
        part = total * int(kinds[kind]) // weight
        name = graph.kind_names[kind]
        behind[name] = behind.get(name, 0) + part
        rest -= part
    name = graph.kind_names[int(present[-1])]
    behind[name] = behind.get(name, 0) + rest
