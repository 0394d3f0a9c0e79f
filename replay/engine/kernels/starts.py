# mypy: allow-untyped-defs, allow-untyped-calls
"""Phase 2 of an instant: what can start now, in the common order.

In the twin: ``start_services``, ``candidates`` and ``start``.
"""

from __future__ import annotations

from replay.engine.backend.compiling import inline, inner, prefetch
from replay.engine.kernels.channels import send
from replay.engine.kernels.events import latency_of
from replay.engine.kernels.lanes import (
    block_lane,
    enter_lane,
    is_before,
    lacking_pool,
    lift_lane,
    remove_first_lane,
    sink_lane,
    sort_ids,
    touch_station,
    unblock_lane,
)
from replay.engine.kernels.layout import (
    FIRST_WAY,
    IN_ORDER,
    LATE_LANE,
    LOOKS_UP,
    OK,
    STARTED,
    TURNS,
    VOQ,
)
from replay.engine.kernels.lookups import look_up, prefetch_keys

# --- Streams ------------------------------------------------------------------------------------


@inline
def commit(p, number, low, high):
    """Fix the starts of ``slots[low:high]`` of a stream: nothing can come before them any more."""
    lane = p.lanes[number]
    free_at = lane.free_at
    if free_at < p.now:
        free_at = p.now
    for place in range(low, high):
        task = p.slots[place]
        free_at += p.tasks[task].duration
        flight = p.tasks[task].flight
        if p.channels[flight].kind == IN_ORDER:
            visible = free_at + p.channels[flight].latency
        else:
            visible = free_at + p.latency[task]
        p.tasks[task].visible = visible
        send(p, flight, task, visible)
        if p.status[0] != OK:
            break
    lane.free_at = free_at
    lane.run = high


@inner
def commit_apart(p, number, low, high):
    """Do the same where it is not worth a copy of the code."""
    commit(p, number, low, high)


# --- Lanes of stations --------------------------------------------------------------------------


@inline
def _note_head(p, number, task):
    """Keep what orders a lane in the lane itself, and what its head takes."""
    lane = p.lanes[number]
    lane.ready = p.tasks[task].visible
    lane.task = task
    needs = -1
    flight = p.tasks[task].flight
    if flight <= FIRST_WAY:
        way = p.ways[FIRST_WAY - flight]
        needs = way.needs
        if way.gives & LOOKS_UP != 0:
            prefetch_keys(p, task)
    lane.needs = needs


@inner
def order_lane(p, number):
    """Sort what became ready now in a lane, and put the lane where it belongs."""
    lane = p.lanes[number]
    head = lane.head
    lane.touched = 0
    before = lane.task
    low = lane.run
    if low < head:
        low = head
    sort_ids(p.slots, low, lane.tail)
    first = p.slots[head]
    _note_head(p, number, first)
    pool = lane.pool
    if pool >= 0 and first != before:
        # A later round of this instant brought a smaller id, which may want something else.
        unblock_lane(p, number)
        pool = -1
    if lane.place >= 0:
        station = p.stations[lane.station]
        if station.rule != TURNS:
            lift_lane(p, station.base, lane.place, number)
    elif pool < 0:
        enter_lane(p, number)
    touch_station(p, lane.station)


@inner
def _start_first(p, number):
    """Start the head of the station's first lane."""
    station = p.stations[number]
    place = p.station_lanes[station.base]
    lane = p.lanes[place]
    head = lane.head
    started = p.slots[head]
    head += 1
    lane.head = head
    is_empty = head == lane.tail
    if not is_empty:
        _note_head(p, place, p.slots[head])
        if head + 1 < lane.tail:
            prefetch(p.tasks, p.slots[head + 1])
    if station.rule == TURNS:
        served = station.served + 1
        station.served = served
        lane.served = served
    if is_empty:
        remove_first_lane(p, number)
    elif station.rule != TURNS and station.size > 1:
        sink_lane(p, station.base, station.size, place)
    task = p.tasks[started]
    channel = task.flight
    late = 0
    if channel <= FIRST_WAY:
        way = p.ways[FIRST_WAY - channel]
        channel = way.channel
        if way.gives & LOOKS_UP != 0:
            late = look_up(p, started)
            if late > 0:
                # It would come out of order among those that left before it.
                p.extra_latency[started] = late
                task.lane = LATE_LANE - number
    end = p.now + task.duration
    task.visible = end + latency_of(p, started, channel) + late
    task.missing = STARTED
    station.free -= 1
    prefetch(p.successors, task.edges)
    prefetch(p.tasks, started + 1)  # the list of successors ends where the next one begins
    send(p, p.num_flights + number, started, end)


# --- Rivals: stations with a free server, and pools that got units back -------------------------


@inline
def _rival_lane(p, rival):
    """Lane whose head a rival wants to start: a station's first, or the first that waits."""
    if rival < p.num_stations:
        return p.station_lanes[p.stations[rival].base]
    return p.pools[rival - p.num_stations].waiting


@inner
def _place_rival(p, place, rival):
    """Put a rival at ``place`` of the heap, then up or down to where it belongs."""
    lane = _rival_lane(p, rival)
    while place > 0:
        other = p.rivals[(place - 1) >> 1].heap
        if not is_before(p, lane, _rival_lane(p, other)):
            break
        p.rivals[place].heap = other
        p.rivals[other].place = place
        place = (place - 1) >> 1
    while True:
        child = 2 * place + 1
        if child >= p.num_rivals:
            break
        other = p.rivals[child].heap
        if child + 1 < p.num_rivals:
            second = p.rivals[child + 1].heap
            if is_before(p, _rival_lane(p, second), _rival_lane(p, other)):
                child += 1
                other = second
        if not is_before(p, _rival_lane(p, other), lane):
            break
        p.rivals[place].heap = other
        p.rivals[other].place = place
        place = child
    p.rivals[place].heap = rival
    p.rivals[rival].place = place


