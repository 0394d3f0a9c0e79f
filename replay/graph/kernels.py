# mypy: allow-untyped-defs, allow-untyped-calls
# Numba infers the types; annotations would promise what it does not check.
"""All numba code of this package, in one file.

Numba's cache notices edits in the file a kernel lives in and not in others, so kernels that call
each other share a file. With ``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np
from numba import njit


@njit(cache=True)
def count_edges(src, dst, indptr, num_predecessors):
    """Count successors into ``indptr[2:]`` and predecessors; look for dangling and backward edges.

    ``indptr`` has two rows more than there are tasks and is zero; a negative ``dst`` is a gate
    event and counts as a successor only.

    Returns
    -------
    Row of a dangling edge or -1, number of edges between tasks, and whether all of them go from
    a smaller to a larger id.
    """
    num_tasks = num_predecessors.size
    num_edges = 0
    is_forward = True
    for edge in range(src.size):
        u = src[edge]
        v = dst[edge]
        if u >= num_tasks or v >= num_tasks:
            return edge, num_edges, False
        indptr[u + 2] += 1
        if v >= 0:
            num_predecessors[v] += 1
            num_edges += 1
            if v <= u:
                is_forward = False
    for task in range(2, num_tasks + 2):
        indptr[task] += indptr[task - 1]
    return -1, num_edges, is_forward


@njit(cache=True)
def place_edges(src, dst, indptr, successors):
    """Scatter the targets to their source's row, in the order given; ``indptr`` is the cursor."""
    for edge in range(src.size):
        row = src[edge] + 1
        successors[indptr[row]] = dst[edge]
        indptr[row] += 1


@njit(cache=True)
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
#: ``FLIGHT`` of tasks that are visible the moment they leave.
NO_FLIGHT = -1

#: Kinds of channel: in order of time by construction, or kept in order by a heap.
IN_ORDER, BY_HEAP = 0, 1
#: Distinct latencies of one resource that get a channel each; the rest share a heap.
MAX_CLASSES = 8

#: Rows of the survey of resources.
TASKS, FIRST_PRIORITY, IS_MIXED, TAKERS, GIVERS, ZERO, INSTANT = 0, 1, 2, 3, 4, 5, 6
#: What separates the lanes of a resource: nothing, the priority, or also what its tasks take.
ONE_LANE, BY_PRIORITY, BY_NEEDS = 0, 1, 2
#: Columns of the table of flight classes.
LATENCY, NEXT, COUNT, KIND, PLACE = 0, 1, 2, 3, 4

NEVER = 2**63 - 1
OK, TOO_LATE, EARLY_RELEASE = 0, 1, 2

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
        "need_indptr",
        "need_pool",
        "need_units",
        "give_indptr",
    ],
)

Plan = namedtuple(
    "Plan",
    [
        # tasks
        "words",
        "halves",
        "successors",
        "latency",
        "slots",
        # channels: what becomes visible or leaves, by time
        "tree",
        "channel_head",
        "channel_tail",
        "channel_kind",
        "channel_latency",
        "heap_base",
        "heap_size",
        "heap_time",
        "heap_task",
        # lanes: queues in order of (ready time, id)
        "lane_station",
        "lane_priority",
        "lane_head",
        "lane_tail",
        "lane_run",
        "lane_run_time",
        "lane_free_at",
        "lane_is_touched",
        "lane_place",
        "lane_pool",
        "lane_next",
        "lane_previous",
        # stations: resources whose tasks need events of their own
        "station_free",
        "station_is_voq",
        "station_takes",
        "station_base",
        "station_size",
        "station_lanes",
        "station_is_touched",
        # credits
        "need_indptr",
        "need_pool",
        "need_units",
        "give_indptr",
        "give_pool",
        "give_units",
        "give_taker",
        "pool_free",
        "pool_waiting",
        "pool_is_touched",
        # gates
        "member_gate",
        "member_waiter",
        "member_slot",
        "gate_slot",
        "slot_tile",
        "slot_waiter",
        "tile_indptr",
        "tile_open",
        "tile_first",
        "tile_is_done",
        # work lists
        "stack",
        "touched",
        "stations",
        "pools",
        "late",
        "arrivals",
        "status",
    ],
)


