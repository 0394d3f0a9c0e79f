# mypy: allow-untyped-defs, allow-untyped-calls
"""Sums over tasks and services, in one pass each; what `replay.engine.sums` loops over."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import entry
from replay.engine.backend.memory import FixedNumber, KernelMemory, StridedColumn, Vector
from replay.engine.kernels.layout import AND_EVICTED, HIT

#: Sums of a kind at a place, in this order.
PAYLOAD, WIRE, DURATION, SERVICE, SHARE = range(5)
NUM_SUMS = 5
#: Sums of touches of a group of tables, and of a kind of read; `NEW` and `MISSED` are places in both.
NUM_USES, NUM_READS = 4, 3


class TaskTallies(KernelMemory):
    """Tasks, and what those of one kind at one place, or on one resource, are together."""

    num_tasks = FixedNumber()
    is_counted = StridedColumn()
    num_places = FixedNumber()
    has_times = FixedNumber()
    resource = StridedColumn()
    kind = StridedColumn()
    payload = StridedColumn()
    wire = StridedColumn()
    duration = StridedColumn()
    start = Vector(np.int64)
    end = Vector(np.int64)
    visible = Vector(np.int64)
    # Of each resource, the null one last.
    null = FixedNumber()
    place = Vector(np.int64)
    divisor = Vector(np.int64)
    work = Vector(np.int64)
    busy = Vector(np.int64)
    sums = Vector(np.int64)
    first = Vector(np.int64)
    last = Vector(np.int64)


@entry(TaskTallies)
def tally(s):
    """Add up bytes and times; first start and last time visible by kind."""
    for task in range(s.num_tasks):
        if s.is_counted[task] == 0:
            continue
        resource = s.resource[task]
        if resource < 0:
            resource = s.null
        kind = s.kind[task]
        duration = service = s.duration[task]
        if s.has_times != 0:
            start = s.start[task]
            service = s.end[task] - start
            if start < s.first[kind]:
                s.first[kind] = start
            if s.visible[task] > s.last[kind]:
                s.last[kind] = s.visible[task]
        s.work[resource] = s.work[resource] + duration
        s.busy[resource] = s.busy[resource] + service
        at = (kind * s.num_places + s.place[resource]) * NUM_SUMS
        s.sums[at + PAYLOAD] = s.sums[at + PAYLOAD] + s.payload[task]
        s.sums[at + WIRE] = s.sums[at + WIRE] + s.wire[task]
        s.sums[at + DURATION] = s.sums[at + DURATION] + duration
        s.sums[at + SERVICE] = s.sums[at + SERVICE] + service
        if s.divisor[resource] > 1:
            service = service // s.divisor[resource]
        s.sums[at + SHARE] = s.sums[at + SHARE] + service


class KeyedValues(KernelMemory):
    """Values with keys, and their sums by key; the last one is that of the key -1."""

    num_rows = FixedNumber()
    key = StridedColumn()
    value = StridedColumn()
    nobody = FixedNumber()
    total = Vector(np.int64)


@entry(KeyedValues)
def sum_keyed(s):
    """Add values up by key."""
    for row in range(s.num_rows):
        key = s.key[row]
        if key < 0:
            key = s.nobody
        s.total[key] = s.total[key] + s.value[row]


class TouchTallies(KernelMemory):
    """Touches with what is noted of them, and what those of a group of tables, or of a kind of read, are together."""

    num_rows = FixedNumber()
    touch = StridedColumn()  # of each row
    group = StridedColumn()  # -1 for none
    read = StridedColumn()
    lookups = StridedColumn()
    touched = StridedColumn()  # of each touch
    units = StridedColumn()
    uses = Vector(np.int64)  # of each group: lookups, new keys, missed keys, evictions
    reads = Vector(np.int64)  # of each kind: units, those of new keys, those of missed keys


@entry(TouchTallies)
def tally_touches(s):
    """Add up lookups, units and what touches found."""
    for row in range(s.num_rows):
        touch = s.touch[row]
        outcome = s.touched[touch]
        found = outcome & (AND_EVICTED - 1)
        group = s.group[row]
        if group >= 0:
            at = NUM_USES * group
            lookups = s.lookups[row]
            s.uses[at] = s.uses[at] + lookups
            if lookups > 0 and found != HIT:
                s.uses[at + found] = s.uses[at + found] + 1
            if outcome >= AND_EVICTED:
                s.uses[at + NUM_USES - 1] = s.uses[at + NUM_USES - 1] + 1
        read = s.read[row]
        if read >= 0:
            at = NUM_READS * read
            units = s.units[touch]
            s.reads[at] = s.reads[at] + units
            if found != HIT:
                s.reads[at + found] = s.reads[at + found] + units


class Services(KernelMemory):
    """Services, and the time in service of each resource by windows of time."""

    num_services = FixedNumber()
    is_counted = StridedColumn()
    window = FixedNumber()  # its length
    num_windows = FixedNumber()
    resource = StridedColumn()
    start = Vector(np.int64)
    end = Vector(np.int64)
    # Of each resource: the row that it is added to, the window that its last service began in, and
    # when that window begins.
    row = Vector(np.int64)
    recent = Vector(np.int64)
    opened = Vector(np.int64)
    # (row, window): time in service in windows where services begin or end, and changes of how many
    # fill a window.
    busy = Vector(np.int64)
    filled = Vector(np.int64)


@entry(Services)
def sum_services(s):
    """Add services up: most lie in one window, others fill the windows between two whole."""
    for service in range(s.num_services):
        resource = s.resource[service]
        if resource < 0 or s.is_counted[service] == 0:
            continue
        start, end = s.start[service], s.end[service]
        first, begin = s.recent[resource], s.opened[resource]
        if start < begin or start >= begin + s.window:  # few, in a row of one resource's tasks
            first = start // s.window
            begin = first * s.window
            s.recent[resource] = first
            s.opened[resource] = begin
        row = s.row[resource] * s.num_windows
        at = row + first
        if end < begin + s.window:
            s.busy[at] = s.busy[at] + (end - start)
        else:
            last = end // s.window
            s.busy[at] = s.busy[at] + (begin + s.window - start)
            s.filled[at + 1] = s.filled[at + 1] + 1
            at = row + last
            s.busy[at] = s.busy[at] + (end - last * s.window)
            s.filled[at] = s.filled[at] - 1


class LastEnds(KernelMemory):
    """Tasks, and when the last service of each resource ends."""

    num_tasks = FixedNumber()
    resource = StridedColumn()
    status = Vector(np.int8)
    is_known_from = FixedNumber()  # the least status of tasks whose end is known
    end = Vector(np.int64)
    last = Vector(np.int64)


@entry(LastEnds)
def find_last_ends(e):
    """Find the last end at each resource."""
    for task in range(e.num_tasks):
        resource = e.resource[task]
        if resource >= 0 and e.status[task] >= e.is_known_from and e.end[task] > e.last[resource]:
            e.last[resource] = e.end[task]


#: What may be set of an owner's time, in this order: the whole of it, what serves with some of its
#: parts, with all of them, what travels, what is copied, a pause between services, what is held up,
#: anything of anybody.
WITHIN, PARTLY, WHOLLY, TRAVELS, COPIED, BETWEEN, HELD_UP, ANYBODY = range(8)
#: Shares of pauses, and of waiting for what is held up, and how many shares there are.
PAUSE, WAIT, NUM_SHARES = 8, 9, 10


class Flags(KernelMemory):
    """Times at which flags of owners are set, and the parts into which each owner's time is divided.

    Each owner's time lies behind that of the owner before; event ``i`` sets flag ``i``, event
    ``num_flags + i`` takes it back.
    """

    num_flags = FixedNumber()
    order = Vector(np.int64)  # of the events
    time = Vector(np.int64)  # of the events
    # Of each flag: what it is, how many parts it takes, and whose it is.
    what = Vector(np.int8)
    amount = Vector(np.int64)
    owner = Vector(np.int64)
    most = Vector(np.int64)  # parts that each owner has
    shares = Vector(np.int64)  # (owner, share)


@entry(Flags)
def divide_time(f):
    """Add up the time in which all parts are idle, and time times the parts that are, by cause; and pauses."""
    within = partly = wholly = travels = copies = between = held_up = anybody = before = 0
    for place in range(2 * f.num_flags):
        flag = f.order[place]
        time = f.time[flag]
        sign = 1
        if flag >= f.num_flags:
            flag -= f.num_flags
            sign = -1
        owner = f.owner[flag]
        length = time - before
        before = time
        if within > 0 and length > 0 and wholly == 0:
            idle = f.most[owner] - partly
            at = NUM_SHARES * owner
            pauses = between + held_up > 0
            if travels + copies > 0:
                cause = 0
            elif partly == 0 and anybody > 0:
                cause = 1
            elif partly == 0:
                cause = 2
            else:
                cause = 3
            if pauses and partly == 0:
                share = PAUSE if between > 0 else WAIT
                f.shares[at + share] = f.shares[at + share] + length
            elif partly == 0:
                f.shares[at + cause] = f.shares[at + cause] + length
                if copies > 0:
                    f.shares[at + 3] = f.shares[at + 3] + length
            if idle > 0 and not pauses:
                f.shares[at + 4 + cause] = f.shares[at + 4 + cause] + length * idle
        amount = sign * f.amount[flag]
        what = f.what[flag]
        if what == WITHIN:
            within += amount
        elif what == PARTLY:
            partly += amount
        elif what == WHOLLY:
            wholly += amount
        elif what == TRAVELS:
            travels += amount
        elif what == COPIED:
            copies += amount
        elif what == BETWEEN:
            between += amount
        elif what == HELD_UP:
            held_up += amount
        else:
            anybody += amount


class DrawnWaits(KernelMemory):
    """Draws of tasks from lines, and the service time that they add, by pool and role and by pool and kind of line."""

    num_draws = FixedNumber()
    touch = StridedColumn()  # of each draw
    line = StridedColumn()
    drawn_end = StridedColumn()
    touch_task = StridedColumn()  # of each touch
    num_tasks = FixedNumber()
    is_counted = StridedColumn()
    resource = StridedColumn()
    kind = StridedColumn()
    duration = StridedColumn()
    start = Vector(np.int64)
    end = Vector(np.int64)
    last = Vector(np.int64)  # twice the end of the last draw, and one more if it is from a line that is set apart
    is_apart = StridedColumn()  # of each resource
    is_read = StridedColumn()
    pool = StridedColumn()
    divisor = StridedColumn()  # parts that its servers are divided in
    num_pools = FixedNumber()
    role = StridedColumn()  # of each kind, -1 for none
    longer = Vector(np.int64)  # (role, pool)
    waits = Vector(np.int64)  # (apart, pool)


@entry(DrawnWaits)
def sum_waits(s):
    """Add up waits for the last draw of each task on a resource that is read; of two at a time one set apart counts."""
    for task in range(s.num_tasks):
        s.last[task] = -1
    for draw in range(s.num_draws):
        task = s.touch_task[s.touch[draw]]
        until = 2 * s.drawn_end[draw] + s.is_apart[s.line[draw]]
        if until > s.last[task]:
            s.last[task] = until
    for task in range(s.num_tasks):
        if s.last[task] < 0 or s.is_counted[task] == 0:
            continue
        resource = s.resource[task]
        if s.is_read[resource] == 0:
            continue
        pool, parts, own = s.pool[resource], s.divisor[resource], s.duration[task]
        service = s.end[task] - s.start[task]
        at = (s.last[task] & 1) * s.num_pools + pool
        s.waits[at] = s.waits[at] + (service - own) // parts
        role = s.role[s.kind[task]]
        if role >= 0:
            at = role * s.num_pools + pool
            s.longer[at] = s.longer[at] + own // parts - service // parts
