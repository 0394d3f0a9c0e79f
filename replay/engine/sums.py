"""Sums over the tasks of a graph or a schedule, in one pass each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.engine.columns import IntArray, every
from replay.engine.errors import GraphError
from replay.engine.taskgraph import NEVER, Bools, Int64s, TaskGraph
from replay.engine.timeline import Timeline


@dataclass(frozen=True)
class TaskSums:
    """Sums over tasks.

    Attributes
    ----------
    payload_bytes, wire_bytes, duration_ps
        (kind, place): sums of the tasks' own.
    service_ps
        (kind, place): time in service; the tasks' own where there is no schedule.
    share_ps
        (kind, place): time in service over the parts of its resource, rounded down for each task.
    work_ps, busy_ps
        (resource,): the tasks' own time, and their time in service.
    first_ps, last_ps
        (kind,): start of the first task and time at which the last one is visible; `NEVER` and -1
        where there is none, or no schedule.
    """

    payload_bytes: Int64s
    wire_bytes: Int64s
    duration_ps: Int64s
    service_ps: Int64s
    share_ps: Int64s
    work_ps: Int64s
    busy_ps: Int64s
    first_ps: Int64s
    last_ps: Int64s

    @classmethod
    def of(
        cls,
        graph: TaskGraph,
        place: IntArray,
        num_places: int,
        *,
        timeline: Timeline | None = None,
        parts: IntArray | None = None,
        tasks: slice = slice(None),
        is_counted: Bools | None = None,
    ) -> TaskSums:
        """Add up some tasks.

        Parameters
        ----------
        place
            (resource,): where it lies.
        num_places
            How many places there are.
        timeline
            The tasks' schedule, if it is known.
        parts
            (resource,): what `share_ps` is divided by; 1 if left out.
        tasks
            Which tasks; all if left out.
        is_counted
            Which of these (task,); all if left out.

        Raises
        ------
        GraphError
            If a resource has less than one part.
        """
        from replay.engine.kernels.sums import NUM_SUMS, TaskTallies, tally

        if parts is not None:
            _check_divisors("parts of a resource", parts)
        count = len(graph.resources)
        resource = graph.resource[tasks]
        start = end = visible = np.zeros(0, np.int64)
        if timeline is not None:
            start, end, visible = (of[tasks] for of in (timeline.start_ps, timeline.end_ps, timeline.visible_ps))
        sums = np.zeros((len(graph.kind_names), num_places + 1, NUM_SUMS), np.int64)
        work, busy = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
        first = np.full(len(graph.kind_names), NEVER)
        last = np.full(len(graph.kind_names), -1, np.int64)
        tally(
            TaskTallies(
                num_tasks=resource.size,
                is_counted=every(resource.size) if is_counted is None else is_counted,
                num_places=num_places + 1,
                has_times=timeline is not None,
                resource=resource,
                kind=graph.kind[tasks],
                payload=graph.payload_bytes[tasks],
                wire=graph.wire_bytes[tasks],
                duration=graph.duration_ps[tasks],
                start=start,
                end=end,
                visible=visible,
                null=count,
                place=np.append(place, num_places).astype(np.int64),
                divisor=np.append(np.ones(count, np.int64) if parts is None else parts, 1),
                work=work,
                busy=busy,
                sums=sums.reshape(-1),
                first=first,
                last=last,
            )
        )
        by_place = sums[:, :-1].transpose(2, 0, 1)  # the null resource's place comes last
        payload, wire, duration, service, share = by_place
        return cls(payload, wire, duration, service, share, work[:-1], busy[:-1], first, last)

    def __add__(self, other: TaskSums) -> TaskSums:
        """Both together; of the second there may be more resources."""
        more = other.work_ps.size - self.work_ps.size
        return TaskSums(
            self.payload_bytes + other.payload_bytes,
            self.wire_bytes + other.wire_bytes,
            self.duration_ps + other.duration_ps,
            self.service_ps + other.service_ps,
            self.share_ps + other.share_ps,
            np.pad(self.work_ps, (0, more)) + other.work_ps,
            np.pad(self.busy_ps, (0, more)) + other.busy_ps,
            np.minimum(self.first_ps, other.first_ps),
            np.maximum(self.last_ps, other.last_ps),
        )


def _check_divisors(what: str, numbers: int | IntArray) -> None:
    """Refuse what kernels would divide by, which ends the process."""
    least = numbers if isinstance(numbers, int) else int(numbers.min(initial=1))
    if least < 1:
        raise GraphError(f"{what} must be 1 or more, not {least}")


def busy_by_window(
    services: Sequence[tuple[IntArray, Int64s, Int64s, Bools | None]],
    window_ps: int,
    row: Int64s,
    shape: tuple[int, int],
) -> Int64s:
    """Time in service in each window of time: (row, window).

    Parameters
    ----------
    services
        Resources, starts, ends, and which are counted, four (service,) each; None for all.
    window_ps
        Length of a window; the first begins at 0.
    row
        (resource,): the row that its services are added to.
    shape
        Rows and windows; the last window holds the last end.

    Raises
    ------
    GraphError
        If a window is shorter than a picosecond.
    """
    from replay.engine.kernels.sums import Services, sum_services

    _check_divisors("picoseconds of a window", window_ps)
    busy, filled = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for resource, start, end, is_counted in services:
        sum_services(
            Services(
                num_services=resource.size,
                is_counted=every(resource.size) if is_counted is None else is_counted,
                window=window_ps,
                num_windows=shape[1],
                resource=resource,
                start=start,
                end=end,
                row=row,
                recent=np.zeros(row.size, np.int64),
                opened=np.zeros(row.size, np.int64),
                busy=busy.reshape(-1),
                filled=filled.reshape(-1),
            )
        )
    busy += window_ps * filled.cumsum(axis=1)
    return busy


def drawn_waits(
    timeline: Timeline,
    is_read: Bools,
    is_apart: Bools,
    pool: IntArray,
    parts: IntArray,
    role: IntArray,
    shape: tuple[int, int],
    is_counted: Bools | None,
) -> tuple[Int64s, Int64s]:
    """Service time that draws from lines add to tasks, by pool and role and by pool and kind of line.

    Parameters
    ----------
    is_read, is_apart, pool, parts
        (resource,): whether its tasks are looked at; whether it is a line set apart from others;
        its pool; and the parts that its servers are divided in. Of two last draws that end
        together, the one from a line set apart counts.
    role
        (kind,): -1 for none.
    shape
        Roles and pools.
    is_counted
        (task,): which are looked at; all by default.

    Returns
    -------
    In picoseconds: (role, pool), own time of tasks over the parts less their service over the
    parts, which is not positive; (2, pool), service less own time over the parts, of tasks whose
    last draw is not, and is, from a line set apart.

    Raises
    ------
    GraphError
        If a resource has less than one part.
    """
    from replay.engine.kernels.sums import DrawnWaits, sum_waits

    _check_divisors("parts of a resource", parts)
    graph, drawn = timeline.graph, timeline.drawn
    num_roles, num_pools = shape
    longer, waits = np.zeros((num_roles, num_pools), np.int64), np.zeros((2, num_pools), np.int64)
    sum_waits(
        DrawnWaits(
            graph,
            num_draws=drawn.touch.size,
            touch=drawn.touch,
            line=drawn.resource,
            drawn_end=drawn.end_ps,
            touch_task=graph.touches.task,
            is_counted=every(graph.num_tasks) if is_counted is None else is_counted,
            start=timeline.start_ps,
            end=timeline.end_ps,
            last=np.empty(graph.num_tasks, np.int64),
            is_apart=is_apart,
            is_read=is_read,
            pool=pool,
            divisor=parts,
            num_pools=num_pools,
            role=role,
            longer=longer.reshape(-1),
            waits=waits.reshape(-1),
        )
    )
    return longer, waits
