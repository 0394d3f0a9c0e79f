"""The server of its resource that each task was on: the engine only counts them."""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

from replay.engine.taskgraph import Int64s

Ints = npt.NDArray[np.signedinteger]


def interval_lanes(group: Ints, start: Ints, end: Ints) -> Int64s:
    """Give overlapping intervals of a group different lanes, as few as possible.

    Intervals take the lowest lane that is free, in order of their start (then end, then
    position); one that ends when another starts makes room for it. A group needs as many lanes
    as intervals overlap at most: no more than servers, where the intervals are services.

    Parameters
    ----------
    group
        Whom the interval belongs to (interval,), such as a resource.
    start, end
        Its two ends (interval,).

    Returns
    -------
    (interval,) lanes, counted from 0 in each group.

    Examples
    --------
    >>> group, start = np.array([7, 7, 7, 8]), np.array([0, 1, 2, 0])
    >>> interval_lanes(group, start, np.array([2, 5, 3, 9])).tolist()
    [0, 1, 0, 0]
    """
    lanes = np.zeros(group.size, np.int64)
    order = np.lexsort((end, start, group))
    groups, starts, ends = group[order], start[order], end[order]
    same = np.flatnonzero((groups[1:] == groups[:-1]) & (starts[1:] < ends[:-1]))
    # Where no interval meets its successor none meets a later one: all are on lane 0.
    for crowded in np.unique(groups[same]):
        low, high = np.searchsorted(groups, [crowded, crowded + 1])
        lanes[order[low:high]] = _greedy(starts[low:high], ends[low:high])
    return lanes


def _greedy(starts: Ints, ends: Ints) -> list[int]:
    """Lanes of intervals in order of their start."""
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    used = 0
    lanes = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
