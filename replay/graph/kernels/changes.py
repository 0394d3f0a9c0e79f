# mypy: allow-untyped-defs, allow-untyped-calls
"""Changes of levels over time, by windows of time; what `replay.graph.levels` loops over."""

from __future__ import annotations

import numpy as np

from replay.graph.kernels.compiling import entry, inlined
from replay.graph.kernels.memory import Fixed, Memory, Number, Stepped, Vector

#: How many changes a window has, their sum, and the sum of those that add something.
COUNT, NET, GAINED = range(3)
NUM_SUMS = 3


class Changes(Memory):
    """Changes of the levels of some owners, one a row, and windows of time (owner, window)."""

    num_rows = Fixed()
    owner = Vector(np.int32)  # -1: the row does not count
    by_task = Fixed()  # whether `task` says where a row's time stands; else the row itself does
    task = Vector(np.int32)
    time = Vector(np.int64)
    change = Stepped()
    sign = Fixed()
    # Of each owner: its changes, and when the first and the last of them are.
    rows = Vector(np.int64)
    first = Vector(np.int64)
    last = Vector(np.int64)
    # Windows of the owner begin at `base` and are 2**shift long.
    base = Vector(np.int64)
    shift = Vector(np.int64)
    # (window, number of `COUNT`, `NET`, `GAINED`): what the changes of a window are together.
    windows = Vector(np.int64)
    # Changes of the windows that are looked into.
    is_wanted = Vector(np.int8)
    num_found = Number()
    found_window = Vector(np.int64)
    found_time = Vector(np.int64)
    found_change = Vector(np.int64)


@inlined
def _time_of(c, row):
    if c.by_task != 0:
        return c.time[c.task[row]]
    return c.time[row]


@inlined
def _window_of(c, owner, time):
    return c.base[owner] + ((time - c.first[owner]) >> c.shift[owner])


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
    """Write down the changes of the wanted windows; how many there are by now."""
    for row in range(c.num_rows):
        owner = c.owner[row]
        if owner >= 0:
            time = _time_of(c, row)
            window = _window_of(c, owner, time)
            if c.is_wanted[window] != 0:
                c.found_window[c.num_found] = window
                c.found_time[c.num_found] = time
                c.found_change[c.num_found] = c.change[row] * c.sign
                c.num_found += 1
    return c.num_found
