# mypy: allow-untyped-defs, allow-untyped-calls
"""Changes of levels over time, by windows of time; what `replay.engine.levels` loops over."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import AHEAD, entry, inline, inner, prefetch
from replay.engine.backend.memory import FixedNumber, KernelMemory, StridedColumn, Vector

#: How many changes a window has, their sum, and the sum of those that add something.
COUNT, NET, GAINED = range(3)
NUM_SUMS = 3


class Changes(KernelMemory):
    """Changes of the levels of some owners, one a row, and windows of time (owner, window)."""

    num_rows = FixedNumber()
    owner = Vector(np.int32)  # -1: the row does not count
    by_task = FixedNumber()  # whether `task` says where a row's time stands; else the row itself does
    task = Vector(np.int32)
    time = Vector(np.int64)
    change = StridedColumn()
    sign = FixedNumber()
    # Of each owner: its changes, and when the first and the last of them are.
    rows = Vector(np.int64)
    first = Vector(np.int64)
    last = Vector(np.int64)
    # Windows of the owner begin at `base` and are 2**shift long.
    base = Vector(np.int64)
    shift = Vector(np.int64)
    # (window, number of `COUNT`, `NET`, `GAINED`): what the changes of a window are together.
    windows = Vector(np.int64)
    # Changes of the windows that are looked into, window after window: where the next one of each
    # window goes, and what the owner has when the window begins.
    num_windows = FixedNumber()
    is_wanted = Vector(np.int8)
    place = Vector(np.int64)
    before = Vector(np.int64)
    found_time = Vector(np.int64)
    found_change = Vector(np.int64)
    # Instants of these windows, written over their changes.
    found_window = Vector(np.int64)


@inline
def _time_of(c, row):
    if c.by_task != 0:
        return c.time[c.task[row]]
    return c.time[row]


@inline
def _window_of(c, owner, time):
    return c.base[owner] + ((time - c.first[owner]) >> c.shift[owner])


@inline
def _prefetch_window(c, row):
    """Ask for the sums of a row's window."""
    if row < c.num_rows and c.owner[row] >= 0:
        prefetch(c.windows, _window_of(c, c.owner[row], _time_of(c, row)) * NUM_SUMS)


@entry(Changes)
def count_changes(c):
    """Count the changes of each owner, and note the first and the last time."""
    for row in range(c.num_rows):
        owner = c.owner[row]
        if owner >= 0:
            time = _time_of(c, row)
            c.rows[owner] = c.rows[owner] + 1
            if time < c.first[owner]:
                c.first[owner] = time
            if time > c.last[owner]:
                c.last[owner] = time


@entry(Changes)
def sum_changes(c):
    """Add the changes up by window."""
    for row in range(c.num_rows):
        _prefetch_window(c, row + AHEAD)
        owner = c.owner[row]
        if owner >= 0:
            window = _window_of(c, owner, _time_of(c, row))
            change = c.change[row] * c.sign
            at = window * NUM_SUMS
            c.windows[at + COUNT] = c.windows[at + COUNT] + 1
            c.windows[at + NET] = c.windows[at + NET] + change
            if change > 0:
                c.windows[at + GAINED] = c.windows[at + GAINED] + change


@entry(Changes)
def find_changes(c):
    """Write the changes of the wanted windows down, each behind those of its window."""
    for row in range(c.num_rows):
        owner = c.owner[row]
        if owner >= 0:
            time = _time_of(c, row)
            window = _window_of(c, owner, time)
            if c.is_wanted[window] != 0:
                place = c.place[window]
                c.found_time[place] = time
                c.found_change[place] = c.change[row] * c.sign
                c.place[window] = place + 1


@inner
def sort_pairs(keys, values, begin, end):
    """Sort ``keys[begin:end]`` in place, and values with them: Shell's sort, since few are to be sorted as a rule."""
    gap = 1
    while gap < (end - begin) // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for row in range(begin + gap, end):
            key, value = keys[row], values[row]
            place = row
            while place - gap >= begin and keys[place - gap] > key:
                keys[place] = keys[place - gap]
                values[place] = values[place - gap]
                place -= gap
            keys[place] = key
            values[place] = value
        gap //= 3


@entry(Changes)
def settle_changes(c):
    """Put the changes that were found in order, and what they lead to in their place.

    Of each instant the window, the time and the level at its end stay; returns how many there are.
    """
    num_instants = 0
    for window in range(c.num_windows):
        if c.is_wanted[window] != 0:
            end = c.place[window]
            begin = end - c.windows[window * NUM_SUMS + COUNT]
            sort_pairs(c.found_time, c.found_change, begin, end)
            level = c.before[window]
            for row in range(begin, end):
                time = c.found_time[row]
                level += c.found_change[row]
                if row + 1 == end or c.found_time[row + 1] != time:
                    c.found_window[num_instants] = window
                    c.found_time[num_instants] = time
                    c.found_change[num_instants] = level
                    num_instants += 1
    return num_instants