# --- Preparing a run ----------------------------------------------------------------------------


@njit(cache=True)
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


@njit(cache=True)
def merge_needs(indptr, pool, units):
    """Add up what a task takes from one pool; moves the rows together, in place.

    Returns
    -------
    Number of rows left.
    """
    kept = 0
    low = 0
    for task in range(indptr.size - 1):
        first = kept
        high = indptr[task + 1]
        for row in range(low, high):
            is_new = True
            for earlier in range(first, kept):
                if pool[earlier] == pool[row]:
                    units[earlier] += units[row]
                    is_new = False
                    break
            if is_new:
                pool[kept] = pool[row]
                units[kept] = units[row]
                kept += 1
        low = high
        indptr[task + 1] = kept
    return kept


@njit(cache=True, forceinline=True)
def _at(column, row):
    """Value of a column given as (array, step); step 0 means one value for every row."""
    return column[0][row * column[1]]


@njit(cache=True)
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
    has_credits = c.need_indptr.size > 1
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
            takes = c.need_indptr[task + 1] > c.need_indptr[task]
            if takes:
                table[TAKERS, where] += 1
            elif c.give_indptr[task + 1] > c.give_indptr[task]:
                table[GIVERS, where] += 1
        if time == 0 and (where != null or takes):
            table[ZERO, where] += 1
            if _at(c.latency, task) == 0:
                table[INSTANT, where] += 1
    return -1


@njit(cache=True)
def _hashed(a, b, c):
    """Hash of three whole numbers; 31 bits a factor, so that nothing overflows as plain Python."""
    low = 0x7FFFFFFF
    h = ((a ^ (a >> 31)) & low) * 0x5BD1E995
    h = ((h ^ (h >> 31) ^ b ^ (b >> 31)) & low) * 0x2C1B3C6D
    h = ((h ^ (h >> 31) ^ c ^ (c >> 31)) & low) * 0x297A2D39
    return h ^ (h >> 31)


@njit(cache=True)
def _intern(table, keys, size, a, b, c):
    """Number of the triple (a, b, c), which is ``size`` if it is new.

    ``table`` is an open-addressing table of numbers (-1 free); ``keys`` (number, 3) the triples.
    """
    mask = np.int64(table.size - 1)
    place = _hashed(a, b, c) & mask
    while table[place] >= 0:
        found = table[place]
        if keys[found, 0] == a and keys[found, 1] == b and keys[found, 2] == c:
            return np.int64(found)
        place = (place + 1) & mask
    keys[size, 0] = a
    keys[size, 1] = b
    keys[size, 2] = c
    table[place] = size
    return np.int64(size)


@njit(cache=True)
def _enlarge(keys):
    """Double the room of a table of triples; returns the new table and triples."""
    size = keys.shape[0]
    larger = np.empty((2 * size, 3), np.int64)
    larger[:size] = keys
    table = np.full(4 * size, -1, np.int32)
    mask = np.int64(table.size - 1)
    for number in range(size):
        place = _hashed(keys[number, 0], keys[number, 1], keys[number, 2]) & mask
        while table[place] >= 0:
            place = (place + 1) & mask
        table[place] = number
    return table, larger


@njit(cache=True, forceinline=True)
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
    new = sizes[0]
    sizes[0] += 1
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


