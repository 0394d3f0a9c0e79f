"""Why a schedule took as long as it did: the chain of tasks and waits that adds up to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from replay.graph.columns import IntArray, fixed
from replay.graph.taskgraph import LINE, Int64s, TaskGraph
from replay.graph.timeline import Timeline

#: Stands among the kinds for what touches of tables draw from a line.
DRAWN = "(drawn)"


@dataclass(frozen=True, eq=False)
class CriticalPath:
    """A chain of tasks, each ready when the one before became visible, up to the last of all.

    Every picosecond of the makespan belongs to one task of the chain and one cause. All arrays
    have shape (link,), first task first, and hold picoseconds.

    Attributes
    ----------
    graph
        The graph.
    task
        The tasks of the chain.
    queueing_ps
        Waiting while all servers of the resource were in service.
    credits_ps
        Waiting while a server was free: for credits, one's own or those of a task ahead.
    service_ps
        Holding a server (or, on the null resource, the delay itself).
    latency_ps
        On the way, after leaving the server.
    behind_ps
        The queueing time by the kind of the tasks that were in service meanwhile (`DRAWN` for what
        was drawn from a line); sums to the sum of ``queueing_ps``.
    """

    graph: TaskGraph
    task: Int64s
    queueing_ps: Int64s
    credits_ps: Int64s
    service_ps: Int64s
    latency_ps: Int64s
    behind_ps: dict[str, int]

    def by_cause(self) -> dict[str, int]:
        """Time by cause; adds up to the makespan."""
        return {
            "service": int(self.service_ps.sum()),
            "queueing": int(self.queueing_ps.sum()),
            "latency": int(self.latency_ps.sum()),
            "credits": int(self.credits_ps.sum()),
        }

    def by_kind(self) -> dict[str, dict[str, int]]:
        """Time by kind of task and cause, kinds in order of their first appearance."""
        return self._by(lambda task: self.graph.kind_names[int(self.graph.kind[task])])

    def by_group(self) -> dict[str, dict[str, int]]:
        """Time by group of resources and cause; pure delays are the group ``(delay)``."""
        groups = self.graph.resources.groups

        def group_of(task: int) -> str:
            where = int(self.graph.resource[task])
            return "(delay)" if where < 0 else groups[where]

        return self._by(group_of)

    def _by(self, key: Callable[[int], str]) -> dict[str, dict[str, int]]:
        names = [key(int(task)) for task in self.task]
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        rows = np.array([numbers[name] for name in names], np.int64)
        table: dict[str, dict[str, int]] = {name: {} for name in numbers}
        for cause in ("service", "queueing", "latency", "credits"):
            sums = np.zeros(len(numbers), np.int64)
            np.add.at(sums, rows, getattr(self, f"{cause}_ps"))
            for name, number in numbers.items():
                table[name][cause] = int(sums[number])
        return table


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
    >>> from replay.graph import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send", "compute"])
    >>> port = builder.resource("uplink", group="uplink")
    >>> sends = builder.add(2, resource=port, duration_ps=10, latency_ps=5)
    >>> done = builder.join(sends, duration_ps=7, kind=1)
    >>> path = critical_path(schedule(builder.build()))
    >>> path.task.tolist(), path.by_cause()
    ([1, 2], {'service': 17, 'queueing': 10, 'latency': 5, 'credits': 0})
    """
    from replay.graph import kernels

    graph, gates = timeline.graph, timeline.graph.gates
    nothing = np.zeros(0, np.int64)
    if graph.num_tasks == 0:
        return CriticalPath(graph, nothing, nothing, nothing, nothing, nothing, {})
    visible = timeline.visible_ps
    ready, cause = kernels.last_met(
        visible,
        fixed(graph.indptr),
        fixed(graph.successors),
        fixed(gates.member_task),
        fixed(gates.member_waiter),
        timeline.landed_tile,
        fixed(gates.tile_first),
        fixed(gates.tile_last),
    )
    task = kernels.walk_back(int(np.argmax(visible)), cause)
    wait = timeline.start_ps[task] - ready[task]
    queueing, behind = _queueing(timeline, task, ready[task])
    path = CriticalPath(
        graph,
        task,
        queueing,
        wait - queueing,
        timeline.end_ps[task] - timeline.start_ps[task],
        timeline.on_the_way_ps[task],
        behind,
    )
    _check(path, timeline.makespan_ps)
    return path


