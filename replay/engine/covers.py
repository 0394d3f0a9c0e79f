"""Time that intervals cover together, in parts that do not touch.

Putting millions of intervals in order would take longer than all else that is read off a schedule.
What begins in a short window of time is put together instead; only intervals of windows that may
have a gap are put in order.
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


_NOTHING = Intervals(*(np.zeros(0, np.int64) for _ in Intervals._fields))


def coverage(num_owners: int, owner: IntArray, start: Int64s, end: Int64s, more: Intervals = _NOTHING) -> Intervals:
    """Cover of the intervals of each owner: parts that do not touch, in order.

    Parameters
    ----------
    num_owners
        Owners, numbered from 0 on.
    owner, start, end
        (interval,): whose it is, -1 for nobody's, and its two ends from 0 on; those that do not end
        later than they begin cover nothing.
    more
        Further ones.

    Examples
    --------
    >>> owner, start, end = np.zeros(3, np.int32), np.array([0, 5, 2]), np.array([2, 6, 4])
    >>> coverage(1, owner, start, end).end.tolist()
    [4, 6]
    """
    from replay.engine.kernels.coverage import PER_WINDOW, WINDOW, Covers, cover

    count = owner.size + more.owner.size
    columns = [np.empty(count, np.int64) for _ in range(5)]  # what is not written costs no memory
    of_owner = np.zeros((4, num_owners), np.int64)
    memory = Covers(
        num_rows=owner.size,
        owner=owner,
        start=start,
        end=end,
        num_more=more.owner.size,
        more_owner=more.owner,
        more_start=more.start,
        more_end=more.end,
        num_owners=num_owners,
        base=of_owner[0],
        first=of_owner[1],
        last=of_owner[2],
        shift=of_owner[3],
        windows=np.empty(count // PER_WINDOW + num_owners, WINDOW.dtype),
        found_start=columns[0],
        found_end=columns[1],
        cover_owner=columns[2],
        cover_start=columns[3],
        cover_end=columns[4],
    )
    some = slice(0, cover(memory))
    return Intervals(*(column[some].copy() for column in columns[2:]))


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