@njit(cache=True)
def pack(c, lane_rule, single_lane, num_single, is_stream, classes, first_class, words, halves):
    """Write the record of every task, with the lane it queues in and the channel it flies on.

    Parameters
    ----------
    c
        Columns of the graph.
    lane_rule, single_lane
        Per resource: what separates its lanes, and its lane if nothing does.
    num_single
        Number of those lanes.
    is_stream
        Per resource: one server, one lane, no credits.
    classes, first_class
        Filled with the flight classes; see :func:`_class_of`.
    words, halves
        The records, as two views of the same memory.

    Returns
    -------
    (resource, priority, needs) of the lanes beyond the single ones (lane, 3), tasks per lane
    (lane,), number of flight classes, and number of tasks that are visible when they leave.
    """
    num_tasks = halves.size // HALVES - 1
    null = is_stream.size - 1
    has_credits = c.need_indptr.size > 1
    counts = np.zeros(num_single + 64, np.int64)
    keys = np.zeros((64, 3), np.int64)
    table = np.full(128, -1, np.int32)
    need_keys = np.zeros((64, 3), np.int64)
    need_table = np.full(128, -1, np.int32)
    num_keys = 0
    num_needs = 0
    num_direct = 0
    sizes = np.zeros(1, np.int64)
    for task in range(num_tasks):
        where = np.int64(_at(c.resource, task))
        duration = _at(c.duration, task)
        latency = _at(c.latency, task)
        takes = has_credits and c.need_indptr[task + 1] > c.need_indptr[task]
        lane = np.int64(NO_LANE)
        if where < 0 and not takes:
            where = null
            if has_credits and c.give_indptr[task + 1] > c.give_indptr[task]:
                lane = np.int64(GIVING_LANE)
                flight = (
                    _class_of(classes, first_class, sizes, null + 1, latency) if latency else -1
                )
            else:
                # A delay: only the sum matters to whoever waits for it.
                duration += latency
                flight = _class_of(classes, first_class, sizes, null, duration) if duration else -1
        else:
            if where < 0:
                where = null
            if lane_rule[where] == ONE_LANE:
                lane = np.int64(single_lane[where])
            else:
                needs = np.int64(-1)
                if lane_rule[where] == BY_NEEDS and takes:
                    for entry in range(c.need_indptr[task], c.need_indptr[task + 1]):
                        needs = _intern(
                            need_table,
                            need_keys,
                            num_needs,
                            needs,
                            np.int64(c.need_pool[entry]),
                            c.need_units[entry],
                        )
                        if needs == num_needs:
                            num_needs += 1
                            if num_needs == need_keys.shape[0]:
                                need_table, need_keys = _enlarge(need_keys)
                number = _intern(
                    table, keys, num_keys, where, np.int64(_at(c.priority, task)), needs
                )
                if number == num_keys:
                    num_keys += 1
                    if num_keys == keys.shape[0]:
                        table, keys = _enlarge(keys)
                        more = np.zeros(num_single + keys.shape[0], np.int64)
                        more[: counts.size] = counts
                        counts = more
                lane = num_single + number
            counts[lane] += 1
            if is_stream[where] == 1 or latency > 0:
                place = null + 1 if where == null else where
                flight = _class_of(classes, first_class, sizes, place, latency)
            else:
                flight = -1
        if flight < 0:
            num_direct += 1
        words[task * WORDS + DURATION] = duration
        words[task * WORDS + VISIBLE] = -1
        halves[task * HALVES + EDGES] = c.indptr[task]
        halves[task * HALVES + MISSING] = c.num_predecessors[task]
        halves[task * HALVES + LANE] = lane
        halves[task * HALVES + FLIGHT] = flight
    halves[num_tasks * HALVES + EDGES] = c.indptr[num_tasks]
    return keys[:num_keys], counts[: num_single + num_keys], sizes[0], num_direct


@njit(cache=True)
def unpack(c, words, start, end):
    """Read start and end of every task out of the records."""
    for task in range(start.size):
        finish = words[task * WORDS + VISIBLE] - _at(c.latency, task)
        end[task] = finish
        start[task] = finish - _at(c.duration, task)


# --- Channels: one key each in a tournament tree, whatever the number of tasks ------------------


