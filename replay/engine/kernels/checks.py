# mypy: allow-untyped-defs, allow-untyped-calls
"""Looks at all takes and touches of a graph, in one pass each; what `replay.engine.checks` asks first."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import entry
from replay.engine.backend.memory import FixedNumber, KernelMemory, StridedColumn, Vector


class TakeExtremes(KernelMemory):
    """Takes, and what is largest among them."""

    num_takes = FixedNumber()
    task = StridedColumn()
    pool = StridedColumn()
    units = StridedColumn()
    most = Vector(np.int64)  # (pool,): units of its largest take
    count = Vector(np.int32)  # (task,): its takes


@entry(TakeExtremes)
def find_extremes(s):
    """Find each pool's largest take; the most takes that a task has."""
    largest = 0
    for row in range(s.num_takes):
        pool, task = s.pool[row], s.task[row]
        if s.units[row] > s.most[pool]:
            s.most[pool] = s.units[row]
        count = s.count[task] + 1
        s.count[task] = count
        if count > largest:
            largest = count
    return largest


class TaskRoles(KernelMemory):
    """Tasks that take, give back, touch and pay, and what serves them."""

    num_tasks = FixedNumber()
    num_takes = FixedNumber()
    num_touches = FixedNumber()
    has_levels = FixedNumber()  # whether tasks differ in priority
    resource = StridedColumn()
    priority = StridedColumn()
    taker = StridedColumn()
    giver = StridedColumn()
    toucher = StridedColumn()
    payer = StridedColumn()
    table = StridedColumn()
    units = StridedColumn()
    room = Vector(np.int64)  # (table,)
    # Of each resource: whether it is a line, whether its first task was seen, and the priority of that.
    is_line = Vector(np.int32)
    is_seen = Vector(np.int32)
    first = Vector(np.int64)


@entry(TaskRoles)
def are_allowed(s):
    """Tell whether touches are of tasks with a server and have room, and tasks of lines do nothing but queue."""
    for row in range(s.num_touches):
        toucher, payer = s.resource[s.toucher[row]], s.resource[s.payer[row]]
        if toucher < 0 or payer < 0 or s.is_line[toucher] != 0 or s.is_line[payer] != 0:
            return 0
        if s.units[row] > s.room[s.table[row]]:
            return 0
    for row in range(s.num_takes):
        taker, giver = s.resource[s.taker[row]], s.resource[s.giver[row]]
        if taker >= 0 and s.is_line[taker] != 0:
            return 0
        if giver >= 0 and s.is_line[giver] != 0:
            return 0
    if s.has_levels == 0:
        return 1
    for task in range(s.num_tasks):
        resource = s.resource[task]
        if resource >= 0 and s.is_line[resource] != 0:
            priority = s.priority[task]
            if s.is_seen[resource] == 0:
                s.is_seen[resource] = 1
                s.first[resource] = priority
            elif s.first[resource] != priority:
                return 0
    return 1
