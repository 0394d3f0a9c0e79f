# mypy: allow-untyped-defs, allow-untyped-calls
"""Time that intervals cover together; what `replay.engine.covers` asks for."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import entry, inline
from replay.engine.backend.memory import FixedNumber, KernelMemory, RecordLayout, Records, StridedColumn, Vector
from replay.engine.kernels.changes import sort_pairs
from replay.engine.kernels.layout import NEVER

#: Intervals in a window, in the mean.
PER_WINDOW = 16

#: Intervals that begin in a window: a part of what they cover, from the first to the reach, and the last of those
#: that lie aside of it.
WINDOW = RecordLayout("window", first=8, reach=8, aside=8)


class Covers(KernelMemory):
    """Intervals of some owners; windows of time, as many of each owner, one owner after the other; and the covers."""

    num_rows = FixedNumber()
    owner = Vector(np.int32)  # -1: nobody's
    start = Vector(np.int64)
    end = Vector(np.int64)
    num_owners = FixedNumber()
    windows = Records(WINDOW)
    # Intervals that lie aside, and the number of the one before in the same window, -1 for none.
    aside_start = Vector(np.int64)
    aside_end = Vector(np.int64)
    before = Vector(np.int32)
    # Intervals of one window.
    found_start = Vector(np.int64)
    found_end = Vector(np.int64)
    # Of each part of a cover.
    cover_owner = Vector(np.int64)
    cover_start = Vector(np.int64)
    cover_end = Vector(np.int64)


@inline
def _gather(c, num_windows, first, shift):
    """Note of each window what begins there: most of it covers one part together."""
    for number in range(c.num_owners * num_windows):
        window = c.windows[number]
        window.first = NEVER
        window.reach = -1
        window.aside = -1
    num_aside = 0
    for row in range(c.num_rows):
        owner, start, end = c.owner[row], c.start[row], c.end[row]
        if owner < 0 or end <= start:
            continue
        window = c.windows[owner * num_windows + ((start - first) >> shift)]
        if window.reach < 0 or (start <= window.reach and end >= window.first):
            window.first = start if start < window.first else window.first
            window.reach = end if end > window.reach else window.reach
        else:
            c.aside_start[num_aside] = start
            c.aside_end[num_aside] = end
            c.before[num_aside] = window.aside
            window.aside = num_aside
            num_aside += 1


@inline
def _find(c, window, reach):
    """Put a window's part and what lies aside in order, but for what is covered anyway; returns how many."""
    first, past = window.first, window.reach
    c.found_start[0] = first
    c.found_end[0] = past
    count = 1
    aside = window.aside
    while aside >= 0:
        start, end = c.aside_start[aside], c.aside_end[aside]
        if end > reach and (start < first or end > past):
            c.found_start[count] = start
            c.found_end[count] = end
            count += 1
        aside = c.before[aside]
    if count > 1:
        sort_pairs(c.found_start, c.found_end, 0, count)
    return count


@entry(Covers)
def cover(c):
    """Find what the intervals of each owner cover, as parts that do not touch; returns how many."""
    num_rows, first, last = 0, NEVER, -1
    for row in range(c.num_rows):
        start = c.start[row]
        if c.owner[row] >= 0 and c.end[row] > start:
            num_rows += 1
            first = start if start < first else first
            last = start if start > last else last
    if num_rows == 0:
        return 0
    # The shortest powers of two of which there are no more than there should be.
    wanted, shift = num_rows // (PER_WINDOW * c.num_owners), 0
    while (last - first) >> shift > wanted:
        shift += 1
    num_windows = ((last - first) >> shift) + 1
    _gather(c, num_windows, first, shift)
    count = 0
    for owner in range(c.num_owners):
        reach = -1
        for number in range(owner * num_windows, (owner + 1) * num_windows):
            window = c.windows[number]
            if window.reach < 0:
                continue
            for place in range(_find(c, window, reach)):
                start, end = c.found_start[place], c.found_end[place]
                if start > reach:
                    c.cover_owner[count] = owner
                    c.cover_start[count] = start
                    count += 1
                if end > reach:
                    c.cover_end[count - 1] = end
                    reach = end
    return count


class Activities(KernelMemory):
    """Tasks, and what is under way for an owner while each of them runs."""

    num_tasks = FixedNumber()
    is_counted = StridedColumn()
    resource = StridedColumn()
    kind = StridedColumn()
    rank = StridedColumn()
    null = FixedNumber()
    is_special = StridedColumn()  # of each resource, the null one last
    num_kinds = FixedNumber()
    of_kind = Vector(np.int8)  # (special, kind): the activity, -1 for none
    num_ranks = FixedNumber()
    activity = Vector(np.int8)
    owner = Vector(np.int32)  # (activity, rank)


@entry(Activities)
def name_activities(s):
    """Name the activity of each task, and whose it is; -1 for none."""
    for task in range(s.num_tasks):
        activity = -1
        owner = -1
        rank = s.rank[task]
        if rank >= 0 and s.is_counted[task] != 0:
            resource = s.resource[task]
            if resource < 0:
                resource = s.null
            activity = s.of_kind[s.is_special[resource] * s.num_kinds + s.kind[task]]
            if activity >= 0:
                owner = activity * s.num_ranks + rank
        s.activity[task] = activity
        s.owner[task] = owner