@njit(cache=True, forceinline=True)
def _set_key(tree, node, key):
    """Write a leaf and the minima above it. A key is ``time << shift | channel``."""
    tree[node] = key
    while node > 1:
        key = min(key, tree[node ^ 1])
        node >>= 1
        tree[node] = key


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True, forceinline=True)
def _send(p, shift, channel, task, time):
    """Put a task on a channel, from which it comes back at ``time``."""
    if time > (NEVER >> shift):
        p.status[0] = TOO_LATE  # the key would not fit; the loop ends before it looks again
        return
    if p.channel_kind[channel] == IN_ORDER:
        tail = p.channel_tail[channel]
        p.slots[tail] = task
        p.channel_tail[channel] = tail + 1
        is_first = p.channel_head[channel] == tail
    else:
        base = p.heap_base[channel]
        _heap_push(p.heap_time, p.heap_task, base, p.heap_size[channel], time, task)
        p.heap_size[channel] += 1
        is_first = p.heap_time[base] == time
    if is_first:
        _set_key(p.tree, (p.tree.size >> 1) + channel, (time << shift) | channel)


@njit(cache=True, forceinline=True)
def _receive(p, shift, channel):
    """Take the first task off a channel."""
    key = NEVER
    if p.channel_kind[channel] == IN_ORDER:
        head = p.channel_head[channel]
        task = p.slots[head]
        head += 1
        p.channel_head[channel] = head
        if head < p.channel_tail[channel]:
            following = np.int64(p.slots[head])
            key = (p.words[following * WORDS + VISIBLE] << shift) | channel
    else:
        base = p.heap_base[channel]
        task = p.heap_task[base]
        _heap_pop(p.heap_time, p.heap_task, base, p.heap_size[channel])
        p.heap_size[channel] -= 1
        if p.heap_size[channel] > 0:
            key = (p.heap_time[base] << shift) | channel
    _set_key(p.tree, (p.tree.size >> 1) + channel, key)
    return np.int64(task)


# --- Phase 1: a task's last dependency is met ---------------------------------------------------


@njit(cache=True, forceinline=True)
def _make_ready(p, shift, num_streams, task, now, num_stack, num_touched):
    """Queue a task, or start it if it is a pure delay. Returns the sizes of two work lists."""
    row = task * HALVES
    lane = np.int64(p.halves[row + LANE])
    if lane >= 0:
        tail = p.lane_tail[lane]
        p.slots[tail] = task
        p.lane_tail[lane] = tail + 1
        if lane < num_streams:
            # What lies behind ``lane_run`` has no start yet; the first such task reports the lane.
            if tail == p.lane_run[lane]:
                p.touched[num_touched] = lane
                num_touched += 1
        else:
            p.words[task * WORDS + VISIBLE] = now
            if p.lane_run_time[lane] != now:
                p.lane_run_time[lane] = now
                p.lane_run[lane] = tail
            if p.lane_is_touched[lane] == 0:
                p.lane_is_touched[lane] = 1
                p.touched[num_touched] = lane
                num_touched += 1
    elif lane == NO_LANE:
        visible = now + p.words[task * WORDS + DURATION]
        p.words[task * WORDS + VISIBLE] = visible
        channel = p.halves[row + FLIGHT]
        if channel == NO_FLIGHT:
            p.stack[num_stack] = task
            num_stack += 1
        else:
            _send(p, shift, np.int64(channel), task, visible)
    else:
        num_stack = _start_giving_delay(p, shift, task, now, num_stack)
    return num_stack, num_touched


@njit(cache=True)
def _latency_of(p, task):
    """Latency of a task, from its channel if all tasks on that have the same."""
    channel = p.halves[task * HALVES + FLIGHT]
    if channel == NO_FLIGHT:
        return np.int64(0)
    if p.channel_kind[channel] == IN_ORDER:
        return p.channel_latency[channel]
    return p.latency[0][task * p.latency[1]]


@njit(cache=True)
def _start_giving_delay(p, shift, task, now, num_stack):
    """Start a pure delay that gives credits back: its leaving is an event of its own."""
    end = now + p.words[task * WORDS + DURATION]
    p.words[task * WORDS + VISIBLE] = end + _latency_of(p, task)
    p.halves[task * HALVES + MISSING] = STARTED
    if end > now:
        _send(p, shift, p.channel_kind.size - 1, task, end)  # the station of pure delays is last
        return num_stack
    return _leave(p, shift, task, num_stack)


