# mypy: allow-untyped-defs, allow-untyped-calls
"""Records of tasks and touches, with the lanes, channels and ways that they use, made before a run.

A survey of the resources comes first. After the run, start and end of every task are read out of
the records. The twin has nothing of this: it reads the graph as it is.

The module is long because each record is packed and unpacked beside the other.
"""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import entry, inline, inner
from replay.engine.backend.memory import FixedNumber, KernelMemory, Records, StridedColumn, Vector
from replay.engine.kernels.interning import intern
from replay.engine.kernels.layout import (
    BY_HEAP,
    BY_NEEDS,
    BY_POOLS,
    CLASSES,
    COSTS,
    DIRECT,
    FIRST_WAY,
    FORMS,
    GIVING_LANE,
    IN_ORDER,
    LANES,
    LOOKS_UP,
    MAX_CLASSES,
    MAY_BE_EARLY,
    NO_FLIGHT,
    NO_LANE,
    NODES,
    ONE_LANE,
    PRICES,
    ROOM_FLAGS,
    SHARES,
    SURVEY,
    TASK,
    WAY_FLAGS,
    WAYS,
    PackedTouches,
    Packing,
)

#: Edges of a task that :func:`_follows` looks at.
MOST_ASKED = 4


# --- Resources ----------------------------------------------------------------------------------


class SurveyColumns(KernelMemory):
    """Columns that the survey reads, and the resources, the null one last."""

    num_tasks = FixedNumber()
    num_touches = FixedNumber()
    null = FixedNumber()
    has_credits = FixedNumber()
    has_levels = FixedNumber()  # whether tasks have different priorities
    resource = StridedColumn()
    priority = StridedColumn()
    duration = StridedColumn()
    latency = StridedColumn()
    take_indptr = Vector(np.int32)
    give_indptr = Vector(np.int32)
    toucher = StridedColumn()  # of each touch
    charged = StridedColumn()
    miss_latency = StridedColumn()
    resources = Records(SURVEY)


@entry(SurveyColumns)
def survey(s):
    """Count tasks per resource and note what keeps a resource from being a simple stream."""
    for task in range(s.num_tasks):
        where = s.resource[task]
        is_null = where < 0
        if is_null:
            where = s.null
        found = s.resources[where]
        if found.tasks == 0:
            found.first_priority = s.priority[task]
        elif s.has_levels != 0 and found.first_priority != s.priority[task]:
            found.is_mixed = 1
        found.tasks += 1
        takes = 0
        if s.has_credits != 0:
            takes = s.take_indptr[task + 1] - s.take_indptr[task]
            gives = s.give_indptr[task + 1] - s.give_indptr[task]
            if takes > 0:
                found.takers += 1
            elif gives > 0:
                found.givers += 1
            if takes > found.most_takes:
                found.most_takes = takes
            if gives > found.most_gives:
                found.most_gives = gives
        if s.duration[task] == 0 and (takes > 0 or not is_null):
            found.zero += 1
            if s.latency[task] == 0:
                found.instant += 1
    for touch in range(s.num_touches):  # tasks that touch or are charged hold a server
        found = s.resources[s.resource[s.toucher[touch]]]
        found.looks_up = 1
        if s.miss_latency[touch] > 0:
            found.late += 1
        s.resources[s.resource[s.charged[touch]]].looks_up = 1


# --- Tasks --------------------------------------------------------------------------------------


@inner
def _class_of(w, place, latency):
    """Flight class of a latency at a place; a new one if it is not known there.

    After ``MAX_CLASSES`` distinct latencies a place sends all further ones through one heap.
    """
    found = w.first_class[place]
    length = 0
    while found >= 0:
        known = w.classes[found]
        if known.latency == latency or known.kind == BY_HEAP:
            known.count += 1
            return found
        length += 1
        if known.next < 0:
            break
        found = known.next
    number = w.sizes[CLASSES]
    w.sizes[CLASSES] = number + 1
    if found >= 0:
        w.classes[found].next = number
    else:
        w.first_class[place] = number
    new = w.classes[number]
    new.latency = latency
    new.next = -1
    new.count = 1
    new.kind = IN_ORDER
    if length == MAX_CLASSES:
        new.kind = BY_HEAP
    new.place = place
    return number


@inline
def _add_node(w, following, pool, units):
    """Put (pool, units) before a list; equal lists get the same number."""
    return intern(w.node_table, w.room, w.nodes, w.sizes, NODES, following, pool, units)


