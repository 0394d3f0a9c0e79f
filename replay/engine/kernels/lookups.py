# mypy: allow-untyped-defs, allow-untyped-calls
"""Tables: what a task finds when it starts, and what that costs.

In the twin: ``touch`` and ``charge``.
"""

from __future__ import annotations

from replay.engine.backend.compiling import inline, inner, prefetch
from replay.engine.kernels.layout import (
    AND_EVICTED,
    DROPS,
    EVICTED,
    HIT,
    LATE_CHARGE,
    LONGEST,
    LRU,
    MISSED,
    NEW,
    OK,
    PRESENT,
    ROOM_FLAGS,
    STARTED,
    TOO_LATE,
    UNKNOWN,
)


@inline
def prefetch_keys(p, task):
    """Ask for the keys that a task touches."""
    low = p.touch_indptr[task]
    high = p.touch_indptr[task + 1]
    if high > low + 4:
        high = low + 4
    for entry in range(low, high):
        prefetch(p.keys, p.touches[entry].key)


@inline
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


@inline
def _link_newest(p, table, number):
    """Put a key at the end of its table's list."""
    older = table.newest
    key = p.keys[number]
    key.older = older
    key.newer = -1
    table.newest = number
    if older >= 0:
        p.keys[older].newer = number
    else:
        table.oldest = number
    if table.backing < 0:
        key.time = p.now


@inline
def _lengthen(p, task, time):
    """Add to the service of a task that has not started."""
    service = p.tasks[task].duration + time
    if service > LONGEST:
        service = LONGEST
        p.status[0] = TOO_LATE
    p.tasks[task].duration = service


@inline
def _draw(p, number, duration):
    """Draw service from a line; returns when it is served."""
    lane = p.lanes[number]
    served = lane.free_at
    if served < p.now:
        served = p.now
    served += duration
    if served > LONGEST:
        served = LONGEST
        p.status[0] = TOO_LATE
    lane.free_at = served
    return served


@inner
def _evict_oldest(p, table, task, charged, cost):
    """Let the first key of a table go, at the cost of who pays for it."""
    oldest = table.oldest
    wait = 0
    if table.backing < 0:
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
    table.free += p.forms[p.keys[oldest].form].room >> ROOM_FLAGS


@inline
def _insert(p, table, number, form, task, charged, cost):
    """Put a key into its table; returns whether others had to leave."""
    units = p.forms[form].room >> ROOM_FLAGS
    evicts = table.free < units
    while table.free < units:
        _evict_oldest(p, table, task, charged, cost)
    table.free -= units
    _link_newest(p, table, number)
    p.keys[number].state = PRESENT
    p.keys[number].form = form
    return evicts


@inner
def look_up(p, task):
    """Make the touches of a task that starts; returns what they add to its latency."""
    late = 0
    served = 0
    has_backing = False
    low = p.touch_indptr[task]
    high = p.touch_indptr[task + 1]
    for entry in range(low, high):
        touch = p.touches[entry]
        form = p.forms[touch.form]
        table = p.tables[form.table]
        price = p.prices[form.price]
        drops = form.room & DROPS != 0
        number = touch.key
        key = p.keys[number]
        arrival = 0
        if table.port >= 0:
            arrival = _draw(p, table.port, price.port_duration)
            p.port_served[touch.row] = arrival
        outcome = HIT
        if key.state == PRESENT:
            if drops:
                _unlink(p, table, number)
                table.free += p.forms[key.form].room >> ROOM_FLAGS
            elif table.policy == LRU:
                _unlink(p, table, number)
                _link_newest(p, table, number)
        else:
            cost = p.costs[price.cost]
            if key.state == UNKNOWN:
                outcome = NEW
            elif table.backing < 0 or key.time <= p.now:
                outcome = MISSED
            if outcome == MISSED:
                late += cost.miss_latency
                if late > LONGEST:
                    late = LONGEST
                if table.backing < 0:
                    _lengthen(p, task, cost.miss_duration)
            if table.backing >= 0 and outcome != HIT:
                key.arrival = 0
                if cost.miss_duration > 0:
                    key.arrival = _draw(p, table.backing, cost.miss_duration)
                    p.backing_served[touch.row] = key.arrival
            if not drops and _insert(p, table, number, touch.form, task, touch.charged, cost.evict_duration):
                outcome += AND_EVICTED
        if table.backing >= 0:
            has_backing = True
            lag = price.lag - p.latency[task]
            if lag < 0:
                lag = 0
            if arrival < key.arrival + lag:
                arrival = key.arrival + lag
        if served < arrival:
            served = arrival
        if drops:
            key.state = UNKNOWN
            key.arrival = 0
            key.time = 0
        p.found[touch.row] = outcome
    wait = served - p.now - p.tasks[task].duration
    if wait > 0:
        _lengthen(p, task, wait)
    if has_backing:
        _keep_in_use(p, low, high, p.now + p.tasks[task].duration)
    return late


@inline
def _keep_in_use(p, low, high, end):
    """Note until when a task that touched keys of tables with a backing is in service."""
    for entry in range(low, high):
        touch = p.touches[entry]
        form = p.forms[touch.form]
        key = p.keys[touch.key]
        if form.room & DROPS == 0 and p.tables[form.table].backing >= 0 and key.time < end:
            key.time = end