@njit(cache=True)
def _leave(p, shift, task, num_stack):
    """Give the task's credits back and send it on its way to be visible."""
    if p.give_indptr.size > 1:
        for entry in range(p.give_indptr[task], p.give_indptr[task + 1]):
            taker = np.int64(p.give_taker[entry])
            if p.halves[taker * HALVES + MISSING] != STARTED:
                p.status[0] = EARLY_RELEASE
                p.status[1] = task
                p.status[2] = taker
                return num_stack
            pool = p.give_pool[entry]
            p.pool_free[pool] += p.give_units[entry]
            if p.pool_is_touched[pool] == 0 and p.pool_waiting[pool] >= 0:
                p.pool_is_touched[pool] = 1
                p.pools[1 + p.pools[0]] = pool
                p.pools[0] += 1
    channel = p.halves[task * HALVES + FLIGHT]
    if channel == NO_FLIGHT:
        p.stack[num_stack] = task
        return num_stack + 1
    _send(p, shift, np.int64(channel), task, p.words[task * WORDS + VISIBLE])
    return num_stack


@njit(cache=True)
def _meet(p, shift, num_streams, task, now, num_stack, num_touched):
    """Meet one dependency of a task."""
    p.halves[task * HALVES + MISSING] -= 1
    if p.halves[task * HALVES + MISSING] == 0:
        return _make_ready(p, shift, num_streams, task, now, num_stack, num_touched)
    return num_stack, num_touched


@njit(cache=True)
def _close_tile(p, shift, num_streams, tile, now, num_stack, num_touched):
    """Let go whoever waits for a member that landed in the tile."""
    p.tile_is_done[tile] = 1
    for slot in range(p.tile_indptr[tile], p.tile_indptr[tile + 1]):
        waiter = np.int64(p.slot_waiter[slot])
        if waiter >= 0:
            p.slot_waiter[slot] = -1
            num_stack, num_touched = _meet(
                p, shift, num_streams, waiter, now, num_stack, num_touched
            )
    return num_stack, num_touched


@njit(cache=True)
def _admit_arrivals(p, shift, num_streams, num_arrivals, now, num_stack, num_touched):
    """Give the collected arrivals their slots, by gate and task id."""
    _sort_ids(p.arrivals, 0, num_arrivals)
    for place in range(num_arrivals):
        member = p.arrivals[place]
        gate = p.member_gate[member]
        slot = p.gate_slot[gate]
        p.gate_slot[gate] = slot + 1
        p.member_slot[member] = slot
        tile = p.slot_tile[slot]
        waiter = np.int64(p.member_waiter[member])
        if waiter >= 0:
            if p.tile_is_done[tile] == 1:
                num_stack, num_touched = _meet(
                    p, shift, num_streams, waiter, now, num_stack, num_touched
                )
            else:
                p.slot_waiter[slot] = waiter
        p.tile_open[tile] -= 1
        if p.tile_open[tile] == 0:
            first = np.int64(p.tile_first[tile])
            num_stack, num_touched = _meet(
                p, shift, num_streams, first, now, num_stack, num_touched
            )
    return num_stack, num_touched


# --- Phase 2: starts ----------------------------------------------------------------------------


@njit(cache=True)
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
        _sift_id(ids, low, 0, last)


@njit(cache=True)
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


@njit(cache=True, forceinline=True)
def _commit(p, shift, lane, low, high, now):
    """Fix the starts of ``slots[low:high]`` of a stream: nothing can come before them any more."""
    free_at = max(p.lane_free_at[lane], now)
    for place in range(low, high):
        task = np.int64(p.slots[place])
        free_at += p.words[task * WORDS + DURATION]
        channel = np.int64(p.halves[task * HALVES + FLIGHT])
        visible = free_at + p.channel_latency[channel]
        if p.channel_kind[channel] != IN_ORDER:
            visible = free_at + p.latency[0][task * p.latency[1]]
        p.words[task * WORDS + VISIBLE] = visible
        _send(p, shift, channel, task, visible)
        if p.status[0] != OK:
            break
    p.lane_free_at[lane] = free_at
    p.lane_run[lane] = high