@inline
def _needs_of(w, task):
    """List of what a task takes, by pool; -1 for nothing. Takes from one pool are added up."""
    count = 0
    for at in range(w.take_indptr[task], w.take_indptr[task + 1]):
        row = w.take_order[at]
        pool = w.pool[row]
        units = w.units[row]
        if units == 0:
            continue  # a further row of a take that several tasks give back
        place = count
        while place > 0 and w.wanted_pool[place - 1] >= pool:
            place -= 1
        if place < count and w.wanted_pool[place] == pool:
            w.wanted_units[place] = w.wanted_units[place] + units
            continue
        for later in range(count, place, -1):
            w.wanted_pool[later] = w.wanted_pool[later - 1]
            w.wanted_units[later] = w.wanted_units[later - 1]
        w.wanted_pool[place] = pool
        w.wanted_units[place] = units
        count += 1
    number = -1
    for place in range(count - 1, -1, -1):
        number = _add_node(w, number, w.wanted_pool[place], w.wanted_units[place])
    return number


@inline
def _gives_of(w, task):
    """List of what a task gives back by itself; -1 for nothing."""
    number = -1
    for at in range(w.give_indptr[task + 1] - 1, w.give_indptr[task] - 1, -1):
        row = w.give_order[at]
        if w.share[row] < 0:
            number = _add_node(w, number, w.pool[row], w.units[row])
    return number


@inner
def _has_shares(w, task):
    """Tell whether a task gives something back together with others."""
    for at in range(w.give_indptr[task], w.give_indptr[task + 1]):  # noqa: SIM110 - no generators are compiled
        if w.share[w.give_order[at]] >= 0:
            return True
    return False


@inner
def _pools_of(w, needs):
    """List of the pools of a list, without units."""
    count = 0
    while needs >= 0:
        w.wanted_pool[count] = w.nodes[needs].b
        count += 1
        needs = w.nodes[needs].a
    number = -1
    for place in range(count - 1, -1, -1):
        number = _add_node(w, number, w.wanted_pool[place], 0)
    return number


@inner
def _may_be_early(w, task):
    """Tell whether a task might leave before somebody whose credits it gives back has started.

    It cannot if it is the taker itself or follows it within three edges; others are not looked at.
    """
    for at in range(w.give_indptr[task], w.give_indptr[task + 1]):
        taker = w.taker[w.give_order[at]]
        if taker != task and not _follows(w, taker, task):
            return True
    return False


@inline
def _follows(w, first, task):
    """Tell whether a task follows another within three edges; not all are asked."""
    return _is_next(w, first, task) or _is_next_but_one(w, first, task) or _is_next_but_two(w, first, task)


@inline
def _last_asked(w, task):
    """End of the edges of a task that are looked at."""
    low = w.indptr[task]
    high = w.indptr[task + 1]
    if high > low + MOST_ASKED:
        high = low + MOST_ASKED
    return high


@inline
def _is_next(w, first, task):
    edge = w.indptr[first]
    end = _last_asked(w, first)
    while edge < end and w.successors[edge] != task:
        edge += 1
    return edge < end


@inner
def _is_next_but_one(w, first, task):
    for edge in range(w.indptr[first], _last_asked(w, first)):
        between = w.successors[edge]
        if between >= 0 and _is_next(w, between, task):
            return True
    return False


@inner
def _is_next_but_two(w, first, task):
    for edge in range(w.indptr[first], _last_asked(w, first)):
        between = w.successors[edge]
        if between >= 0 and _is_next_but_one(w, between, task):
            return True
    return False


@inline
def _has_room(w, task):
    """Tell whether all tables of triples have room for what one task can add."""
    if w.sizes[LANES] == w.room or w.sizes[WAYS] == w.room:
        return False
    if w.has_credits == 0:
        return True
    most = 2 * (w.take_indptr[task + 1] - w.take_indptr[task])  # what it takes, and the pools
    most += w.give_indptr[task + 1] - w.give_indptr[task]
    return w.sizes[NODES] + most <= w.room


@inline
def _lane_of(w, task, where, needs):
    """Lane of a task that waits for a server or for credits."""
    rule = w.lane_rule[where]
    if rule == ONE_LANE:
        lane = w.single_lane[where]
    else:
        if rule == BY_POOLS:
            needs = _pools_of(w, needs)
        elif rule != BY_NEEDS:
            needs = -1
        level = w.priority[task]
        lane = w.num_single + intern(w.lane_table, w.room, w.lanes, w.sizes, LANES, where, level, needs)
    w.lane_tasks[lane] = w.lane_tasks[lane] + 1
    return lane