@inner
def _update_rival(p, rival, is_in):
    """Let a rival enter, leave or change its place."""
    place = p.rivals[rival].place
    if is_in:
        if place < 0:
            place = p.num_rivals
            p.num_rivals += 1
        _place_rival(p, place, rival)
    elif place >= 0:
        p.num_rivals -= 1
        p.rivals[rival].place = -1
        last = p.rivals[p.num_rivals].heap
        if last != rival:
            _place_rival(p, place, last)


@inner
def _block_first_lane(p, number, pool):
    """Let a station's first lane wait at a pool."""
    lane = p.station_lanes[p.stations[number].base]
    if p.stations[number].rule == VOQ:
        remove_first_lane(p, number)
    rival = p.num_stations + pool
    if p.rivals[rival].place >= 0 and p.pools[pool].free > 0:
        # The pool still offers what it got back, too little for this lane: do not offer it again.
        p.lanes[lane].pool = pool
        p.deferred[p.num_deferred] = lane
        p.num_deferred += 1
        return
    _update_rival(p, rival, False)
    block_lane(p, lane, pool)


# --- Stations that serve in turns ---------------------------------------------------------------


@inline
def _is_turn_before(p, first, second):
    """Tell whether a lane is served before another of a station that serves in turns."""
    lane, other = p.lanes[first], p.lanes[second]
    if lane.priority != other.priority:
        return lane.priority < other.priority
    if lane.served != other.served:
        return lane.served < other.served
    if lane.ready != other.ready:
        return lane.ready < other.ready
    return lane.task < other.task


@inner
def _choose_turn(p, number):
    """Put the lane whose turn it is first in its station's list; whether one has its credits."""
    station = p.stations[number]
    base = station.base
    best = -1
    for place in range(base, base + station.size):
        lane = p.station_lanes[place]
        if best >= 0 and not _is_turn_before(p, lane, best):
            continue
        if lacking_pool(p, lane) < 0:
            best = lane
    if best < 0:
        return False
    first = p.station_lanes[base]
    place = p.lanes[best].place
    p.station_lanes[base + place] = first
    p.lanes[first].place = place
    p.station_lanes[base] = best
    p.lanes[best].place = 0
    return True


@inner
def _recheck_turns(p, number):
    """Let stations that serve in turns choose again if a start took their lane's credits.

    ``number`` is the list of what it took. Their next candidate may come before all others, so
    this cannot wait.
    """
    while number >= 0:
        pool = p.nodes[number].pool
        number = p.nodes[number].next
        for index in range(p.turn_indptr[pool], p.turn_indptr[pool + 1]):
            station = p.turn_stations[index]
            if p.rivals[station].place < 0:
                continue
            if lacking_pool(p, p.station_lanes[p.stations[station].base]) >= 0:
                _update_rival(p, station, _choose_turn(p, station))


# --- All of them --------------------------------------------------------------------------------


@inner
def serve_stations(p):
    """Start what can start at the touched stations and behind the touched pools.

    Where the order of starts matters, rivals are served in the order of their tasks: stations with
    a free server, and pools that got units back, on behalf of the first lane that waits for them.
    """
    p.num_rivals = 0
    p.num_deferred = 0
    for index in range(p.num_touched_stations):
        number = p.touched_stations[index]
        station = p.stations[number]
        station.touched = 0
        if station.contends == 0:
            while station.free > 0 and station.size > 0:
                _start_first(p, number)
        elif station.free > 0 and station.size > 0:
            is_in = True
            if station.rule == TURNS:
                is_in = _choose_turn(p, number)
            _update_rival(p, number, is_in)
    p.num_touched_stations = 0
    for index in range(p.num_touched_pools):
        number = p.touched_pools[index]
        p.pools[number].touched = 0
        if p.pools[number].waiting >= 0:
            _update_rival(p, p.num_stations + number, True)
    p.num_touched_pools = 0
    while p.num_rivals > 0:
        _serve_first_rival(p)
    for index in range(p.num_deferred):
        lane = p.deferred[index]
        block_lane(p, lane, p.lanes[lane].pool)


@inline
def _serve_first_rival(p):
    """Start the task of the first rival, or let it wait for credits."""
    rival = p.rivals[0].heap
    number = _rival_lane(p, rival)
    lane = p.lanes[number]
    place = lane.station
    station = p.stations[place]
    if rival >= p.num_stations:
        pool = rival - p.num_stations
        if p.pools[pool].free == 0:
            _update_rival(p, rival, False)
            return
        unblock_lane(p, number)
        _update_rival(p, rival, p.pools[pool].waiting >= 0)
        if lane.place < 0:
            enter_lane(p, number)
        if p.station_lanes[station.base] != number:
            return  # overtaken: it is looked at again when it is first
    taken = -1
    if station.free > 0 and lane.pool < 0:
        pool = lacking_pool(p, number)
        if pool < 0:
            taken = lane.needs
            need = taken
            while need >= 0:
                node = p.nodes[need]
                p.pools[node.pool].free -= node.units
                need = node.next
            _start_first(p, place)
        else:
            _block_first_lane(p, place, pool)
    is_in = station.free > 0 and station.size > 0
    if is_in:
        if station.rule == TURNS:
            is_in = _choose_turn(p, place)
        else:
            first = p.station_lanes[station.base]
            is_in = p.lanes[first].pool < 0  # else a FIFO whose head waits
    _update_rival(p, place, is_in)
    if taken >= 0 and p.has_turns != 0:
        _recheck_turns(p, taken)