@njit(cache=True)
def _is_before(p, lane, other):
    """Whether the head of one lane is served before the head of another."""
    if p.lane_priority[lane] != p.lane_priority[other]:
        return p.lane_priority[lane] < p.lane_priority[other]
    task = np.int64(p.slots[p.lane_head[lane]])
    rival = np.int64(p.slots[p.lane_head[other]])
    ready = p.words[task * WORDS + VISIBLE]
    rival_ready = p.words[rival * WORDS + VISIBLE]
    if ready != rival_ready:
        return ready < rival_ready
    return task < rival


@njit(cache=True)
def _lift_lane(p, base, place, lane):
    """Move a lane up in its station's heap to where it belongs, from a free ``place``."""
    while place > 0:
        parent = (place - 1) >> 1
        other = p.station_lanes[base + parent]
        if not _is_before(p, lane, other):
            break
        p.station_lanes[base + place] = other
        p.lane_place[other] = place
        place = parent
    p.station_lanes[base + place] = lane
    p.lane_place[lane] = place


@njit(cache=True)
def _sink_lane(p, base, size, place, lane):
    """Move a lane down in its station's heap to where it belongs, from a free ``place``."""
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = p.station_lanes[base + child]
        if child + 1 < size and _is_before(p, p.station_lanes[base + child + 1], other):
            child += 1
            other = p.station_lanes[base + child]
        if not _is_before(p, other, lane):
            break
        p.station_lanes[base + place] = other
        p.lane_place[other] = place
        place = child
    p.station_lanes[base + place] = lane
    p.lane_place[lane] = place


@njit(cache=True)
def _enter_lane(p, lane):
    """Put a lane into its station's heap."""
    station = p.lane_station[lane]
    size = p.station_size[station]
    p.station_size[station] = size + 1
    _lift_lane(p, p.station_base[station], size, lane)


@njit(cache=True)
def _remove_first_lane(p, station):
    """Take the first lane out of its station's heap."""
    base = p.station_base[station]
    p.lane_place[p.station_lanes[base]] = -1
    size = p.station_size[station] - 1
    p.station_size[station] = size
    if size > 0:
        _sink_lane(p, base, size, 0, p.station_lanes[base + size])


@njit(cache=True)
def _touch_station(p, station):
    """Note that the station may have something to start."""
    if p.station_is_touched[station] == 0:
        p.station_is_touched[station] = 1
        p.stations[1 + p.stations[0]] = station
        p.stations[0] += 1


@njit(cache=True)
def _block_lane(p, lane, pool):
    """Let a lane wait for credits of a pool."""
    first = p.pool_waiting[pool]
    p.lane_pool[lane] = pool
    p.lane_next[lane] = first
    p.lane_previous[lane] = -1
    if first >= 0:
        p.lane_previous[first] = lane
    p.pool_waiting[pool] = lane


@njit(cache=True)
def _unblock_lane(p, lane):
    """Let a lane no longer wait for credits."""
    following = p.lane_next[lane]
    previous = p.lane_previous[lane]
    if previous >= 0:
        p.lane_next[previous] = following
    else:
        p.pool_waiting[p.lane_pool[lane]] = following
    if following >= 0:
        p.lane_previous[following] = previous
    p.lane_pool[lane] = -1


@njit(cache=True)
def _order_lane(p, lane):
    """Sort what became ready now in a lane, and put the lane where it belongs."""
    head = p.lane_head[lane]
    p.lane_is_touched[lane] = 0
    first = p.slots[head]
    _sort_ids(p.slots, max(head, p.lane_run[lane]), p.lane_tail[lane])
    station = p.lane_station[lane]
    if p.lane_place[lane] >= 0:
        if p.slots[head] != first:
            # A later round of this instant brought a smaller id.
            if p.lane_pool[lane] >= 0:
                _unblock_lane(p, lane)
            _lift_lane(p, p.station_base[station], p.lane_place[lane], lane)
    elif p.lane_pool[lane] < 0:
        _enter_lane(p, lane)
    _touch_station(p, station)