@inline
def _pack_task(w, number):
    """Write the record of a task."""
    where = w.resource[number]
    duration = w.duration[number]
    latency = w.latency[number]
    needs = -1
    gives = -1
    shares = False
    if w.has_credits != 0:
        needs = _needs_of(w, number)
        gives = _gives_of(w, number)
        shares = _has_shares(w, number)
    touches = w.has_touches != 0 and w.touch_indptr[number + 1] > w.touch_indptr[number]
    lane = NO_LANE
    flight = NO_FLIGHT
    if where >= 0 or needs >= 0:
        place = where
        if where < 0:
            where = w.null
            place = w.null + 1
        lane = _lane_of(w, number, where, needs)
        if w.is_stream[where] == 1 or latency > 0:
            flight = _class_of(w, place, latency)
    elif gives >= 0 or shares:
        lane = GIVING_LANE
        if latency > 0:
            flight = _class_of(w, w.null + 1, latency)
    else:
        # A delay: only the sum matters to whoever waits for it.
        duration += latency
        if duration > 0:
            flight = _class_of(w, w.null, duration)
    if flight == NO_FLIGHT:
        w.sizes[DIRECT] = w.sizes[DIRECT] + 1
    if needs >= 0 or gives >= 0 or shares or touches:
        last = gives << WAY_FLAGS
        if touches:
            last |= LOOKS_UP
        if shares:
            last |= SHARES
        if (gives >= 0 or shares) and _may_be_early(w, number):
            last |= MAY_BE_EARLY
        flight = FIRST_WAY - intern(w.way_table, w.room, w.ways, w.sizes, WAYS, flight, needs, last)
    task = w.tasks[number]
    task.duration = duration
    task.visible = -1
    task.edges = w.indptr[number]
    task.missing = w.num_predecessors[number]
    task.lane = lane
    task.flight = flight


@entry(Packing)
def pack(w):
    """Write the record of every task, with the lane it queues in and the channel it flies on.

    Returns the task at which a table was full, or the number of tasks.
    """
    for task in range(w.first_task, w.num_tasks):
        if not _has_room(w, task):
            return task
        _pack_task(w, task)
    w.tasks[w.num_tasks].edges = w.indptr[w.num_tasks]
    return w.num_tasks


# --- Touches ------------------------------------------------------------------------------------


@inline
def _is_like(t, row, other):
    """Tell whether two touches have the same form."""
    return (
        t.table[row] == t.table[other]
        and t.units[row] == t.units[other]
        and t.port_duration[row] == t.port_duration[other]
        and t.miss_duration[row] == t.miss_duration[other]
        and t.miss_latency[row] == t.miss_latency[other]
        and t.evict_duration[row] == t.evict_duration[other]
        and t.lag[row] == t.lag[other]
        and t.drops[row] == t.drops[other]
    )


@inline
def _form_of(t, row):
    cost = intern(
        t.cost_table,
        t.room,
        t.costs,
        t.sizes,
        COSTS,
        t.miss_latency[row],
        t.miss_duration[row],
        t.evict_duration[row],
    )
    price = intern(t.price_table, t.room, t.prices, t.sizes, PRICES, cost, t.port_duration[row], t.lag[row])
    room = (t.units[row] << ROOM_FLAGS) | t.drops[row]
    return intern(t.form_table, t.room, t.forms, t.sizes, FORMS, t.table[row], room, price)


@entry(PackedTouches)
def pack_touches(t):
    """Write the record of every touch, in the order of the tasks; forms before, in the order of adding.

    Returns the row at which a table was full, or the number of touches.
    """
    for row in range(t.first_row, t.num_touches):
        if row > 0 and _is_like(t, row, row - 1):  # as most touches that are added together
            t.form[row] = t.form[row - 1]
            continue
        if t.sizes[FORMS] == t.room or t.sizes[PRICES] == t.room or t.sizes[COSTS] == t.room:
            return row
        t.form[row] = _form_of(t, row)
    for place in range(t.num_touches):
        row = t.order[place]
        touch = t.touches[place]
        touch.key = t.number[place]
        touch.form = t.form[row]
        touch.charged = t.charged[row]
        touch.row = row
    return t.num_touches


# --- After the run ------------------------------------------------------------------------------


class RunRecords(KernelMemory):
    """Records after a run, and the times in them."""

    num_tasks = FixedNumber()
    has_touches = FixedNumber()
    resource = StridedColumn()
    duration = StridedColumn()
    latency = StridedColumn()
    tasks = Records(TASK)
    extra_latency = Vector(np.int64)
    start = Vector(np.int64)
    end = Vector(np.int64)


@entry(RunRecords)
def unpack(u):
    """Read start and end of every task out of the records."""
    for task in range(u.num_tasks):
        end = u.tasks[task].visible - u.latency[task]
        service = u.duration[task]
        if u.has_touches != 0 and u.resource[task] >= 0:
            service = u.tasks[task].duration  # touches may have added to it
            end -= u.extra_latency[task]
        u.end[task] = end
        u.start[task] = end - service
