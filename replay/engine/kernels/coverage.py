# mypy: allow-untyped-defs, allow-untyped-calls
"""Time that intervals cover together; what `replay.engine.covers` asks for."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import AHEAD, IN_CACHE, entry, inline, prefetch
from replay.engine.backend.memory import FixedNumber, KernelMemory, RecordLayout, Records, StridedColumn, Vector
from replay.engine.kernels.changes import sort_pairs
from replay.engine.kernels.layout import NEVER

#: Intervals in a window, in the mean.
PER_WINDOW = 16

#: Intervals that begin in a window: how many, the first and the last start, the last end; then, of a
#: window that is looked into, the place of its next one.
WINDOW = RecordLayout("window", count=8, first=8, last=8, reach=8, place=8)


class Covers(KernelMemory):
    """Intervals of some owners, in two lists; windows of time, of each owner in a row; and the covers."""

    num_rows = FixedNumber()
    owner = StridedColumn()  # -1: nobody's
    start = StridedColumn()
    end = StridedColumn()
    num_more = FixedNumber()
    more_owner = StridedColumn()
    more_start = StridedColumn()
    more_end = StridedColumn()
    num_owners = FixedNumber()
    # Of each owner: its intervals, later the windows before its own; the first and the last start; windows
    # are 2**shift long.
    base = Vector(np.int64)
    first = Vector(np.int64)
    last = Vector(np.int64)
    shift = Vector(np.int64)
    windows = Records(WINDOW)
    # Intervals of the windows that are looked into, window after window.
    found_start = Vector(np.int64)
    found_end = Vector(np.int64)
    # Of each part of a cover.
    cover_owner = Vector(np.int64)
    cover_start = Vector(np.int64)
    cover_end = Vector(np.int64)


@inline
def _owner_of(c, row):
    """Owner of an interval, -1 where it is nobody's or empty."""
    if row < c.num_rows:
        if c.owner[row] < 0 or c.end[row] <= c.start[row]:
            return -1
        return c.owner[row]
    row -= c.num_rows
    if c.more_owner[row] < 0 or c.more_end[row] <= c.more_start[row]:
        return -1
    return c.more_owner[row]


@inline
def _start_of(c, row):
    if row < c.num_rows:
        return c.start[row]
    return c.more_start[row - c.num_rows]


@inline
def _end_of(c, row):
    if row < c.num_rows:
        return c.end[row]
    return c.more_end[row - c.num_rows]


@inline
def _window_of(c, owner, start):
    return c.base[owner] + ((start - c.first[owner]) >> c.shift[owner])


@inline
def _lay_out(c):
    """Give each owner windows, the shortest powers of two of which it has no more than it should."""
    num_rows = c.num_rows + c.num_more
    for owner in range(c.num_owners):
        c.base[owner] = 0
        c.first[owner] = NEVER
        c.last[owner] = -1
    for row in range(num_rows):
        owner = _owner_of(c, row)
        if owner >= 0:
            start = _start_of(c, row)
            c.base[owner] = c.base[owner] + 1
            if start < c.first[owner]:
                c.first[owner] = start
            if start > c.last[owner]:
                c.last[owner] = start
    num_windows = 0
    for owner in range(c.num_owners):
        count = c.base[owner]
        c.base[owner] = num_windows
        if count > 0:
            length, wanted, shift = c.last[owner] - c.first[owner], count // PER_WINDOW, 0
            while length >> shift > wanted:
                shift += 1
            c.shift[owner] = shift
            for _ in range((length >> shift) + 1):
                window = c.windows[num_windows]
                window.count = 0
                window.first = NEVER
                window.last = -1
                window.reach = -1
                num_windows += 1
    return num_windows


@inline
def _gather(c):
    """Note of each window what begins there."""
    num_rows = c.num_rows + c.num_more
    looks_ahead = num_rows > PER_WINDOW * IN_CACHE
    for row in range(num_rows):
        if looks_ahead and row + AHEAD < c.num_rows and c.owner[row + AHEAD] >= 0:
            prefetch(c.windows, _window_of(c, c.owner[row + AHEAD], c.start[row + AHEAD]))
        owner = _owner_of(c, row)
        if owner >= 0:
            start = _start_of(c, row)
            end = _end_of(c, row)
            window = c.windows[_window_of(c, owner, start)]
            window.count += 1
            # Written whether they change or not: in what comes in no order, a branch is guessed wrong.
            window.first = start if start < window.first else window.first
            window.last = start if start > window.last else window.last
            window.reach = end if end > window.reach else window.reach


@inline
def _look_for_gaps(c, num_windows):
    """Give intervals of windows that may have gaps room; returns for how many.

    Where nothing that begins in a window begins behind what began before it, there is none.
    """
    num_found = 0
    for owner in range(c.num_owners):
        past = num_windows
        if owner + 1 < c.num_owners:
            past = c.base[owner + 1]
        reach = -1
        for number in range(c.base[owner], past):
            window = c.windows[number]
            window.place = -1
            if window.count > 1 and window.last > reach:
                window.place = num_found
                num_found += window.count
            if window.reach > reach:
                reach = window.reach
    return num_found


@inline
def _find(c):
    """Write the intervals of these windows down."""
    for row in range(c.num_rows + c.num_more):
        owner = _owner_of(c, row)
        if owner >= 0:
            start = _start_of(c, row)
            window = c.windows[_window_of(c, owner, start)]
            place = window.place
            if place >= 0:
                c.found_start[place] = start
                c.found_end[place] = _end_of(c, row)
                window.place = place + 1


@inline
def _join(c, owner, count, first, start, end):
    """Add an interval that begins no earlier than those before; returns how many parts there are."""
    if count == first or start > c.cover_end[count - 1]:
        c.cover_owner[count] = owner
        c.cover_start[count] = start
        c.cover_end[count] = end
        return count + 1
    if end > c.cover_end[count - 1]:
        c.cover_end[count - 1] = end
    return count


@entry(Covers)
def cover(c):
    """Find what the intervals of each owner cover, as parts that do not touch; returns how many."""
    num_windows = _lay_out(c)
    _gather(c)
    if _look_for_gaps(c, num_windows) > 0:
        _find(c)
    count = 0
    for owner in range(c.num_owners):
        past = num_windows
        if owner + 1 < c.num_owners:
            past = c.base[owner + 1]
        first = count
        for number in range(c.base[owner], past):
            window = c.windows[number]
            if window.count == 0:
                continue
            if window.place < 0:
                count = _join(c, owner, count, first, window.first, window.reach)
                continue
            begin = window.place - window.count
            sort_pairs(c.found_start, c.found_end, begin, window.place)
            for row in range(begin, window.place):
                count = _join(c, owner, count, first, c.found_start[row], c.found_end[row])
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