@njit(cache=True)
def _start_first(p, shift, num_flights, station, now):
    """Start the head of the station's first lane."""
    base = p.station_base[station]
    lane = p.station_lanes[base]
    head = p.lane_head[lane]
    task = np.int64(p.slots[head])
    p.lane_head[lane] = head + 1
    if head + 1 == p.lane_tail[lane]:
        _remove_first_lane(p, station)
    elif p.station_size[station] > 1:
        _sink_lane(p, base, p.station_size[station], 0, lane)
    end = now + p.words[task * WORDS + DURATION]
    visible = end + _latency_of(p, task)
    p.words[task * WORDS + VISIBLE] = visible
    p.halves[task * HALVES + MISSING] = STARTED
    p.station_free[station] -= 1
    _send(p, shift, num_flights + station, task, end)


@njit(cache=True)
def _lacking_pool(p, task):
    """First pool that has too few units for the task, or -1."""
    for entry in range(p.need_indptr[task], p.need_indptr[task + 1]):
        if p.pool_free[p.need_pool[entry]] < p.need_units[entry]:
            return p.need_pool[entry]
    return -1


@njit(cache=True)
def _wake_lanes(p):
    """Let lanes look again at the pools that got units back."""
    for index in range(1, 1 + p.pools[0]):
        pool = p.pools[index]
        p.pool_is_touched[pool] = 0
        while p.pool_waiting[pool] >= 0:
            lane = p.pool_waiting[pool]
            _unblock_lane(p, lane)
            if p.lane_place[lane] < 0:
                _enter_lane(p, lane)
            _touch_station(p, p.lane_station[lane])
    p.pools[0] = 0


@njit(cache=True)
def _is_station_before(p, station, other):
    """Whether one station's first task goes before another's when they want the same credits."""
    lane = p.station_lanes[p.station_base[station]]
    return _is_before(p, lane, p.station_lanes[p.station_base[other]])


@njit(cache=True)
def _sink_station(p, size, place, station):
    """Restore the heap ``stations[1:1 + size]`` from ``place`` downwards."""
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and _is_station_before(p, p.stations[2 + child], p.stations[1 + child]):
            child += 1
        if not _is_station_before(p, p.stations[1 + child], station):
            break
        p.stations[1 + place] = p.stations[1 + child]
        place = child
    p.stations[1 + place] = station