def _check(path: CriticalPath, makespan_ps: int) -> None:
    """Refuse a path with a negative part, or whose parts do not add up to the makespan."""
    causes = {
        "service": path.service_ps,
        "queueing": path.queueing_ps,
        "latency": path.latency_ps,
        "credits": path.credits_ps,
    }
    for cause, parts in causes.items():
        link = int(np.argmin(parts))
        if parts[link] < 0:
            message = (
                f"defect of moereplay: {path.graph.describe(int(path.task[link]))} "
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


def _queueing(timeline: Timeline, chain: Int64s, ready: Int64s) -> tuple[Int64s, dict[str, int]]:
    """Time that each link waited for busy servers, and the kinds of task that they served."""
    graph = timeline.graph
    queueing = np.zeros(chain.size, np.int64)
    behind: dict[str, int] = {}
    waited = np.flatnonzero((timeline.start_ps[chain] > ready) & (graph.resource[chain] >= 0))
    where = graph.resource[chain[waited]]
    is_asked = np.zeros(len(graph.resources) + 1, np.bool_)
    is_asked[where] = True
    service = timeline.service_ps
    # In order of (resource, start): what was in service during a wait is then one slice.
    served = np.flatnonzero(is_asked[graph.resource] & (service > 0))
    served = served[_by_resource_and_start(graph.resource[served], timeline.start_ps[served])]
    first = np.searchsorted(graph.resource[served], np.arange(len(graph.resources) + 1))
    longest = np.zeros(len(graph.resources), np.int64)
    np.maximum.at(longest, graph.resource[served], service[served])
    for link, resource in zip(waited.tolist(), where.tolist(), strict=True):
        low, high = int(ready[link]), int(timeline.start_ps[chain[link]])
        of_resource = served[first[resource] : first[resource + 1]]
        starts = timeline.start_ps[of_resource]
        near = of_resource[
            np.searchsorted(starts, low - longest[resource]) : np.searchsorted(starts, high)
        ]
        near = near[timeline.end_ps[near] > low]
        begin = np.maximum(timeline.start_ps[near], low)
        end = np.minimum(timeline.end_ps[near], high)
        if graph.resources.discipline[resource] == LINE:
            # What is no task's is drawn by touches: nobody waits at a line for anything else.
            queueing[link] = high - low
            drawn = high - low - int((end - begin).sum())
            if drawn:
                behind[DRAWN] = behind.get(DRAWN, 0) + drawn
            _share(behind, graph, near, end - begin, high - low - drawn)
            continue
        servers = int(graph.resources.servers[resource])
        queueing[link] = _full_length(begin, end, servers)
        _share(behind, graph, near, end - begin, int(queueing[link]))
    return queueing, behind


def _by_resource_and_start(resource: IntArray, start_ps: Int64s) -> IntArray:
    """Order of (resource, start); one sort of one number where both fit into it."""
    span = int(start_ps.max(initial=0)) + 1
    if (int(resource.max(initial=0)) + 1) * span > np.iinfo(np.int64).max:
        return np.lexsort((start_ps, resource))
    # Said outright: numpy before 2 keeps 32 bits in a product of 32-bit numbers and one number.
    return np.argsort(resource.astype(np.int64) * span + start_ps)


def _full_length(begin: Int64s, end: Int64s, servers: int) -> int:
    """Length of the time in which all servers are in service at once."""
    if servers == 1:
        return int((end - begin).sum())
    times = np.concatenate([begin, end])
    step = np.concatenate([np.ones(begin.size, np.int64), -np.ones(end.size, np.int64)])
    order = np.argsort(times, kind="stable")
    busy = np.cumsum(step[order])
    return int((np.diff(times[order]) * (busy[:-1] == servers)).sum())


def _share(
    behind: dict[str, int], graph: TaskGraph, tasks: Int64s, overlap: Int64s, total: int
) -> None:
    """Split a wait over the kinds in service meanwhile, in proportion; what is left goes last."""
    if total == 0:
        return
    kinds = np.bincount(graph.kind[tasks], weights=overlap)
    present = np.flatnonzero(kinds)
    weight = int(kinds.sum())
    rest = total
    for kind in present[:-1].tolist():
        part = total * int(kinds[kind]) // weight
        name = graph.kind_names[kind]
        behind[name] = behind.get(name, 0) + part
        rest -= part
    name = graph.kind_names[int(present[-1])]
    behind[name] = behind.get(name, 0) + rest
