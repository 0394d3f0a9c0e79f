# mypy: allow-untyped-defs, allow-untyped-calls
# Numba infers the types; annotations would promise what it does not check.
"""All numba code of this package, in one file.

Numba's cache notices edits in the file a kernel lives in and not in others, so kernels that call
each other share a file. With ``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, njit, types
from numba.extending import intrinsic

CACHED: dict[str, Any] = {"cache": True}
#: Kernels that allocate nothing do without numba's reference counts. These are atomic operations
#: on every array that is passed on: with them the loop takes forty times as long.
HOT: dict[str, Any] = {"cache": True, "_nrt": False}
INLINED: dict[str, Any] = {"cache": True, "_nrt": False, "forceinline": True}


@njit(**INLINED)
def _id_at(end, edge):
    """Task at one end of an edge; see ``columns.EdgeBlocks``."""
    return end[0][edge * end[1]] + edge * end[2]


@njit(**HOT)
def count_edges(count, src, dst, indptr, num_predecessors):
    """Count a block's successors into ``indptr[2:]``, and predecessors; look for odd edges.

    ``indptr`` has two rows more than there are tasks; a negative target is a gate event and counts
    as a successor only.

    Returns
    -------
    Row of a dangling edge or -1, number of edges between tasks, and whether all of them go from
    a smaller to a larger id.
    """
    num_tasks = num_predecessors.size
    num_edges = 0
    is_forward = True
    for edge in range(count):
        u = _id_at(src, edge)
        v = _id_at(dst, edge)
        if u >= num_tasks or v >= num_tasks:
            return edge, num_edges, False
        indptr[u + 2] += 1
        if v >= 0:
            num_predecessors[v] += 1
            num_edges += 1
            if v <= u:
                is_forward = False
    return -1, num_edges, is_forward


@njit(**HOT)
def sum_counts(indptr):
    """Turn the counts in ``indptr[2:]`` into the first places in ``indptr[1:]``."""
    for task in range(2, indptr.size):
        indptr[task] += indptr[task - 1]


@njit(**HOT)
def place_edges(count, src, dst, indptr, successors):
    """Scatter a block's targets to their source's row, in order; ``indptr[1:]`` is the cursor."""
    for edge in range(count):
        row = _id_at(src, edge) + 1
        successors[indptr[row]] = _id_at(dst, edge)
        indptr[row] += 1


@njit(**CACHED)
def order_tasks(
    indptr,
    successors,
    missing,
    member_indptr,
    member_waiter,
    member_gate,
    tile_indptr,
    tile_slots,
    tile_first,
    tile_gate,
    order,
):
    """Kahn's order with two extra nodes a gate: all members arrived, all tiles done.

    ``missing`` starts as the number of predecessors (a gate's dependency counts as one) and is
    used up. Returns how many nodes were reached.
    """
    num_tasks = missing.size
    num_members = member_gate.size
    num_gates = member_indptr.size - 1
    arrivals = member_indptr[1:] - member_indptr[:-1]
    tiles = tile_indptr[1:] - tile_indptr[:-1]
    done = 0
    for task in range(num_tasks):
        if missing[task] == 0:
            order[done] = task
            done += 1
    for gate in range(num_gates):
        if arrivals[gate] == 0:
            order[done] = num_tasks + 2 * gate
            done += 1
        if tiles[gate] == 0:
            order[done] = num_tasks + 2 * gate + 1
            done += 1
    head = 0
    while head < done:
        node = order[head]
        head += 1
        if node < num_tasks:
            for edge in range(indptr[node], indptr[node + 1]):
                target = successors[edge]
                if target >= 0:
                    missing[target] -= 1
                    if missing[target] == 0:
                        order[done] = target
                        done += 1
                elif -1 - target < num_members:
                    gate = member_gate[-1 - target]
                    arrivals[gate] -= 1
                    if arrivals[gate] == 0:
                        order[done] = num_tasks + 2 * gate
                        done += 1
                else:
                    gate = tile_gate[-1 - target - num_members]
                    tiles[gate] -= 1
                    if tiles[gate] == 0:
                        order[done] = num_tasks + 2 * gate + 1
                        done += 1
        elif (node - num_tasks) % 2 == 0:
            gate = (node - num_tasks) // 2
            for tile in range(tile_indptr[gate], tile_indptr[gate + 1]):
                if tile_slots[tile] > 0:
                    missing[tile_first[tile]] -= 1
                    if missing[tile_first[tile]] == 0:
                        order[done] = tile_first[tile]
                        done += 1
        else:
            gate = (node - num_tasks) // 2
            for member in range(member_indptr[gate], member_indptr[gate + 1]):
                waiter = member_waiter[member]
                if waiter >= 0:
                    missing[waiter] -= 1
                    if missing[waiter] == 0:
                        order[done] = waiter
                        done += 1
    return done


# --- The record of a task: 32 bytes, so that one cache line serves every step of its life -------

#: Words (8 bytes) of a record. While a task waits for a server, ``VISIBLE`` holds its ready time.
WORDS = 4
DURATION, VISIBLE = 0, 1
#: Halves (4 bytes) of the same record, seen through a second view.
HALVES = 8
EDGES, MISSING, LANE, FLIGHT = 4, 5, 6, 7

#: ``LANE`` of tasks that wait for nobody: pure delays, and pure delays that give credits back.
NO_LANE, GIVING_LANE = -1, -2
#: ``MISSING`` of a task that holds or held a server, where credits have to know.
STARTED = -1
#: ``FLIGHT`` of tasks that are visible the moment they leave. Less than that, it is the number of
#: a way, counted down from -2.
NO_FLIGHT = -1
FIRST_WAY = -2
#: ``LANE`` of a task in service that a miss delays, counted down: its station.
LATE_LANE = -3

#: Kinds of channel: in order of time by construction, or kept in order by a heap.
IN_ORDER, BY_HEAP = 0, 1
#: Distinct latencies of one resource that get a channel each; the rest share a heap.
MAX_CLASSES = 8

#: Rows of the survey of resources.
TASKS, FIRST_PRIORITY, IS_MIXED, TAKERS, GIVERS, ZERO, INSTANT = 0, 1, 2, 3, 4, 5, 6
#: What separates the lanes of a resource: nothing, the priority, or also what its tasks take.
ONE_LANE, BY_PRIORITY, BY_NEEDS = 0, 1, 2
#: What ``pack`` counts: lanes beyond the single ones, nodes of lists of credits, ways, flight
#: classes, tasks without a flight.
LANES, NODES, WAYS, CLASSES, DIRECT = range(5)
#: Columns of the table of flight classes.
LATENCY, NEXT, COUNT, KIND, PLACE = 0, 1, 2, 3, 4

NEVER = 2**63 - 1
OK, TOO_LATE, EARLY_RELEASE, LATE_CHARGE = range(4)
#: Longest service and latency, of a task and with all that touches add: no sum of times overflows.
LONGEST = NEVER >> 2

#: Tables of the plan: one row a thing, so that what is used together lies together.
CH_HEAD, CH_TAIL, CH_KIND, CH_LATENCY, CH_BASE, CH_SIZE, CHANNEL_COLUMNS = range(7)
LN_RUN, LN_TAIL, LN_FREE_AT, LN_HEAD, LN_RUN_TIME, LN_STATION, LN_TOUCHED, LN_PLACE = range(8)
LN_NEEDS = LN_FREE_AT  # lanes of stations have no such time
LN_PRIORITY, LN_READY, LN_TASK, LN_POOL, LN_NEXT, LN_PREVIOUS, LN_CHILD = range(8, 15)
LN_SERVED, LANE_COLUMNS = 15, 16
ST_FREE, ST_RULE, ST_CONTENDS, ST_BASE, ST_SIZE, ST_TOUCHED, ST_SERVED = range(7)
ST_LOOKS_UP, ST_LATE, STATION_COLUMNS = range(7, 10)
PL_FREE, PL_WAITING, PL_TOUCHED, POOL_COLUMNS = range(4)
ND_NEXT, ND_POOL, ND_UNITS = range(3)
WY_CHANNEL, WY_NEEDS, WY_GIVES = range(3)
#: ``WY_GIVES`` is four times the list of what is given back, and these.
WAY_FLAGS, MAY_BE_EARLY, LOOKS_UP = 2, 1, 2
#: Edges of a task that :func:`_follows` looks at.
MOST_ASKED = 4
RV_HEAP, RV_PLACE, RIVAL_COLUMNS = range(3)
MB_GATE, MB_WAITER, MB_SLOT, MEMBER_COLUMNS = range(4)
SL_TILE, SL_WAITER, SLOT_COLUMNS = range(3)
TL_BASE, TL_OPEN, TL_FIRST, TL_IS_DONE, TILE_COLUMNS = range(5)
TB_FREE, TB_OLDEST, TB_NEWEST, TB_POLICY, TB_PATIENCE, TABLE_COLUMNS = range(6)
KY_STATE, KY_OLDER, KY_NEWER, KY_TIME, KEY_COLUMNS = range(5)
TO_KEY, TO_FORM, TO_CHARGED, TO_ROW, TOUCH_COLUMNS = range(5)
FO_TABLE, FO_DROPS, FO_COSTS = range(3)
CO_MISS_LATENCY, CO_MISS_DURATION, CO_EVICT_DURATION = range(3)

#: What ``pack_touches`` counts.
FORMS, COSTS, KEYS = range(3)
#: ``ST_RULE``: how a station treats lanes that lack credits, as in ``taskgraph.DISCIPLINES``.
FIFO, VOQ, TURNS = range(3)
#: ``TB_POLICY``, as in ``taskgraph.POLICIES``.
LRU, OLDEST = range(2)
#: ``KY_STATE``.
UNKNOWN, PRESENT, EVICTED = range(3)
#: What a touch found, as in ``timeline.Touched``.
HIT, NEW, MISSED, AND_EVICTED = 0, 1, 2, 4

Columns = namedtuple(
    "Columns",
    [
        # (array, step) of tasks
        "resource",
        "priority",
        "duration",
        "latency",
        # arrays
        "indptr",
        "num_predecessors",
        "successors",
        "takes",
        "touch_indptr",  # touches by who touches; of size 1 without any
        "touch_order",
    ],
)

#: Takes, and their rows by who takes and who gives back. Without any, the ``indptr`` have size 1.
Takes = namedtuple(
    "Takes",
    [
        "task",
        "pool",
        "units",
        "take_indptr",
        "take_order",
        "give_indptr",
        "give_order",
        "scratch",  # room for the pools and units of one task
    ],
)

#: Tasks and the channels they fly on. Plans are cut into parts because arguments are passed by
#: value: what a function does not get, numba need not unpack.
Flights = namedtuple(
    "Flights",
    [
        "words",  # records of the tasks,
        "halves",  # and the same memory in halves
        "successors",
        "latency",  # (array, step), for tasks whose channel does not know
        "slots",  # queues of the lanes and of the channels in order
        "tree",  # tournament over the channels
        "channels",  # what becomes visible or leaves, by time
        "heap_time",
        "heap_task",
        "status",
        "touch_indptr",  # that of the lookups
    ],
)

#: What orders lanes: queues in order of (ready time, id).
Queues = namedtuple(
    "Queues",
    [
        "lanes",
        "stations",  # resources that need an event for each end
        "station_lanes",  # heaps of lanes
        "pools",
        "rivals",  # stations and pools that compete for credits
        "nodes",  # lists of (next, pool, units): what is taken or given back together
        "ways",  # how tasks with credits leave: channel, lists of what is taken and given back
    ],
)

#: Columns of the touches, as :func:`pack_touches` reads them: (array, step), in the order in which
#: they were added, but for ``key`` (touch,).
TouchColumns = namedtuple(
    "TouchColumns",
    ["key", "table", "miss_latency", "miss_duration", "evict_duration", "charged", "drops"],
)

#: Tables, and who touches them.
Lookups = namedtuple(
    "Lookups",
    [
        "indptr",  # touches of each task in ``touches``; of size 1 where nobody touches anything
        "touches",  # one record of 16 bytes a touch, by task
        "forms",  # what many touches have in common: (table, whether it drops, costs)
        "costs",  # (latency of a miss, duration of a miss, duration of an eviction)
        "tables",
        "keys",  # the keys of a table, from the one that leaves next to the one that came last
        "touched",  # what each touch found (touch,)
        "extra_latency",  # what touches add to the latency of each task
    ],
)

Plan = namedtuple(
    "Plan",
    [
        "flights",
        "queues",
        "lookups",
        "turn_indptr",  # stations that serve in turns, by the pools their tasks take from
        "turn_stations",
        "give_indptr",  # takes by who gives back, for those who might be early
        "give_order",
        "taker",
        "members",
        "gate_slot",
        "gate_slots",
        "tiles",
        # work lists; those that functions add to hold their length in front
        "stack",
        "touched",
        "late",
        "touched_stations",
        "touched_pools",
        "deferred",
        "arrivals",
    ],
)


# --- Preparing a run ----------------------------------------------------------------------------


@njit(**CACHED)
def group_rows(keys, num_groups):
    """Counting sort: ``order[indptr[g]:indptr[g + 1]]`` are the rows with key ``g``, in order."""
    indptr = np.zeros(num_groups + 2, np.int32)
    for row in range(keys.size):
        indptr[keys[row] + 2] += 1
    for group in range(2, num_groups + 2):
        indptr[group] += indptr[group - 1]
    order = np.empty(keys.size, np.int32)
    for row in range(keys.size):
        group = keys[row] + 1
        order[indptr[group]] = row
        indptr[group] += 1
    return indptr[: num_groups + 1], order


@njit(**INLINED)
def _at(column, row):
    """Value of a column given as (array, step); step 0 means one value for every row."""
    return column[0][row * column[1]]


@njit(**HOT)
def survey(c, num_tasks, limit, table):
    """Count tasks per resource and note what keeps a resource from being a simple stream.

    ``table`` (column, resource) receives tasks, first priority, whether priorities differ, tasks
    that take credits, tasks that only give some back, and tasks that wait for a server but
    hold it for no time, and those of them that are visible at once, too; its last resource is
    the null one.

    Returns
    -------
    A task that takes too long for the clock or -1.
    """
    null = table.shape[1] - 1
    has_credits = c.takes.take_indptr.size > 1
    for task in range(num_tasks):
        where = np.int64(_at(c.resource, task))
        if where < 0:
            where = null
        level = _at(c.priority, task)
        if table[TASKS, where] == 0:
            table[FIRST_PRIORITY, where] = level
        elif table[FIRST_PRIORITY, where] != level:
            table[IS_MIXED, where] = 1
        table[TASKS, where] += 1
        time = _at(c.duration, task)
        if time > limit or _at(c.latency, task) > limit:
            return task
        takes = False
        if has_credits:
            takes = c.takes.take_indptr[task + 1] > c.takes.take_indptr[task]
            if takes:
                table[TAKERS, where] += 1
            elif c.takes.give_indptr[task + 1] > c.takes.give_indptr[task]:
                table[GIVERS, where] += 1
        if time == 0 and (where != null or takes):
            table[ZERO, where] += 1
            if _at(c.latency, task) == 0:
                table[INSTANT, where] += 1
    return -1


@njit(**INLINED)
def _hashed(a, b, c):
    """Hash of three whole numbers; 31 bits a factor, so that nothing overflows as plain Python."""
    low = 0x7FFFFFFF
    h = ((a ^ (a >> 31)) & low) * 0x5BD1E995
    h = ((h ^ (h >> 31) ^ b ^ (b >> 31)) & low) * 0x2C1B3C6D
    h = ((h ^ (h >> 31) ^ c ^ (c >> 31)) & low) * 0x297A2D39
    return h ^ (h >> 31)


@njit(**INLINED)
def _intern(table, keys, size, a, b, c):
    """Number of the triple (a, b, c), which is ``size`` if it is new.

    ``table`` is an open-addressing table of numbers (-1 free); ``keys`` (number, 3) the triples.
    """
    mask = table.size - 1
    place = _hashed(a, b, c) & mask
    while table[place] >= 0:
        found = np.int64(table[place])
        if keys[found, 0] == a and keys[found, 1] == b and keys[found, 2] == c:
            return found
        place = (place + 1) & mask
    keys[size, 0] = a
    keys[size, 1] = b
    keys[size, 2] = c
    table[place] = size
    return size


@njit(**HOT)
def rehash(table, keys, size):
    """Enter the first ``size`` triples into an empty table."""
    mask = table.size - 1
    for number in range(size):
        place = _hashed(keys[number, 0], keys[number, 1], keys[number, 2]) & mask
        while table[place] >= 0:
            place = (place + 1) & mask
        table[place] = number


@njit(**INLINED)
def _class_of(classes, first_class, sizes, where, value):
    """Flight class of a latency at a place; a new one if it is not known there.

    ``classes`` (class, column) holds latency, next class of the place, tasks, kind and place.
    After ``MAX_CLASSES`` distinct latencies a place sends all further ones through one heap.
    """
    found = first_class[where]
    length = 0
    while found >= 0:
        if classes[found, LATENCY] == value or classes[found, KIND] == BY_HEAP:
            classes[found, COUNT] += 1
            return found
        length += 1
        if classes[found, NEXT] < 0:
            break
        found = classes[found, NEXT]
    new = sizes[CLASSES]
    sizes[CLASSES] += 1
    if found >= 0:
        classes[found, NEXT] = new
    else:
        first_class[where] = new
    classes[new, LATENCY] = value
    classes[new, NEXT] = -1
    classes[new, COUNT] = 1
    classes[new, KIND] = BY_HEAP if length == MAX_CLASSES else IN_ORDER
    classes[new, PLACE] = where
    return new


@njit(**INLINED)
def _add_node(table, nodes, sizes, following, pool, units):
    """Put (pool, units) before a list; equal lists get the same number."""
    number = _intern(table, nodes, sizes[NODES], following, pool, units)
    if number == sizes[NODES]:
        sizes[NODES] += 1
    return number


@njit(**INLINED)
def _needs_of(t, task, table, nodes, sizes):
    """List of what a task takes, by pool; -1 for nothing. Takes from one pool are added up."""
    low = t.take_indptr[task]
    high = t.take_indptr[task + 1]
    if high - low == 1:
        row = t.take_order[low]
        return _add_node(table, nodes, sizes, np.int64(-1), np.int64(t.pool[row]), t.units[row])
    count = 0
    for entry in range(low, high):
        row = t.take_order[entry]
        pool = np.int64(t.pool[row])
        place = count
        while place > 0 and t.scratch[place - 1, 0] >= pool:
            place -= 1
        if place < count and t.scratch[place, 0] == pool:
            t.scratch[place, 1] += t.units[row]
            continue
        for later in range(count, place, -1):
            t.scratch[later, 0] = t.scratch[later - 1, 0]
            t.scratch[later, 1] = t.scratch[later - 1, 1]
        t.scratch[place, 0] = pool
        t.scratch[place, 1] = t.units[row]
        count += 1
    number = np.int64(-1)
    for place in range(count - 1, -1, -1):
        number = _add_node(
            table, nodes, sizes, number, t.scratch[place, 0], t.scratch[place, 1]
        )  # fmt: skip
    return number


@njit(**INLINED)
def _gives_of(t, task, table, nodes, sizes):
    """List of what a task gives back; -1 for nothing."""
    number = np.int64(-1)
    for entry in range(t.give_indptr[task + 1] - 1, t.give_indptr[task] - 1, -1):
        row = t.give_order[entry]
        number = _add_node(table, nodes, sizes, number, np.int64(t.pool[row]), t.units[row])
    return number


@njit(**INLINED)
def _may_be_early(c, task):
    """Whether a task might leave before somebody whose credits it gives back has started.

    It cannot if it is the taker itself or follows it within two edges; others are not looked at.
    """
    t = c.takes
    for entry in range(t.give_indptr[task], t.give_indptr[task + 1]):
        taker = np.int64(t.task[t.give_order[entry]])
        if taker != task and not _follows(c, taker, task):
            return True
    return False


@njit(**INLINED)
def _follows(c, first, task):
    """Whether a task is among the successors of another, or among theirs; not all are asked."""
    low = c.indptr[first]
    high = min(c.indptr[first + 1], low + MOST_ASKED)
    for edge in range(low, high):
        if c.successors[edge] == task:
            return True
    for edge in range(low, high):
        between = np.int64(c.successors[edge])
        if between < 0:
            continue
        start = c.indptr[between]
        for further in range(start, min(c.indptr[between + 1], start + MOST_ASKED)):
            if c.successors[further] == task:
                return True
    return False


@njit(**HOT)
def pack(
    c, task, num_tasks, lane_rule, single_lane, num_single, is_stream, counts,
    keys, table, nodes, node_table, ways, way_table, classes, first_class, sizes, words, halves,
):  # fmt: skip
    """Write the record of every task, with the lane it queues in and the channel it flies on.

    Parameters
    ----------
    c
        Columns of the graph.
    task, num_tasks
        Where to begin, and the end.
    lane_rule, single_lane, num_single
        Per resource: what separates its lanes, and its lane if nothing does; number of those.
    is_stream
        Per resource: one server, one lane, no credits.
    counts
        Receives the tasks of each lane.
    keys, table
        Lanes beyond the single ones: (resource, priority, needs) and the table to find them.
    nodes, node_table
        The same for the lists of what tasks take and give back.
    ways, way_table
        The same for (class, list of needs, list of gives and flags); see ``WY_GIVES``.
    classes, first_class
        Receive the flight classes; see :func:`_class_of`.
    sizes
        How many of all these there are, and tasks that are visible when they leave.
    words, halves
        The records, as two views of the same memory.

    Returns
    -------
    The task at which a table was full, or ``num_tasks``.
    """
    null = is_stream.size - 1
    has_credits = c.takes.take_indptr.size > 1
    has_touches = c.touch_indptr.size > 1
    while task < num_tasks:
        where = np.int64(_at(c.resource, task))
        duration = _at(c.duration, task)
        latency = _at(c.latency, task)
        needs = np.int64(-1)
        gives = np.int64(-1)
        if has_credits:
            # Room for the most that one task can add.
            most = c.takes.take_indptr[task + 1] - c.takes.take_indptr[task]
            most += c.takes.give_indptr[task + 1] - c.takes.give_indptr[task]
            if most > 0:
                if sizes[NODES] + most > nodes.shape[0]:
                    return task
                needs = _needs_of(c.takes, task, node_table, nodes, sizes)
                gives = _gives_of(c.takes, task, node_table, nodes, sizes)
        touches = has_touches and c.touch_indptr[task + 1] > c.touch_indptr[task]
        has_way = needs >= 0 or gives >= 0 or touches
        if has_way and sizes[WAYS] == ways.shape[0]:
            return task
        lane = np.int64(NO_LANE)
        flight = np.int64(NO_FLIGHT)
        if where < 0 and needs < 0:
            if gives >= 0:
                lane = np.int64(GIVING_LANE)
                if latency > 0:
                    flight = _class_of(classes, first_class, sizes, null + 1, latency)
            else:
                # A delay: only the sum matters to whoever waits for it.
                duration += latency
                if duration > 0:
                    flight = _class_of(classes, first_class, sizes, null, duration)
        else:
            place = where if where >= 0 else null + 1
            if where < 0:
                where = np.int64(null)
            if lane_rule[where] == ONE_LANE:
                lane = single_lane[where]
            else:
                if sizes[LANES] == keys.shape[0]:
                    return task
                level = np.int64(_at(c.priority, task))
                wanted = needs if lane_rule[where] == BY_NEEDS else np.int64(-1)
                number = _intern(table, keys, sizes[LANES], where, level, wanted)
                if number == sizes[LANES]:
                    sizes[LANES] += 1
                lane = num_single + number
            counts[lane] += 1
            if is_stream[where] == 1 or latency > 0:
                flight = _class_of(classes, first_class, sizes, place, latency)
        if flight == NO_FLIGHT:
            sizes[DIRECT] += 1
        if has_way:
            last = gives << WAY_FLAGS
            if touches:
                last |= LOOKS_UP
            if gives >= 0 and _may_be_early(c, task):
                last |= MAY_BE_EARLY
            way = _intern(way_table, ways, sizes[WAYS], flight, needs, last)
            if way == sizes[WAYS]:
                sizes[WAYS] += 1
            flight = FIRST_WAY - way
        words[task * WORDS + DURATION] = duration
        words[task * WORDS + VISIBLE] = -1
        halves[task * HALVES + EDGES] = c.indptr[task]
        halves[task * HALVES + MISSING] = c.num_predecessors[task]
        halves[task * HALVES + LANE] = lane
        halves[task * HALVES + FLIGHT] = flight
        task += 1
    halves[num_tasks * HALVES + EDGES] = c.indptr[num_tasks]
    return num_tasks


@njit(**HOT)
def pack_touches(
    t, base, order, place, numbers, forms, form_table, costs, cost_table, sizes, touches
):
    """Write the record of every touch, in the order of the tasks.

    Keys get numbers in that order too: those that are wanted together lie together.

    Parameters
    ----------
    t
        Columns of the touches.
    base
        Place of the first key of each table (table,).
    order, place
        Rows of the touches by task, and where to begin among them.
    numbers
        Receives the number of the key at each place; -1 where it has none yet.
    forms, form_table, costs, cost_table
        Receive what touches have in common, with tables to find it; see ``Lookups``.
    sizes
        How many forms, costs and keys there are.
    touches
        The records.

    Returns
    -------
    The place at which a table was full, or the number of touches.
    """
    while place < order.size:
        row = np.int64(order[place])
        if max(sizes[FORMS], sizes[COSTS]) == forms.shape[0]:
            return place
        late = _at(t.miss_latency, row)
        longer = _at(t.miss_duration, row)
        evict = _at(t.evict_duration, row)
        cost = _intern(cost_table, costs, sizes[COSTS], late, longer, evict)
        if cost == sizes[COSTS]:
            sizes[COSTS] += 1
        table = np.int64(_at(t.table, row))
        drops = np.int64(_at(t.drops, row))
        form = _intern(form_table, forms, sizes[FORMS], table, drops, cost)
        if form == sizes[FORMS]:
            sizes[FORMS] += 1
        where = base[table] + t.key[row]
        if numbers[where] < 0:
            numbers[where] = sizes[KEYS]
            sizes[KEYS] += 1
        touches[place, TO_KEY] = numbers[where]
        touches[place, TO_FORM] = form
        touches[place, TO_CHARGED] = _at(t.charged, row)
        touches[place, TO_ROW] = row
        place += 1
    return place


@njit(**HOT)
def unpack(c, words, extra_latency, start, end):
    """Read start and end of every task out of the records.

    The latency that touches added is given for every task, or empty where there are no touches.
    """
    has_touches = extra_latency.size > 0
    for task in range(start.size):
        finish = words[task * WORDS + VISIBLE] - _at(c.latency, task)
        service = _at(c.duration, task)
        if has_touches and _at(c.resource, task) >= 0:
            service = words[task * WORDS + DURATION]  # touches may have added to it
            finish -= extra_latency[task]
        end[task] = finish
        start[task] = finish - service


@njit(**CACHED)
def largest_keys(table, key, num_tables):
    """Largest key of each table, -1 where nobody touches it; ``table`` is (array, step)."""
    largest = np.full(num_tables, -1, np.int64)
    for row in range(key.size):
        largest[_at(table, row)] = max(largest[_at(table, row)], key[row])
    return largest


# --- Asking for memory before it is needed --------------------------------------------------------


def _prefetch_nothing(array, index):
    """Stand-in where nothing is compiled."""


@intrinsic
def _prefetch_line(typing_context, array, index):
    """Start to load the cache line of ``array[index]``; no effect but on speed."""

    def code(context, builder, signature, arguments):
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        byte = ir.IntType(8).as_pointer()
        address = builder.bitcast(builder.gep(view.data, [arguments[1]]), byte)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        name = "llvm.prefetch.p0"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, kind, name)
        read, keep, data = number(0), number(3), number(1)
        builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(array, index), code


_prefetch: Any = _prefetch_nothing if getattr(config, "DISABLE_JIT", 0) else _prefetch_line


@njit(**INLINED)
def _prefetch_task(f, task):
    """Ask for the record of a task and for where its touches begin, unless it is a gate's event."""
    if task < 0:
        return
    _prefetch(f.halves, task * HALVES)
    if f.touch_indptr.size > 1:
        _prefetch(f.touch_indptr, task)


@njit(**INLINED)
def _prefetch_edges(f, task):
    """Ask for the list of a task's successors: the task is under way to be visible."""
    _prefetch(f.successors, np.int64(f.halves[task * HALVES + EDGES]))
    _prefetch(f.halves, (task + 1) * HALVES)  # the list ends where the next one begins


@njit(**INLINED)
def _prefetch_targets(f, task):
    """Ask for the records of a task's first and last successors: it is visible soon."""
    edge = np.int64(f.halves[task * HALVES + EDGES])
    end = np.int64(f.halves[task * HALVES + HALVES + EDGES])
    if edge < end:
        _prefetch_task(f, np.int64(f.successors[edge]))
        if edge + 1 < end:
            _prefetch_task(f, np.int64(f.successors[end - 1]))


# --- Channels: one key each in a tournament tree, whatever the number of tasks ------------------


@njit(**INLINED)
def _set_key(tree, node, key):
    """Write a leaf and the minima above it. A key is ``time << shift | channel``."""
    tree[node] = key
    while node > 1:
        key = min(key, tree[node ^ 1])
        node >>= 1
        tree[node] = key


@njit(**INLINED)
def _heap_push(times, tasks, base, size, time, task):
    """Add to the binary heap of ``size`` entries that starts at ``base``."""
    place = size
    while place > 0:
        parent = (place - 1) >> 1
        if times[base + parent] <= time:
            break
        times[base + place] = times[base + parent]
        tasks[base + place] = tasks[base + parent]
        place = parent
    times[base + place] = time
    tasks[base + place] = task


@njit(**INLINED)
def _heap_pop(times, tasks, base, size):
    """Remove the first entry of the heap of ``size`` entries that starts at ``base``."""
    last = size - 1
    time = times[base + last]
    task = tasks[base + last]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= last:
            break
        if child + 1 < last and times[base + child + 1] < times[base + child]:
            child += 1
        if times[base + child] >= time:
            break
        times[base + place] = times[base + child]
        tasks[base + place] = tasks[base + child]
        place = child
    times[base + place] = time
    tasks[base + place] = task


@njit(**INLINED)
def _send(f, shift, channel, task, time):
    """Put a task on a channel, from which it comes back at ``time``."""
    if time > (NEVER >> shift):
        f.status[0] = TOO_LATE  # the key would not fit; the loop ends before it looks again
        return
    if f.channels[channel, CH_KIND] == IN_ORDER:
        tail = f.channels[channel, CH_TAIL]
        f.slots[tail] = task
        f.channels[channel, CH_TAIL] = tail + 1
        is_first = f.channels[channel, CH_HEAD] == tail
    else:
        base = f.channels[channel, CH_BASE]
        _heap_push(f.heap_time, f.heap_task, base, f.channels[channel, CH_SIZE], time, task)
        f.channels[channel, CH_SIZE] += 1
        is_first = f.heap_time[base] == time
    if is_first:
        _set_key(f.tree, (f.tree.size >> 1) + channel, (time << shift) | channel)


@njit(**INLINED)
def _receive(f, shift, channel):
    """Take the first task off a channel."""
    key = NEVER
    if f.channels[channel, CH_KIND] == IN_ORDER:
        head = f.channels[channel, CH_HEAD]
        task = f.slots[head]
        head += 1
        f.channels[channel, CH_HEAD] = head
        if head < f.channels[channel, CH_TAIL]:
            following = np.int64(f.slots[head])
            key = (f.words[following * WORDS + VISIBLE] << shift) | channel
            edge = f.halves[following * HALVES + EDGES]
            if edge < f.halves[following * HALVES + HALVES + EDGES]:
                _prefetch_task(f, np.int64(f.successors[edge]))
            if head + 2 < f.channels[channel, CH_TAIL]:
                _prefetch(f.halves, np.int64(f.slots[head + 2]) * HALVES)
    else:
        base = f.channels[channel, CH_BASE]
        task = f.heap_task[base]
        _heap_pop(f.heap_time, f.heap_task, base, f.channels[channel, CH_SIZE])
        f.channels[channel, CH_SIZE] -= 1
        if f.channels[channel, CH_SIZE] > 0:
            key = (f.heap_time[base] << shift) | channel
            _prefetch_targets(f, np.int64(f.heap_task[base]))
    _set_key(f.tree, (f.tree.size >> 1) + channel, key)
    return np.int64(task)


# --- Phase 1: a task's last dependency is met ---------------------------------------------------


@njit(**INLINED)
def _make_ready(p, shift, num_streams, task, now, num_stack, num_touched):
    """Queue a task, or start it if it is a pure delay. Returns the sizes of two work lists."""
    row = task * HALVES
    lane = np.int64(p.flights.halves[row + LANE])
    if lane >= 0:
        tail = p.queues.lanes[lane, LN_TAIL]
        p.flights.slots[tail] = task
        p.queues.lanes[lane, LN_TAIL] = tail + 1
        if lane < num_streams:
            # What lies behind ``lane_run`` has no start yet; the first such task reports the lane.
            if tail == p.queues.lanes[lane, LN_RUN]:
                p.touched[num_touched] = lane
                num_touched += 1
        else:
            p.flights.words[task * WORDS + VISIBLE] = now
            if p.queues.lanes[lane, LN_RUN_TIME] != now:
                p.queues.lanes[lane, LN_RUN_TIME] = now
                p.queues.lanes[lane, LN_RUN] = tail
            if p.queues.lanes[lane, LN_TOUCHED] == 0:
                p.queues.lanes[lane, LN_TOUCHED] = 1
                p.touched[num_touched] = lane
                num_touched += 1
            flight = p.flights.halves[row + FLIGHT]
            if flight <= FIRST_WAY and p.queues.ways[FIRST_WAY - flight, WY_GIVES] & LOOKS_UP:
                entry = np.int64(p.lookups.indptr[task])
                _prefetch(p.lookups.touches, entry * TOUCH_COLUMNS)
    elif lane == NO_LANE:
        visible = now + p.flights.words[task * WORDS + DURATION]
        p.flights.words[task * WORDS + VISIBLE] = visible
        channel = p.flights.halves[row + FLIGHT]
        if channel == NO_FLIGHT:
            p.stack[num_stack] = task
            num_stack += 1
        else:
            _send(p.flights, shift, np.int64(channel), task, visible)
    else:
        num_stack = _start_giving_delay(p, shift, task, now, num_stack)
    return num_stack, num_touched


@njit(**INLINED)
def _channel_of(ways, flight):
    """Channel of a task that may have a way, from its ``FLIGHT``."""
    return np.int64(flight) if flight > FIRST_WAY else ways[FIRST_WAY - flight, WY_CHANNEL]


@njit(**INLINED)
def _latency_of(f, task, channel):
    """Latency of a task, from its channel if all tasks on that have the same."""
    if channel == NO_FLIGHT:
        return np.int64(0)
    if f.channels[channel, CH_KIND] == IN_ORDER:
        return f.channels[channel, CH_LATENCY]
    return f.latency[0][task * f.latency[1]]


@njit(**HOT)
def _start_giving_delay(p, shift, task, now, num_stack):
    """Start a pure delay that gives credits back: its leaving is an event of its own."""
    end = now + p.flights.words[task * WORDS + DURATION]
    channel = _channel_of(p.queues.ways, p.flights.halves[task * HALVES + FLIGHT])
    p.flights.words[task * WORDS + VISIBLE] = end + _latency_of(p.flights, task, channel)
    p.flights.halves[task * HALVES + MISSING] = STARTED
    if end > now:
        _send(
            p.flights, shift, p.flights.channels.shape[0] - 1, task, end
        )  # the station of pure delays is last
        return num_stack
    return _leave(p, shift, task, num_stack)


@njit(**INLINED)
def _leave(p, shift, task, num_stack):
    """Give the task's credits back and send it on its way to be visible."""
    flight = np.int64(p.flights.halves[task * HALVES + FLIGHT])
    channel = flight
    if flight <= FIRST_WAY:
        way = FIRST_WAY - flight
        channel = p.queues.ways[way, WY_CHANNEL]
        lane = p.flights.halves[task * HALVES + LANE]
        if lane <= LATE_LANE:
            channel = p.queues.stations[LATE_LANE - lane, ST_LATE]
        gives = p.queues.ways[way, WY_GIVES]
        if gives & MAY_BE_EARLY and _is_early(p, task):
            return num_stack
        node = gives >> WAY_FLAGS
        while node >= 0:
            pool = p.queues.nodes[node, ND_POOL]
            p.queues.pools[pool, PL_FREE] += p.queues.nodes[node, ND_UNITS]
            if p.queues.pools[pool, PL_TOUCHED] == 0 and p.queues.pools[pool, PL_WAITING] >= 0:
                p.queues.pools[pool, PL_TOUCHED] = 1
                p.touched_pools[1 + p.touched_pools[0]] = pool
                p.touched_pools[0] += 1
            if p.turn_indptr.size > 1:
                _wake_turns(p, pool)
            node = p.queues.nodes[node, ND_NEXT]
    if channel == NO_FLIGHT:
        p.stack[num_stack] = task
        return num_stack + 1
    _prefetch_targets(p.flights, task)
    _send(
        p.flights,
        shift,
        channel,
        task,
        p.flights.words[task * WORDS + VISIBLE],
    )
    return num_stack


@njit(**HOT)
def _is_early(p, task):
    """Whether a task gives back what its taker has not taken yet, which ends the run."""
    for entry in range(p.give_indptr[task], p.give_indptr[task + 1]):
        taker = np.int64(p.taker[p.give_order[entry]])
        if p.flights.halves[taker * HALVES + MISSING] != STARTED:
            p.flights.status[0] = EARLY_RELEASE
            p.flights.status[1] = task
            p.flights.status[2] = taker
            return True
    return False


@njit(**HOT)
def _wake_turns(p, pool):
    """Let stations that serve in turns look again: one of their lanes may have its credits."""
    for index in range(p.turn_indptr[pool], p.turn_indptr[pool + 1]):
        station = p.turn_stations[index]
        if p.queues.stations[station, ST_FREE] > 0 and p.queues.stations[station, ST_SIZE] > 0:
            _touch_station(p.queues.stations, p.touched_stations, station)


@njit(**HOT)
def _meet(p, shift, num_streams, task, now, num_stack, num_touched):
    """Meet one dependency of a task."""
    p.flights.halves[task * HALVES + MISSING] -= 1
    if p.flights.halves[task * HALVES + MISSING] == 0:
        return _make_ready(p, shift, num_streams, task, now, num_stack, num_touched)
    return num_stack, num_touched


@njit(**INLINED)
def _close_tile(p, shift, num_streams, tile, now, num_stack, num_touched):
    """Let go whoever waits for a member that landed in the tile."""
    p.tiles[tile, TL_IS_DONE] = 1
    for slot in range(p.tiles[tile, TL_BASE], p.tiles[tile + 1, TL_BASE]):
        waiter = np.int64(p.gate_slots[slot, SL_WAITER])
        if waiter >= 0:
            p.gate_slots[slot, SL_WAITER] = -1
            num_stack, num_touched = _meet(
                p, shift, num_streams, waiter, now, num_stack, num_touched
            )
    return num_stack, num_touched


@njit(**INLINED)
def _admit_arrivals(p, shift, num_streams, num_arrivals, now, num_stack, num_touched):
    """Give the collected arrivals their slots, by gate and task id."""
    _sort_ids(p.arrivals, np.int64(0), num_arrivals)
    for place in range(num_arrivals):
        member = p.arrivals[place]
        gate = p.members[member, MB_GATE]
        slot = p.gate_slot[gate]
        p.gate_slot[gate] = slot + 1
        p.members[member, MB_SLOT] = slot
        tile = p.gate_slots[slot, SL_TILE]
        waiter = np.int64(p.members[member, MB_WAITER])
        if waiter >= 0:
            if p.tiles[tile, TL_IS_DONE] == 1:
                num_stack, num_touched = _meet(
                    p, shift, num_streams, waiter, now, num_stack, num_touched
                )
            else:
                p.gate_slots[slot, SL_WAITER] = waiter
        p.tiles[tile, TL_OPEN] -= 1
        if p.tiles[tile, TL_OPEN] == 0:
            first = np.int64(p.tiles[tile, TL_FIRST])
            num_stack, num_touched = _meet(
                p, shift, num_streams, first, now, num_stack, num_touched
            )
    return num_stack, num_touched


# --- Phase 2: starts ----------------------------------------------------------------------------


@njit(**HOT)
def _sort_ids(ids, low, high):
    """Sort ``ids[low:high]`` in place: nothing to do as a rule, else a heap sort."""
    is_sorted = True
    for place in range(low + 1, high):
        if ids[place] < ids[place - 1]:
            is_sorted = False
            break
    if is_sorted:
        return
    count = high - low
    for root in range(count // 2 - 1, -1, -1):
        _sift_id(ids, low, root, count)
    for last in range(count - 1, 0, -1):
        ids[low], ids[low + last] = ids[low + last], ids[low]
        _sift_id(ids, low, np.int64(0), last)


@njit(**HOT)
def _sift_id(ids, low, place, count):
    """Restore the max-heap ``ids[low:low + count]`` from ``place`` downwards."""
    moving = ids[low + place]
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        if child + 1 < count and ids[low + child + 1] > ids[low + child]:
            child += 1
        if ids[low + child] <= moving:
            break
        ids[low + place] = ids[low + child]
        place = child
    ids[low + place] = moving


@njit(**INLINED)
def _commit(p, shift, lane, low, high, now):
    """Fix the starts of ``slots[low:high]`` of a stream: nothing can come before them any more."""
    free_at = max(p.queues.lanes[lane, LN_FREE_AT], now)
    for place in range(low, high):
        task = np.int64(p.flights.slots[place])
        free_at += p.flights.words[task * WORDS + DURATION]
        channel = np.int64(p.flights.halves[task * HALVES + FLIGHT])
        visible = free_at + p.flights.channels[channel, CH_LATENCY]
        if p.flights.channels[channel, CH_KIND] != IN_ORDER:
            visible = free_at + p.flights.latency[0][task * p.flights.latency[1]]
        p.flights.words[task * WORDS + VISIBLE] = visible
        _send(p.flights, shift, channel, task, visible)
        if p.flights.status[0] != OK:
            break
    p.queues.lanes[lane, LN_FREE_AT] = free_at
    p.queues.lanes[lane, LN_RUN] = high


@njit(**INLINED)
def _is_before(q, lane, other):
    """Whether the head of one lane is served before the head of another."""
    if q.lanes[lane, LN_PRIORITY] != q.lanes[other, LN_PRIORITY]:
        return q.lanes[lane, LN_PRIORITY] < q.lanes[other, LN_PRIORITY]
    if q.lanes[lane, LN_READY] != q.lanes[other, LN_READY]:
        return q.lanes[lane, LN_READY] < q.lanes[other, LN_READY]
    return q.lanes[lane, LN_TASK] < q.lanes[other, LN_TASK]


@njit(**HOT)
def _lift_lane(q, base, place, lane):
    """Move a lane up in its station's heap to where it belongs, from a free ``place``."""
    while place > 0:
        parent = (place - 1) >> 1
        other = q.station_lanes[base + parent]
        if not _is_before(q, lane, other):
            break
        q.station_lanes[base + place] = other
        q.lanes[other, LN_PLACE] = place
        place = parent
    q.station_lanes[base + place] = lane
    q.lanes[lane, LN_PLACE] = place


@njit(**HOT)
def _sink_lane(q, base, size, place, lane):
    """Move a lane down in its station's heap to where it belongs, from a free ``place``."""
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = q.station_lanes[base + child]
        if child + 1 < size and _is_before(q, q.station_lanes[base + child + 1], other):
            child += 1
            other = q.station_lanes[base + child]
        if not _is_before(q, other, lane):
            break
        q.station_lanes[base + place] = other
        q.lanes[other, LN_PLACE] = place
        place = child
    q.station_lanes[base + place] = lane
    q.lanes[lane, LN_PLACE] = place


@njit(**INLINED)
def _enter_lane(q, lane):
    """Put a lane into its station's heap, or into the plain list of one that serves in turns."""
    station = q.lanes[lane, LN_STATION]
    base = q.stations[station, ST_BASE]
    size = q.stations[station, ST_SIZE]
    q.stations[station, ST_SIZE] = size + 1
    if q.stations[station, ST_RULE] == TURNS:
        q.station_lanes[base + size] = lane
        q.lanes[lane, LN_PLACE] = size
    else:
        _lift_lane(q, base, size, lane)


@njit(**INLINED)
def _remove_first_lane(q, station):
    """Take the first lane out of its station's heap."""
    base = q.stations[station, ST_BASE]
    q.lanes[q.station_lanes[base], LN_PLACE] = -1
    size = q.stations[station, ST_SIZE] - 1
    q.stations[station, ST_SIZE] = size
    if size > 0:
        last = q.station_lanes[base + size]
        if q.stations[station, ST_RULE] == TURNS:
            q.station_lanes[base] = last
            q.lanes[last, LN_PLACE] = 0
        else:
            _sink_lane(q, base, size, np.int64(0), last)


@njit(**INLINED)
def _touch_station(stations, touched, station):
    """Note that the station may have something to start."""
    if stations[station, ST_TOUCHED] == 0:
        stations[station, ST_TOUCHED] = 1
        touched[1 + touched[0]] = station
        touched[0] += 1


@njit(**HOT)
def _meld(q, lane, other):
    """Join two pairing heaps of waiting lanes; returns the root, -1 stands for an empty heap."""
    if lane < 0:
        return other
    if other < 0:
        return lane
    if _is_before(q, other, lane):
        lane, other = other, lane
    child = q.lanes[lane, LN_CHILD]
    q.lanes[other, LN_NEXT] = child
    q.lanes[other, LN_PREVIOUS] = lane
    if child >= 0:
        q.lanes[child, LN_PREVIOUS] = other
    q.lanes[lane, LN_CHILD] = other
    return lane


@njit(**HOT)
def _meld_siblings(q, lane):
    """Join a list of siblings: in pairs from the left, then all from the right."""
    pairs = np.int64(-1)
    while lane >= 0:
        other = q.lanes[lane, LN_NEXT]
        following = np.int64(-1)
        if other >= 0:
            following = q.lanes[other, LN_NEXT]
            q.lanes[other, LN_NEXT] = -1
        root = _meld(q, lane, other)
        q.lanes[root, LN_NEXT] = pairs
        pairs = root
        lane = following
    root = np.int64(-1)
    while pairs >= 0:
        following = q.lanes[pairs, LN_NEXT]
        q.lanes[pairs, LN_NEXT] = -1
        q.lanes[pairs, LN_PREVIOUS] = -1
        root = _meld(q, root, pairs)
        pairs = following
    return root


@njit(**HOT)
def _block_lane(q, lane, pool):
    """Let a lane wait for credits of a pool; a pool's waiting lanes are a pairing heap."""
    q.lanes[lane, LN_POOL] = pool
    q.lanes[lane, LN_NEXT] = -1
    q.lanes[lane, LN_PREVIOUS] = -1
    q.lanes[lane, LN_CHILD] = -1
    q.pools[pool, PL_WAITING] = _meld(q, q.pools[pool, PL_WAITING], lane)


@njit(**HOT)
def _unblock_lane(q, lane):
    """Let a lane no longer wait for credits. Its own place in the order may have changed."""
    pool = q.lanes[lane, LN_POOL]
    q.lanes[lane, LN_POOL] = -1
    root = q.pools[pool, PL_WAITING]
    below = _meld_siblings(q, q.lanes[lane, LN_CHILD])
    if root == lane:
        q.pools[pool, PL_WAITING] = below
        return
    following = q.lanes[lane, LN_NEXT]
    previous = q.lanes[lane, LN_PREVIOUS]
    if q.lanes[previous, LN_CHILD] == lane:
        q.lanes[previous, LN_CHILD] = following
    else:
        q.lanes[previous, LN_NEXT] = following
    if following >= 0:
        q.lanes[following, LN_PREVIOUS] = previous
    q.pools[pool, PL_WAITING] = _meld(q, root, below)


@njit(**INLINED)
def _prefetch_keys(lookups, task):
    """Ask for the keys that a task touches."""
    low = lookups.indptr[task]
    for entry in range(low, min(lookups.indptr[task + 1], low + 4)):
        _prefetch(lookups.keys, np.int64(lookups.touches[entry, TO_KEY]) * KEY_COLUMNS)


@njit(**INLINED)
def _note_head(p, lane, task):
    """Keep what orders a lane in the lane itself, and what its head takes."""
    lanes = p.queues.lanes
    lanes[lane, LN_READY] = p.flights.words[task * WORDS + VISIBLE]
    lanes[lane, LN_TASK] = task
    lanes[lane, LN_NEEDS] = -1
    flight = p.flights.halves[task * HALVES + FLIGHT]
    if flight <= FIRST_WAY:
        lanes[lane, LN_NEEDS] = p.queues.ways[FIRST_WAY - flight, WY_NEEDS]
        if p.queues.ways[FIRST_WAY - flight, WY_GIVES] & LOOKS_UP:
            _prefetch_keys(p.lookups, task)


@njit(**INLINED)
def _order_lane(p, lane):
    """Sort what became ready now in a lane, and put the lane where it belongs."""
    q = p.queues
    head = p.queues.lanes[lane, LN_HEAD]
    p.queues.lanes[lane, LN_TOUCHED] = 0
    before = p.queues.lanes[lane, LN_TASK]
    _sort_ids(
        p.flights.slots,
        max(head, p.queues.lanes[lane, LN_RUN]),
        p.queues.lanes[lane, LN_TAIL],
    )
    first = np.int64(p.flights.slots[head])
    _note_head(p, lane, first)
    station = p.queues.lanes[lane, LN_STATION]
    pool = p.queues.lanes[lane, LN_POOL]
    if pool >= 0 and first != before:
        # A later round of this instant brought a smaller id, which may want something else.
        _unblock_lane(q, lane)
        pool = np.int64(-1)
    place = p.queues.lanes[lane, LN_PLACE]
    if place >= 0:
        if p.queues.stations[station, ST_RULE] != TURNS:
            _lift_lane(q, p.queues.stations[station, ST_BASE], place, lane)
    elif pool < 0:
        _enter_lane(q, lane)
    _touch_station(p.queues.stations, p.touched_stations, station)


@njit(**INLINED)
def _unlink(lookups, table, key):
    """Take a key out of its table's list."""
    older = lookups.keys[key, KY_OLDER]
    newer = lookups.keys[key, KY_NEWER]
    if older >= 0:
        lookups.keys[older, KY_NEWER] = newer
    else:
        lookups.tables[table, TB_OLDEST] = newer
    if newer >= 0:
        lookups.keys[newer, KY_OLDER] = older
    else:
        lookups.tables[table, TB_NEWEST] = older


@njit(**INLINED)
def _link_newest(lookups, table, key, now):
    """Put a key at the end of its table's list."""
    older = lookups.tables[table, TB_NEWEST]
    lookups.keys[key, KY_OLDER] = older
    lookups.keys[key, KY_NEWER] = -1
    lookups.keys[key, KY_TIME] = now
    lookups.tables[table, TB_NEWEST] = key
    if older >= 0:
        lookups.keys[older, KY_NEWER] = key
    else:
        lookups.tables[table, TB_OLDEST] = key


@njit(**INLINED)
def _lengthen(f, task, time):
    """Add to the service of a task that has not started."""
    service = f.words[task * WORDS + DURATION] + time
    if service > LONGEST:
        service = LONGEST
        f.status[0] = TOO_LATE
    f.words[task * WORDS + DURATION] = service


@njit(**INLINED)
def _make_room(p, table, task, entry, cost, now):
    """Let the first key of a full table go, at the cost of who pays for it."""
    lookups = p.lookups
    oldest = lookups.tables[table, TB_OLDEST]
    wait = lookups.keys[oldest, KY_TIME] + lookups.tables[table, TB_PATIENCE] - now
    if wait > 0:
        _lengthen(p.flights, task, wait)
    if cost > 0:
        charged = np.int64(lookups.touches[entry, TO_CHARGED])
        if charged != task and p.flights.halves[charged * HALVES + MISSING] == STARTED:
            if p.flights.status[0] == OK:
                p.flights.status[0] = LATE_CHARGE
                p.flights.status[1] = task
                p.flights.status[2] = charged
        else:
            _lengthen(p.flights, charged, cost)
    _unlink(lookups, table, oldest)
    lookups.keys[oldest, KY_STATE] = EVICTED


@njit(**HOT)
def _look_up(p, task, now):
    """Make the touches of a task that starts; returns what they add to its latency."""
    lookups = p.lookups
    late = np.int64(0)
    for entry in range(lookups.indptr[task], lookups.indptr[task + 1]):
        key = np.int64(lookups.touches[entry, TO_KEY])
        form = np.int64(lookups.touches[entry, TO_FORM])
        table = lookups.forms[form, FO_TABLE]
        drops = lookups.forms[form, FO_DROPS] != 0
        costs = lookups.forms[form, FO_COSTS]
        outcome = HIT
        if lookups.keys[key, KY_STATE] == PRESENT:
            if drops:
                _unlink(lookups, table, key)
                lookups.tables[table, TB_FREE] += 1
            elif lookups.tables[table, TB_POLICY] == LRU:
                _unlink(lookups, table, key)
                _link_newest(lookups, table, key, now)
        else:
            outcome = NEW
            if lookups.keys[key, KY_STATE] == EVICTED:
                outcome = MISSED
                _lengthen(p.flights, task, lookups.costs[costs, CO_MISS_DURATION])
                late = min(late + lookups.costs[costs, CO_MISS_LATENCY], np.int64(LONGEST))
            if not drops:
                if lookups.tables[table, TB_FREE] == 0:
                    outcome += AND_EVICTED
                    cost = lookups.costs[costs, CO_EVICT_DURATION]
                    _make_room(p, table, task, entry, cost, now)
                else:
                    lookups.tables[table, TB_FREE] -= 1
                _link_newest(lookups, table, key, now)
                lookups.keys[key, KY_STATE] = PRESENT
        if drops:
            lookups.keys[key, KY_STATE] = UNKNOWN
        lookups.touched[lookups.touches[entry, TO_ROW]] = outcome
    return late


@njit(**INLINED)
def _start_first(p, shift, num_flights, station, now):
    """Start the head of the station's first lane."""
    q = p.queues
    base = p.queues.stations[station, ST_BASE]
    lane = p.queues.station_lanes[base]
    head = p.queues.lanes[lane, LN_HEAD]
    task = np.int64(p.flights.slots[head])
    p.queues.lanes[lane, LN_HEAD] = head + 1
    is_empty = head + 1 == p.queues.lanes[lane, LN_TAIL]
    if not is_empty:
        _note_head(p, lane, np.int64(p.flights.slots[head + 1]))
        if head + 2 < p.queues.lanes[lane, LN_TAIL]:
            _prefetch(p.flights.halves, np.int64(p.flights.slots[head + 2]) * HALVES)
    if p.queues.stations[station, ST_RULE] == TURNS:
        p.queues.stations[station, ST_SERVED] += 1
        p.queues.lanes[lane, LN_SERVED] = p.queues.stations[station, ST_SERVED]
        if is_empty:
            _remove_first_lane(q, station)
    elif is_empty:
        _remove_first_lane(q, station)
    elif p.queues.stations[station, ST_SIZE] > 1:
        _sink_lane(q, base, p.queues.stations[station, ST_SIZE], np.int64(0), lane)
    flight = np.int64(p.flights.halves[task * HALVES + FLIGHT])
    channel = flight
    late = np.int64(0)
    if flight <= FIRST_WAY:
        channel = p.queues.ways[FIRST_WAY - flight, WY_CHANNEL]
        if p.queues.ways[FIRST_WAY - flight, WY_GIVES] & LOOKS_UP:
            late = _look_up(p, task, now)
            if late > 0:
                # It would come out of order among those that left before it.
                p.lookups.extra_latency[task] = late
                p.flights.halves[task * HALVES + LANE] = LATE_LANE - station
    end = now + p.flights.words[task * WORDS + DURATION]
    visible = end + _latency_of(p.flights, task, channel) + late
    p.flights.words[task * WORDS + VISIBLE] = visible
    p.flights.halves[task * HALVES + MISSING] = STARTED
    p.queues.stations[station, ST_FREE] -= 1
    _prefetch_edges(p.flights, task)
    _send(p.flights, shift, num_flights + station, task, end)


@njit(**INLINED)
def _lacking_pool(q, lane):
    """First pool that has too few units for the head of a lane, or -1."""
    node = q.lanes[lane, LN_NEEDS]
    while node >= 0:
        if q.pools[q.nodes[node, ND_POOL], PL_FREE] < q.nodes[node, ND_UNITS]:
            return q.nodes[node, ND_POOL]
        node = q.nodes[node, ND_NEXT]
    return np.int64(-1)


@njit(**INLINED)
def _rival_lane(q, rival):
    """Lane whose head a rival wants to start: a station's first, or the first that waits."""
    num_stations = q.stations.shape[0]
    if rival < num_stations:
        return q.station_lanes[q.stations[rival, ST_BASE]]
    return q.pools[rival - num_stations, PL_WAITING]


@njit(**HOT)
def _place_rival(q, count, place, rival):
    """Put a rival at ``place`` of the heap of ``count``, then up or down to where it belongs."""
    lane = _rival_lane(q, rival)
    while place > 0:
        other = q.rivals[(place - 1) >> 1, RV_HEAP]
        if not _is_before(q, lane, _rival_lane(q, other)):
            break
        q.rivals[place, RV_HEAP] = other
        q.rivals[other, RV_PLACE] = place
        place = (place - 1) >> 1
    while True:
        child = 2 * place + 1
        if child >= count:
            break
        other = q.rivals[child, RV_HEAP]
        if child + 1 < count:
            second = q.rivals[child + 1, RV_HEAP]
            if _is_before(q, _rival_lane(q, second), _rival_lane(q, other)):
                child += 1
                other = second
        if not _is_before(q, _rival_lane(q, other), lane):
            break
        q.rivals[place, RV_HEAP] = other
        q.rivals[other, RV_PLACE] = place
        place = child
    q.rivals[place, RV_HEAP] = rival
    q.rivals[rival, RV_PLACE] = place


@njit(**HOT)
def _update_rival(q, count, rival, is_in):
    """Let a rival enter, leave or change its place; returns how many there are then."""
    place = q.rivals[rival, RV_PLACE]
    if is_in != 0:
        if place < 0:
            place = count
            count += 1
        _place_rival(q, count, place, rival)
    elif place >= 0:
        count -= 1
        q.rivals[rival, RV_PLACE] = -1
        last = q.rivals[count, RV_HEAP]
        if last != rival:
            _place_rival(q, count, place, last)
    return count


@njit(**HOT)
def _block_first_lane(p, station, pool, count, num_deferred):
    """Let a station's first lane wait at a pool. Returns the numbers of rivals and deferred."""
    q = p.queues
    lane = p.queues.station_lanes[p.queues.stations[station, ST_BASE]]
    if p.queues.stations[station, ST_RULE] == VOQ:
        _remove_first_lane(q, station)
    rival = p.queues.stations.shape[0] + pool
    if p.queues.rivals[rival, RV_PLACE] >= 0 and p.queues.pools[pool, PL_FREE] > 0:
        # The pool still offers what it got back, too little for this lane: do not offer it again.
        p.queues.lanes[lane, LN_POOL] = pool
        p.deferred[num_deferred] = lane
        return count, num_deferred + 1
    count = _update_rival(q, count, rival, np.int64(0))
    _block_lane(q, lane, pool)
    return count, num_deferred


@njit(**INLINED)
def _is_turn_before(lanes, lane, other):
    """Whether a lane is served before another of a station that serves in turns."""
    for column in (LN_PRIORITY, LN_SERVED, LN_READY):
        if lanes[lane, column] != lanes[other, column]:
            return lanes[lane, column] < lanes[other, column]
    return lanes[lane, LN_TASK] < lanes[other, LN_TASK]


@njit(**HOT)
def _choose_turn(p, station):
    """Put the lane whose turn it is first in its station's list; 0 if none has its credits."""
    q = p.queues
    base = q.stations[station, ST_BASE]
    best = np.int64(-1)
    for place in range(q.stations[station, ST_SIZE]):
        lane = q.station_lanes[base + place]
        if best >= 0 and not _is_turn_before(q.lanes, lane, best):
            continue
        if _lacking_pool(q, lane) < 0:
            best = lane
    if best < 0:
        return np.int64(0)
    first = q.station_lanes[base]
    place = q.lanes[best, LN_PLACE]
    q.station_lanes[base + place] = first
    q.lanes[first, LN_PLACE] = place
    q.station_lanes[base] = best
    q.lanes[best, LN_PLACE] = 0
    return np.int64(1)


@njit(**HOT)
def _recheck_turns(p, node, count):
    """Let stations that serve in turns choose again if a start took their lane's credits.

    ``node`` is the list of what it took. Their next candidate may come before all others, so this
    cannot wait. Returns the number of rivals.
    """
    q = p.queues
    while node >= 0:
        pool = q.nodes[node, ND_POOL]
        node = q.nodes[node, ND_NEXT]
        for index in range(p.turn_indptr[pool], p.turn_indptr[pool + 1]):
            station = p.turn_stations[index]
            if q.rivals[station, RV_PLACE] < 0:
                continue
            if _lacking_pool(q, q.station_lanes[q.stations[station, ST_BASE]]) >= 0:
                count = _update_rival(q, count, station, _choose_turn(p, station))
    return count


@njit(**INLINED)
def _serve_stations(p, shift, num_flights, now):
    """Start what can start at the touched stations and behind the touched pools.

    Where the order of starts matters, rivals are served in the order of their tasks: stations with
    a free server, and pools that got units back, on behalf of the first lane that waits for them.
    """
    q = p.queues
    num_stations = p.queues.stations.shape[0]
    count = np.int64(0)
    num_deferred = np.int64(0)
    for index in range(1, 1 + p.touched_stations[0]):
        station = p.touched_stations[index]
        p.queues.stations[station, ST_TOUCHED] = 0
        if p.queues.stations[station, ST_CONTENDS] == 0:
            while (
                p.queues.stations[station, ST_FREE] > 0 and p.queues.stations[station, ST_SIZE] > 0
            ):
                _start_first(p, shift, num_flights, station, now)
        elif p.queues.stations[station, ST_FREE] > 0 and p.queues.stations[station, ST_SIZE] > 0:
            is_in = np.int64(1)
            if p.queues.stations[station, ST_RULE] == TURNS:
                is_in = _choose_turn(p, station)
            count = _update_rival(q, count, station, is_in)
    p.touched_stations[0] = 0
    for index in range(1, 1 + p.touched_pools[0]):
        pool = p.touched_pools[index]
        p.queues.pools[pool, PL_TOUCHED] = 0
        if p.queues.pools[pool, PL_WAITING] >= 0:
            count = _update_rival(q, count, num_stations + pool, np.int64(1))
    p.touched_pools[0] = 0
    while count > 0:
        rival = p.queues.rivals[0, RV_HEAP]
        lane = _rival_lane(q, rival)
        station = p.queues.lanes[lane, LN_STATION]
        if rival >= num_stations:
            pool = rival - num_stations
            if p.queues.pools[pool, PL_FREE] == 0:
                count = _update_rival(q, count, rival, np.int64(0))
                continue
            _unblock_lane(q, lane)
            count = _update_rival(q, count, rival, np.int64(p.queues.pools[pool, PL_WAITING] >= 0))
            if p.queues.lanes[lane, LN_PLACE] < 0:
                _enter_lane(q, lane)
            if p.queues.station_lanes[p.queues.stations[station, ST_BASE]] != lane:
                continue  # overtaken: it is looked at again when it is first
        taken = np.int64(-1)
        if p.queues.stations[station, ST_FREE] > 0 and p.queues.lanes[lane, LN_POOL] < 0:
            pool = _lacking_pool(q, lane)
            if pool < 0:
                taken = q.lanes[lane, LN_NEEDS]
                node = taken
                while node >= 0:
                    q.pools[q.nodes[node, ND_POOL], PL_FREE] -= q.nodes[node, ND_UNITS]
                    node = q.nodes[node, ND_NEXT]
                _start_first(p, shift, num_flights, station, now)
            else:
                count, num_deferred = _block_first_lane(p, station, pool, count, num_deferred)
        is_in = p.queues.stations[station, ST_FREE] > 0 and p.queues.stations[station, ST_SIZE] > 0
        if is_in and p.queues.stations[station, ST_RULE] == TURNS:
            is_in = _choose_turn(p, station) == 1
        elif is_in:
            first = p.queues.station_lanes[p.queues.stations[station, ST_BASE]]
            is_in = p.queues.lanes[first, LN_POOL] < 0  # else a FIFO whose head waits
        count = _update_rival(q, count, station, np.int64(is_in))
        if taken >= 0 and p.turn_indptr.size > 1:
            count = _recheck_turns(p, taken, count)
    for index in range(num_deferred):
        lane = p.deferred[index]
        _block_lane(q, lane, p.queues.lanes[lane, LN_POOL])


# --- The loop -----------------------------------------------------------------------------------


@njit(**HOT)
def run(p, shift, num_streams, num_flights, has_instant):
    """Replay the graph; returns how many tasks became visible."""
    num_tasks = p.flights.words.size // WORDS - 1
    num_members = p.members.shape[0]
    mask = (1 << shift) - 1
    now = np.int64(0)
    done = np.int64(0)
    num_stack = np.int64(0)
    num_touched = np.int64(0)
    num_arrivals = np.int64(0)
    num_late = np.int64(0)
    is_final = not has_instant
    for first in range(num_tasks):
        if p.flights.halves[first * HALVES + MISSING] == 0:
            num_stack, num_touched = _make_ready(
                p, shift, num_streams, first, now, num_stack, num_touched
            )
    while p.flights.status[0] == OK:
        # Phase 1: everything that leaves or becomes visible now.
        while True:
            if num_stack > 0:
                num_stack -= 1
                task = np.int64(p.stack[num_stack])
            else:
                key = p.flights.tree[1]
                if key >> shift != now:
                    if num_arrivals > 0:
                        num_stack, num_touched = _admit_arrivals(
                            p,
                            shift,
                            num_streams,
                            num_arrivals,
                            now,
                            num_stack,
                            num_touched,
                        )
                        num_arrivals = np.int64(0)
                        continue
                    break
                channel = key & mask
                task = _receive(p.flights, shift, channel)
                if channel >= num_flights:
                    station = channel - num_flights
                    if p.flights.halves[task * HALVES + LANE] != GIVING_LANE:
                        p.queues.stations[station, ST_FREE] += 1
                        _touch_station(p.queues.stations, p.touched_stations, station)
                    num_stack = _leave(p, shift, task, num_stack)
                    continue
            done += 1
            row = task * HALVES + EDGES
            for edge in range(p.flights.halves[row], p.flights.halves[row + HALVES]):
                target = np.int64(p.flights.successors[edge])
                if target < 0:
                    event = -1 - target
                    if event < num_members:
                        p.arrivals[num_arrivals] = event
                        num_arrivals += 1
                    else:
                        num_stack, num_touched = _close_tile(
                            p,
                            shift,
                            num_streams,
                            event - num_members,
                            now,
                            num_stack,
                            num_touched,
                        )
                    continue
                missing = p.flights.halves[target * HALVES + MISSING] - 1
                p.flights.halves[target * HALVES + MISSING] = missing
                if missing == 0:
                    num_stack, num_touched = _make_ready(
                        p, shift, num_streams, target, now, num_stack, num_touched
                    )
        # Phase 2: start what can start now.
        for index in range(num_touched):
            lane = np.int64(p.touched[index])
            if lane >= num_streams:
                _order_lane(p, lane)
                continue
            low = p.queues.lanes[lane, LN_RUN]
            high = p.queues.lanes[lane, LN_TAIL]
            if high - low > 1:
                _sort_ids(p.flights.slots, low, high)
            if not is_final:
                # A task that is visible the moment it starts opens a further round of this
                # instant, which may bring tasks that go before those still queued here: fix only
                # what starts now.
                stop = low + 1 if p.queues.lanes[lane, LN_FREE_AT] <= now else low
                if stop < high:
                    p.late[num_late] = lane
                    num_late += 1
                high = stop
            if low < high:
                _commit(p, shift, lane, low, high, now)
        num_touched = np.int64(0)
        if p.touched_stations[0] > 0 or p.touched_pools[0] > 0:
            _serve_stations(p, shift, num_flights, now)
        is_final = not has_instant
        if p.flights.tree[1] >> shift == now:
            continue
        if num_late > 0:
            # No further round: once more for what was left open.
            for index in range(num_late):
                p.touched[index] = p.late[index]
            num_touched = num_late
            num_late = np.int64(0)
            is_final = True
            continue
        if p.flights.tree[1] == NEVER:
            break
        now = p.flights.tree[1] >> shift
    return done


# --- Reading a schedule -------------------------------------------------------------------------


@njit(**CACHED)
def longest_chain(
    order,
    duration,
    latency,
    indptr,
    successors,
    member_indptr,
    member_task,
    member_waiter,
    tile_indptr,
    tile_slots,
    tile_first,
    tile_last,
):
    """Longest chain of durations and latencies; see ``bounds.longest_chain_ps``.

    ``order`` is that of :func:`order_tasks`, or empty if the ids are one.
    """
    num_tasks = indptr.size - 1
    ready = np.zeros(num_tasks, np.int64)
    longest = np.int64(0)
    for place in range(max(num_tasks, order.size)):
        node = np.int64(order[place]) if order.size > 0 else place
        if node < num_tasks:
            visible = ready[node] + _at(duration, node) + _at(latency, node)
            longest = max(longest, visible)
            for edge in range(indptr[node], indptr[node + 1]):
                target = successors[edge]
                if target >= 0:
                    ready[target] = max(ready[target], visible)
            ready[node] = visible  # from here on: when it is visible
            continue
        gate = (node - num_tasks) // 2
        if (node - num_tasks) % 2 == 0:
            low = member_indptr[gate]
            arrivals = np.empty(member_indptr[gate + 1] - low, np.int64)
            for member in range(arrivals.size):
                arrivals[member] = ready[member_task[low + member]]
            _sort_ids(arrivals, np.int64(0), arrivals.size)
            filled = 0
            for tile in range(tile_indptr[gate], tile_indptr[gate + 1]):
                filled += tile_slots[tile]
                if tile_slots[tile] > 0:
                    first = tile_first[tile]
                    ready[first] = max(ready[first], arrivals[filled - 1])
        else:
            soonest = np.int64(NEVER)
            for tile in range(tile_indptr[gate], tile_indptr[gate + 1]):
                if tile_slots[tile] > 0:
                    soonest = min(soonest, ready[tile_last[tile]])
            for member in range(member_indptr[gate], member_indptr[gate + 1]):
                waiter = member_waiter[member]
                if waiter >= 0:
                    ready[waiter] = max(ready[waiter], soonest)
    return longest


@njit(**CACHED)
def last_met(
    visible,
    indptr,
    successors,
    member_task,
    member_waiter,
    landed_tile,
    tile_first,
    tile_last,
):
    """When each task became ready, and the predecessor that was visible last (-1 for none)."""
    num_tasks = visible.size
    ready = np.zeros(num_tasks, np.int64)
    cause = np.full(num_tasks, -1, np.int32)
    for task in range(num_tasks):
        for edge in range(indptr[task], indptr[task + 1]):
            target = successors[edge]
            if target >= 0 and (cause[target] < 0 or visible[task] > ready[target]):
                ready[target] = visible[task]
                cause[target] = task
    for member in range(member_task.size):
        tile = landed_tile[member]
        task = member_task[member]
        target = tile_first[tile]
        if cause[target] < 0 or visible[task] > ready[target]:
            ready[target] = visible[task]
            cause[target] = task
        # A waiter waits for the end of the tile, which may be long over when the member arrives.
        target = member_waiter[member]
        if target >= 0:
            task = tile_last[tile] if visible[tile_last[tile]] >= visible[task] else task
            if cause[target] < 0 or visible[task] > ready[target]:
                ready[target] = visible[task]
                cause[target] = task
    return ready, cause


@njit(**CACHED)
def walk_back(last, cause):
    """Tasks of the chain that ends with ``last``, first one first."""
    length = 0
    task = last
    while task >= 0:
        length += 1
        task = cause[task]
    chain = np.empty(length, np.int64)
    task = last
    while task >= 0:
        length -= 1
        chain[length] = task
        task = cause[task]
    return chain