@njit(cache=True)
def _serve_stations(p, shift, num_flights, now):
    """Start what can start at the touched stations; they compete for credits in queue order."""
    rivals = 0
    for index in range(1, 1 + p.stations[0]):
        station = p.stations[index]
        p.station_is_touched[station] = 0
        if p.station_takes[station] == 0:
            while p.station_free[station] > 0 and p.station_size[station] > 0:
                _start_first(p, shift, num_flights, station, now)
        elif p.station_free[station] > 0 and p.station_size[station] > 0:
            p.stations[1 + rivals] = station
            rivals += 1
    p.stations[0] = 0
    for place in range(rivals // 2 - 1, -1, -1):
        _sink_station(p, rivals, place, p.stations[1 + place])
    while rivals > 0:
        station = p.stations[1]
        lane = p.station_lanes[p.station_base[station]]
        is_over = False
        if p.lane_pool[lane] >= 0:
            is_over = True  # a FIFO whose head still waits
        else:
            task = np.int64(p.slots[p.lane_head[lane]])
            pool = _lacking_pool(p, task)
            if pool < 0:
                for entry in range(p.need_indptr[task], p.need_indptr[task + 1]):
                    p.pool_free[p.need_pool[entry]] -= p.need_units[entry]
                _start_first(p, shift, num_flights, station, now)
            else:
                _block_lane(p, lane, pool)
                if p.station_is_voq[station] == 1:
                    _remove_first_lane(p, station)
                else:
                    is_over = True
        if is_over or p.station_free[station] == 0 or p.station_size[station] == 0:
            rivals -= 1
            if rivals > 0:
                _sink_station(p, rivals, 0, p.stations[1 + rivals])
        else:
            _sink_station(p, rivals, 0, station)


# --- The loop -----------------------------------------------------------------------------------


def _make_run(has_events):
    """Compile the loop for graphs with or without credits and gates."""

    @njit(cache=True)
    def run(p, shift, num_streams, num_flights, has_instant):
        """Replay the graph; returns how many tasks became visible."""
        num_tasks = p.words.size // WORDS - 1
        num_members = p.member_gate.size
        mask = (1 << shift) - 1
        now = np.int64(0)
        done = 0
        num_stack = 0
        num_touched = 0
        num_arrivals = 0
        for first in range(num_tasks):
            if p.halves[first * HALVES + MISSING] == 0:
                num_stack, num_touched = _make_ready(
                    p, shift, num_streams, first, now, num_stack, num_touched
                )
        while p.status[0] == OK:
            # Phase 1: everything that leaves or becomes visible now.
            while True:
                if num_stack > 0:
                    num_stack -= 1
                    task = np.int64(p.stack[num_stack])
                else:
                    key = p.tree[1]
                    if key >> shift != now:
                        if has_events and num_arrivals > 0:
                            num_stack, num_touched = _admit_arrivals(
                                p, shift, num_streams, num_arrivals, now, num_stack, num_touched
                            )
                            num_arrivals = 0
                            continue
                        break
                    channel = key & mask
                    task = _receive(p, shift, channel)
                    if channel >= num_flights:
                        station = channel - num_flights
                        if not has_events or p.halves[task * HALVES + LANE] >= 0:
                            p.station_free[station] += 1
                            _touch_station(p, station)
                        num_stack = _leave(p, shift, task, num_stack)
                        continue
                done += 1
                row = task * HALVES + EDGES
                for edge in range(p.halves[row], p.halves[row + HALVES]):
                    target = np.int64(p.successors[edge])
                    if has_events and target < 0:
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
                    missing = p.halves[target * HALVES + MISSING] - 1
                    p.halves[target * HALVES + MISSING] = missing
                    if missing == 0:
                        num_stack, num_touched = _make_ready(
                            p, shift, num_streams, target, now, num_stack, num_touched
                        )
            # Phase 2: start what can start now.
            num_late = p.late[0]
            for index in range(num_touched):
                lane = np.int64(p.touched[index])
                if lane >= num_streams:
                    _order_lane(p, lane)
                    continue
                low = p.lane_run[lane]
                high = p.lane_tail[lane]
                if high - low > 1:
                    _sort_ids(p.slots, low, high)
                if not has_instant:
                    _commit(p, shift, lane, low, high, now)
                    continue
                # A task that is visible the moment it starts opens a further round of this
                # instant, which may bring tasks that go before those still queued here: fix only
                # what starts now.
                if p.lane_free_at[lane] <= now:
                    _commit(p, shift, lane, low, low + 1, now)
                    low += 1
                if low < high:
                    num_late += 1
                    p.late[num_late] = lane
            p.late[0] = num_late
            num_touched = 0
            if has_events and p.pools[0] > 0:
                _wake_lanes(p)
            if p.stations[0] > 0:
                _serve_stations(p, shift, num_flights, now)
            if p.tree[1] >> shift == now:
                continue
            for index in range(1, 1 + num_late):
                lane = np.int64(p.late[index])
                _sort_ids(p.slots, p.lane_run[lane], p.lane_tail[lane])
                _commit(p, shift, lane, p.lane_run[lane], p.lane_tail[lane], now)
            p.late[0] = 0
            if p.tree[1] == NEVER:
                break
            now = p.tree[1] >> shift
        return done

    return run


run_plain = _make_run(False)
run_full = _make_run(True)


# --- Reading a schedule -------------------------------------------------------------------------


@njit(cache=True)
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
            arrivals.sort()
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


@njit(cache=True)
def last_met(
    visible, indptr, successors, member_task, member_waiter, landed_tile, tile_first, tile_last
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


@njit(cache=True)
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
