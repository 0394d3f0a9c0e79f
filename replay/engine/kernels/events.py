# mypy: allow-untyped-defs, allow-untyped-calls
"""Phase 1 of an instant: tasks become ready, leave their servers and arrive at gates.

In the twin: ``make_ready``, ``leave``, ``meet``, ``arrive``, and the closing of tiles in
``become_visible``.
"""

from __future__ import annotations

from replay.engine.backend.compiling import inline, inner, prefetch
from replay.engine.kernels.channels import prefetch_targets, send
from replay.engine.kernels.lanes import sort_ids, touch_station
from replay.engine.kernels.layout import (
    EARLY_RELEASE,
    FIRST_WAY,
    IN_ORDER,
    LATE_LANE,
    LOOKS_UP,
    MAY_BE_EARLY,
    NO_FLIGHT,
    NO_LANE,
    SHARES,
    STARTED,
    WAY_FLAGS,
)


@inline
def make_ready(p, number):
    """Queue a task, or start it if it is a pure delay."""
    task = p.tasks[number]
    flight = task.flight
    place = task.lane
    if place >= 0:
        lane = p.lanes[place]
        tail = lane.tail
        p.slots[tail] = number
        lane.tail = tail + 1
        if place < p.num_streams:
            # What lies behind ``run`` has no start yet; the first such task reports the lane.
            if tail == lane.run:
                p.touched_lanes[p.num_touched_lanes] = place
                p.num_touched_lanes += 1
        else:
            task.visible = p.now
            if lane.run_time != p.now:
                lane.run_time = p.now
                lane.run = tail
            if lane.touched == 0:
                lane.touched = 1
                p.touched_lanes[p.num_touched_lanes] = place
                p.num_touched_lanes += 1
            if flight <= FIRST_WAY and p.ways[FIRST_WAY - flight].gives & LOOKS_UP != 0:
                prefetch(p.touches, p.touch_indptr[number])
    elif place == NO_LANE:
        visible = p.now + task.duration
        task.visible = visible
        if flight == NO_FLIGHT:
            p.stack[p.num_stack] = number
            p.num_stack += 1
        else:
            send(p, flight, number, visible)
    else:
        _start_giving_delay(p, number)


@inner
def make_ready_apart(p, number):
    """Do the same where it is not worth a copy of the code."""
    make_ready(p, number)


@inline
def latency_of(p, task, channel):
    """Latency of a task, from its channel if all tasks on that have the same."""
    if channel == NO_FLIGHT:
        return 0
    if p.channels[channel].kind == IN_ORDER:
        return p.channels[channel].latency
    return p.latency[task]


@inner
def _start_giving_delay(p, number):
    """Start a pure delay that gives credits back: its leaving is an event of its own."""
    task = p.tasks[number]
    end = p.now + task.duration
    channel = task.flight
    if channel <= FIRST_WAY:
        channel = p.ways[FIRST_WAY - channel].channel
    task.visible = end + latency_of(p, number, channel)
    task.missing = STARTED
    if end > p.now:
        send(p, p.last_channel, number, end)
    else:
        leave(p, number)


@inner
def leave(p, number):
    """Give the task's credits back and send it on its way to be visible."""
    task = p.tasks[number]
    channel = task.flight
    if channel <= FIRST_WAY:
        way = p.ways[FIRST_WAY - channel]
        channel = way.channel
        if task.lane <= LATE_LANE:
            channel = p.stations[LATE_LANE - task.lane].late
        gives = way.gives
        if gives & MAY_BE_EARLY != 0 and _is_early(p, number):
            return
        _give_back(p, gives >> WAY_FLAGS)
        if gives & SHARES != 0:
            _give_shares(p, number)
    if channel == NO_FLIGHT:
        p.stack[p.num_stack] = number
        p.num_stack += 1
        return
    prefetch_targets(p, number)
    send(p, channel, number, task.visible)


@inline
def _give_back(p, number):
    """Give the units of a list of credits back, and note the pools that somebody waits for."""
    while number >= 0:
        node = p.nodes[number]
        _refill(p, node.pool, node.units)
        number = node.next


@inner
def _give_shares(p, task):
    """Give back what nobody else has to give back any more."""
    for entry in range(p.give_indptr[task], p.give_indptr[task + 1]):
        number = p.share[p.give_order[entry]]
        if number >= 0:
            share = p.shares[number]
            share.left -= 1
            if share.left == 0:
                _refill(p, share.pool, share.units)


@inline
def _refill(p, number, units):
    """Give units back to a pool, and note whether somebody waits for them."""
    pool = p.pools[number]
    pool.free += units
    if pool.touched == 0 and pool.waiting >= 0:
        pool.touched = 1
        p.touched_pools[p.num_touched_pools] = number
        p.num_touched_pools += 1
    if p.has_turns != 0:
        # Stations that serve in turns look again: one of their lanes may have its credits.
        for index in range(p.turn_indptr[number], p.turn_indptr[number + 1]):
            station = p.turn_stations[index]
            if p.stations[station].free > 0 and p.stations[station].size > 0:
                touch_station(p, station)


@inner
def _is_early(p, task):
    """Tell whether a task gives back what its taker has not taken yet, which ends the run."""
    for entry in range(p.give_indptr[task], p.give_indptr[task + 1]):
        taker = p.taker[p.give_order[entry]]
        if p.tasks[taker].missing != STARTED:
            p.status[0] = EARLY_RELEASE
            p.status[1] = task
            p.status[2] = taker
            return True
    return False


# --- Gates --------------------------------------------------------------------------------------


@inner
def _meet(p, task):
    """Meet one dependency of a task."""
    missing = p.tasks[task].missing - 1
    p.tasks[task].missing = missing
    if missing == 0:
        make_ready_apart(p, task)


@inner
def close_tile(p, number):
    """Let go whoever waits for a member that landed in the tile."""
    p.tiles[number].is_done = 1
    for slot in range(p.tiles[number].base, p.tiles[number + 1].base):
        waiter = p.gate_slots[slot].waiter
        if waiter >= 0:
            p.gate_slots[slot].waiter = -1
            _meet(p, waiter)


@inner
def admit_arrivals(p):
    """Give the collected arrivals their slots, by gate and task id."""
    count = p.num_arrivals
    p.num_arrivals = 0
    sort_ids(p.arrivals, 0, count)
    for place in range(count):
        member = p.members[p.arrivals[place]]
        number = p.gate_slot[member.gate]
        p.gate_slot[member.gate] = number + 1
        member.slot = number
        slot = p.gate_slots[number]
        tile = p.tiles[slot.tile]
        waiter = member.waiter
        if waiter >= 0:
            if tile.is_done == 1:
                _meet(p, waiter)
            else:
                slot.waiter = waiter
        tile.open -= 1
        if tile.open == 0:
            _meet(p, tile.first)
