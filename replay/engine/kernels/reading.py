# mypy: allow-untyped-defs, allow-untyped-calls
"""Reading a graph or a run: the longest chain, who was waited for, what was served or is left."""

from __future__ import annotations

import numpy as np

from replay.engine.backend.compiling import AHEAD, entry, inline, prefetch
from replay.engine.backend.memory import FixedNumber, KernelMemory, Number, Records, StridedColumn, Vector
from replay.engine.kernels.lanes import sort_ids
from replay.engine.kernels.layout import LATE_LANE, NEVER, TASK


class Chain(KernelMemory):
    """A graph in the order of `order_tasks`, and when each of its tasks could be ready."""

    num_tasks = FixedNumber()
    num_nodes = FixedNumber()
    has_order = FixedNumber()  # else the ids are one
    order = Vector(np.int32)
    duration = StridedColumn()
    latency = StridedColumn()
    indptr = Vector(np.int32)
    successors = Vector(np.int32)
    member_indptr = Vector(np.int64)
    member_task = Vector(np.int32)
    member_waiter = Vector(np.int32)
    tile_indptr = Vector(np.int64)
    tile_slots = Vector(np.int32)
    tile_first = Vector(np.int32)
    tile_last = Vector(np.int32)
    ready = Vector(np.int64)
    arrivals = Vector(np.int64)  # of one gate at a time


