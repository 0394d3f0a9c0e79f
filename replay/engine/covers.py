"""Time that intervals cover together, in parts that do not touch.

Putting millions of intervals in order would take longer than all else that is read off a schedule.
Most of what begins in a short window of time covers one part together; only intervals aside of that
are put in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from replay.engine.columns import IntArray, every
from replay.engine.taskgraph import Bools, Int32s, Int64s, TaskGraph


class Intervals(NamedTuple):
    """Intervals of time: whose each is, and its two ends in picoseconds, three (interval,)."""

    owner: Int64s
    start: Int64s
    end: Int64s


def coverage(num_owners: int, owner: IntArray, start: Int64s, end: Int64s) -> Intervals:
    """Cover of the intervals of each owner: parts that do not touch, in order.

    Parameters
    ----------
    num_owners
        Owners, numbered from 0 on.
    owner, start, end
        (interval,): whose it is, -1 for nobody's, and its two ends from 0 on; those that do not end
        later than they begin cover nothing.

    Examples
    --------
    >>> owner, start, end = np.zeros(3, np.int32), np.array([0, 5, 2]), np.array([2, 6, 4])
    >>> coverage(1, owner, start, end).end.tolist()
    [4, 6]
    """
    from replay.engine.kernels.coverage import PER_WINDOW, WINDOW, Covers, cover

    count = owner.size
    columns = [np.empty(count, np.int64) for _ in range(7)]  # what is not written costs no memory
    memory = Covers(
        num_rows=count,
        owner=np.ascontiguousarray(owner, np.int32),
        start=np.ascontiguousarray(start),
        end=np.ascontiguousarray(end),
        num_owners=num_owners,
        windows=np.empty(count // PER_WINDOW + num_owners, WINDOW.dtype),
        aside_start=columns[0],
        aside_end=columns[1],
        before=np.empty(count, np.int32),
        found_start=columns[2],
        found_end=columns[3],
        cover_owner=columns[4],
        cover_start=columns[5],
        cover_end=columns[6],
    )
    some = slice(0, cover(memory))
    return Intervals(*(column[some].copy() for column in columns[4:]))


def activities(
    graph: TaskGraph, is_special: Bools, of_kind: IntArray, num_ranks: int, is_counted: Bools | None
) -> tuple[IntArray, Int32s]:
    """Activity of each task, and its owner, a pair of activity and rank as one number: two (task,), -1 for none.

    Parameters
    ----------
    is_special
        (resource,): whether its tasks have the second row of `of_kind`.
    of_kind
        (2, kind): the activity of tasks on other resources, and on special ones, as bytes.
    num_ranks
        Ranks; tasks of none have no activity.
    is_counted
        (task,): which tasks have an activity; all by default.
    """
    from replay.engine.kernels.coverage import Activities, name_activities

    activity, owner = np.empty(graph.num_tasks, np.int8), np.empty(graph.num_tasks, np.int32)
    name_activities(
        Activities(
            graph,
            is_counted=every(graph.num_tasks) if is_counted is None else is_counted,
            null=is_special.size,
            is_special=np.append(is_special, False),
            num_kinds=of_kind.shape[1],
            of_kind=of_kind.reshape(-1),
            num_ranks=num_ranks,
            activity=activity,
            owner=owner,
        )
    )
    return activity, owner
