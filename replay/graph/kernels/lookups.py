# mypy: allow-untyped-defs, allow-untyped-calls
"""Tables: what a task finds when it starts, and what that costs.

In the twin: ``touch`` and ``charge``.
"""

from __future__ import annotations

from replay.graph.kernels.compiled_memory import prefetch
from replay.graph.kernels.compiling import inlined, inner
from replay.graph.kernels.layout import (
    AND_EVICTED,
    EVICTED,
    HIT,
    LATE_CHARGE,
    LONGEST,
    LRU,
    MISSED,
    NEW,
    OK,
    PRESENT,
    STARTED,
    TOO_LATE,
    UNKNOWN,
)


@inlined
def prefetch_keys(p, task):
    """Ask for the keys that a task touches."""
    low = p.touch_indptr[task]
    high = p.touch_indptr[task + 1]
    if high > low + 4:
        high = low + 4
    for entry in range(low, high):
        prefetch(p.keys, p.touches[entry].key)


@inlined
def _unlink(p, table, number):
    """Take a key out of its table's list."""
    older = p.keys[number].older
    newer = p.keys[number].newer
    if older >= 0:
        p.keys[older].newer = newer
    else:
        table.oldest = newer
    if newer >= 0:
        p.keys[newer].older = older
    else:
        table.newest = older


@inlined
def _link_newest(p, table, number):
    """Put a key at the end of its table's list."""
    older = table.newest
    key = p.keys[number]
    key.older = older
    key.newer = -1
    key.time = p.now
    table.newest = number
    if older >= 0:
        p.keys[older].newer = number
    else:
        table.oldest = number


@inlined
def _lengthen(p, task, time):
    """Add to the service of a task that has not started."""
    service = p.tasks[task].duration + time
    if service > LONGEST:
        service = LONGEST
        p.status[0] = TOO_LATE
    p.tasks[task].duration = service


@inner
def _make_room(p, table, task, charged, cost):
    """Let the first key of a full table go, at the cost of who pays for it."""
    oldest = table.oldest
    wait = p.keys[oldest].time + table.patience - p.now
    if wait > 0:
        _lengthen(p, task, wait)
    if cost > 0:
        if charged != task and p.tasks[charged].missing == STARTED:
            if p.status[0] == OK:
                p.status[0] = LATE_CHARGE
                p.status[1] = task
                p.status[2] = charged
        else:
            _lengthen(p, charged, cost)
    _unlink(p, table, oldest)
    p.keys[oldest].state = EVICTED


@inner
def look_up(p, task):
    """Make the touches of a task that starts; returns what they add to its latency."""
    late = 0
    for entry in range(p.touch_indptr[task], p.touch_indptr[task + 1]):
        touch = p.touches[entry]
        form = p.forms[touch.form]
        table = p.tables[form.table]
        drops = form.drops != 0
        number = touch.key
        key = p.keys[number]
        outcome = HIT
        if key.state == PRESENT:
            if drops:
                _unlink(p, table, number)
                table.free += 1
            elif table.policy == LRU:
                _unlink(p, table, number)
                _link_newest(p, table, number)
        else:
            outcome = NEW
            if key.state == EVICTED:
                outcome = MISSED
                _lengthen(p, task, p.costs[form.cost].miss_duration)
                late += p.costs[form.cost].miss_latency
                if late > LONGEST:
                    late = LONGEST
            if not drops:
                if table.free == 0:
                    outcome += AND_EVICTED
                    _make_room(p, table, task, touch.charged, p.costs[form.cost].evict_duration)
                else:
                    table.free -= 1
                _link_newest(p, table, number)
                key.state = PRESENT
        if drops:
            key.state = UNKNOWN
        p.found[touch.row] = outcome
    return late