@inline
def _prefetch_ahead(g, place):
    """Ask for the nodes that come next in the order: a step each, as each names what comes next."""
    if place + AHEAD < g.num_nodes:
        node = g.order[place + AHEAD]
        if node < g.num_tasks:
            prefetch(g.indptr, node)
            prefetch(g.ready, node)
        node = g.order[place + AHEAD // 2]
        if node < g.num_tasks:
            prefetch(g.successors, g.indptr[node])
        node = g.order[place + AHEAD // 4]
        if node < g.num_tasks and g.indptr[node] < g.indptr[node + 1]:
            prefetch(g.ready, g.successors[g.indptr[node]])


@inline
def _no_sooner(times, task, time):
    if times[task] < time:
        times[task] = time


@entry(Chain)
def longest_chain(g):
    """Longest chain of durations and latencies; afterwards ``ready`` is when tasks are visible."""
    ready = g.ready
    longest = 0
    last_ahead = 0  # edges before this one lie as they are followed
    if g.has_order == 0:
        last_ahead = g.indptr[g.num_tasks] - AHEAD
    for place in range(g.num_nodes):
        node = place
        if g.has_order != 0:
            node = g.order[place]
            _prefetch_ahead(g, place)
        gate = (node - g.num_tasks) >> 1
        if node < g.num_tasks:
            visible = ready[node] + g.duration[node] + g.latency[node]
            if visible > longest:
                longest = visible
            for edge in range(g.indptr[node], g.indptr[node + 1]):
                if edge < last_ahead:
                    prefetch(ready, g.successors[edge + AHEAD])
                target = g.successors[edge]
                if target >= 0:
                    _no_sooner(ready, target, visible)
            ready[node] = visible  # from here on: when it is visible
        elif (node - g.num_tasks) & 1 == 0:
            low = g.member_indptr[gate]
            count = g.member_indptr[gate + 1] - low
            for member in range(count):
                g.arrivals[member] = ready[g.member_task[low + member]]
            sort_ids(g.arrivals, 0, count)
            filled = 0
            for tile in range(g.tile_indptr[gate], g.tile_indptr[gate + 1]):
                filled += g.tile_slots[tile]
                if g.tile_slots[tile] > 0:
                    _no_sooner(ready, g.tile_first[tile], g.arrivals[filled - 1])
        else:
            soonest = NEVER
            for tile in range(g.tile_indptr[gate], g.tile_indptr[gate + 1]):
                if g.tile_slots[tile] > 0 and ready[g.tile_last[tile]] < soonest:
                    soonest = ready[g.tile_last[tile]]
            for member in range(g.member_indptr[gate], g.member_indptr[gate + 1]):
                if g.member_waiter[member] >= 0:
                    _no_sooner(ready, g.member_waiter[member], soonest)
    return longest


class Causes(KernelMemory):
    """A schedule, when each of its tasks became ready, and for whom it waited last."""

    num_tasks = FixedNumber()
    num_members = FixedNumber()
    is_visible = StridedColumn()
    number = StridedColumn()  # of each task in the whole
    visible = Vector(np.int64)
    indptr = Vector(np.int32)
    successors = Vector(np.int32)
    member_task = Vector(np.int32)
    member_waiter = Vector(np.int32)
    landed_tile = Vector(np.int32)
    tile_first = Vector(np.int32)
    tile_last = Vector(np.int32)
    ready = Vector(np.int64)
    cause = Vector(np.int64)


@inline
def _blame(g, target, task):
    """Note that a task waited for another, if that was visible last."""
    if g.cause[target] < 0 or g.visible[task] > g.ready[target]:
        g.ready[target] = g.visible[task]
        g.cause[target] = g.number[task]


@entry(Causes)
def last_met_edges(g):
    """Look at the tasks that each task waited for; the smallest number of those visible last."""
    last_ahead = g.indptr[g.num_tasks] - AHEAD
    for task in range(g.num_tasks):
        if g.is_visible[task] == 0:
            continue
        for edge in range(g.indptr[task], g.indptr[task + 1]):
            if edge < last_ahead:
                prefetch(g.ready, g.successors[edge + AHEAD])
                prefetch(g.cause, g.successors[edge + AHEAD])
            target = g.successors[edge]
            if target < 0:
                continue
            _blame(g, target, task)
            if g.visible[task] == g.ready[target] and g.number[task] < g.cause[target]:
                g.cause[target] = g.number[task]


@entry(Causes)
def last_admitted(g):
    """Look at the gates that each task waited for, after the tasks."""
    for member in range(g.num_members):
        tile = g.landed_tile[member]
        if tile < 0:
            continue
        task = g.member_task[member]
        _blame(g, g.tile_first[tile], task)
        # A waiter waits for the end of the tile, which may be long over when the member arrives.
        target = g.member_waiter[member]
        last = g.tile_last[tile]
        if target >= 0 and g.is_visible[last] != 0:
            if g.visible[last] >= g.visible[task]:
                task = last
            _blame(g, target, task)


class Meanwhile(KernelMemory):
    """Services, and the times of interest at their resources."""

    num_services = FixedNumber()
    resource = StridedColumn()
    start = Vector(np.int64)
    end = Vector(np.int64)
    # Of each resource, the null one last: what ends by the first or begins at the second is of no
    # interest.
    low = Vector(np.int64)
    high = Vector(np.int64)
    null = FixedNumber()
    found = Vector(np.int32)


@entry(Meanwhile)
def find_services(g):
    """Write the numbers of the services of interest down; how many there are."""
    num_found = 0
    for service in range(g.num_services):
        resource = g.resource[service]
        if resource < 0:
            resource = g.null
        start, end = g.start[service], g.end[service]
        if end > g.low[resource] and start < g.high[resource] and end > start:
            g.found[num_found] = service
            num_found += 1
    return num_found


class Draws(KernelMemory):
    """Service times of draws that touches make from a line of their tables, and rows for each draw."""

    num_touches = FixedNumber()
    served = Vector(np.int64)  # of each touch; 0 where it draws nothing
    table = StridedColumn()
    line = Vector(np.int32)  # of each table
    duration = StridedColumn()
    num_found = Number()  # rows that are written
    resource = Vector(np.int32)
    start = Vector(np.int64)
    end = Vector(np.int64)
    touch = Vector(np.int32)


@entry(Draws)
def find_draws(d):
    """Write a row for each draw, behind those that are there; how many there are."""
    for touch in range(d.num_touches):
        end = d.served[touch]
        if end != 0:
            row = d.num_found
            d.resource[row] = d.line[d.table[touch]]
            d.start[row] = end - d.duration[touch]
            d.end[row] = end
            d.touch[row] = touch
            d.num_found = row + 1
    return d.num_found


class LeastDraws(KernelMemory):
    """Touches, and what they draw at least from each line."""

    num_touches = FixedNumber()
    table = StridedColumn()
    key = StridedColumn()
    port_duration = StridedColumn()
    miss_duration = StridedColumn()
    port = Vector(np.int64)  # of each table, -1 for none
    backing = Vector(np.int64)
    first = Vector(np.int64)  # see `KeyCells`
    least = Vector(np.int64)  # (cell,): least time that brings its key in, plus 1; 0 for a key not seen
    total = Vector(np.int64)  # (resource,): what is added to


@entry(LeastDraws)
def sum_least_draws(d):
    """Add up all that ports serve, and of what brings in a key from its backing the least."""
    for touch in range(d.num_touches):
        table = d.table[touch]
        port, backing = d.port[table], d.backing[table]
        if port >= 0:
            d.total[port] = d.total[port] + d.port_duration[touch]
        if backing >= 0:
            cell = d.first[table] + d.key[touch]
            least = d.least[cell]
            time = d.miss_duration[touch] + 1
            if least == 0:
                d.total[backing] = d.total[backing] + time - 1
                d.least[cell] = time
            elif time < least:
                d.total[backing] = d.total[backing] + time - least
                d.least[cell] = time


class PausedRecords(KernelMemory):
    """Records of tasks where a run was paused."""

    num_tasks = FixedNumber()
    num_streams = FixedNumber()
    now = FixedNumber()
    tasks = Records(TASK)
    visible = Vector(np.int64)
    left = Vector(np.int32)  # tasks that are not over


@entry(PausedRecords)
def find_left(p):
    """Find the tasks that are not over, and note when all are visible; how many are left.

    For a task that waits at a station, the time in its record is when it began to wait; for others,
    when they are visible.
    """
    num_left = 0
    for number in range(p.num_tasks):
        task = p.tasks[number]
        visible = task.visible
        p.visible[number] = visible
        is_left = visible < 0 or visible > p.now or task.missing > 0
        if task.missing == 0 and (task.lane >= p.num_streams or task.lane <= LATE_LANE):
            is_left = True
        if is_left:
            p.left[num_left] = number
            num_left += 1
    return num_left
