# mypy: allow-untyped-defs, allow-untyped-calls
"""Queues and their order: sorting by id, a station's heap of lanes, a pool's waiting lanes.

In the twin: ``order``, and the sorting in ``candidates``.
"""

from __future__ import annotations

from replay.engine.backend.compiling import inline, inner
from replay.engine.kernels.layout import TURNS


@inner
def sort_ids(ids, low, high):
    """Sort ``ids[low:high]`` in place: nothing to do as a rule, else a heap sort."""
    is_sorted = True
    for place in range(low + 1, high):
        if ids[place] < ids[place - 1]:
            is_sorted = False
            break
    if is_sorted:
        return
    count = high - low
    for root in range((count >> 1) - 1, -1, -1):
        _sift_id(ids, low, root, count)
    for last in range(count - 1, 0, -1):
        moved = ids[low + last]
        ids[low + last] = ids[low]
        ids[low] = moved
        _sift_id(ids, low, 0, last)


@inner
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


@inline
def is_before(p, first, second):
    """Tell whether the head of one lane is served before the head of another."""
    lane, other = p.lanes[first], p.lanes[second]
    if lane.priority != other.priority:
        return lane.priority < other.priority
    if lane.ready != other.ready:
        return lane.ready < other.ready
    return lane.task < other.task


# --- A station's lanes --------------------------------------------------------------------------


@inner
def lift_lane(p, base, place, lane):
    """Move a lane up in its station's heap to where it belongs, from a free ``place``."""
    while place > 0:
        parent = (place - 1) >> 1
        other = p.station_lanes[base + parent]
        if not is_before(p, lane, other):
            break
        p.station_lanes[base + place] = other
        p.lanes[other].place = place
        place = parent
    p.station_lanes[base + place] = lane
    p.lanes[lane].place = place


@inner
def sink_lane(p, base, size, lane):
    """Move a lane down in its station's heap to where it belongs, from the first place."""
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        other = p.station_lanes[base + child]
        if child + 1 < size and is_before(p, p.station_lanes[base + child + 1], other):
            child += 1
            other = p.station_lanes[base + child]
        if not is_before(p, other, lane):
            break
        p.station_lanes[base + place] = other
        p.lanes[other].place = place
        place = child
    p.station_lanes[base + place] = lane
    p.lanes[lane].place = place


@inline
def enter_lane(p, lane):
    """Put a lane into its station's heap, or into the plain list of one that serves in turns."""
    station = p.stations[p.lanes[lane].station]
    size = station.size
    station.size = size + 1
    if station.rule == TURNS:
        p.station_lanes[station.base + size] = lane
        p.lanes[lane].place = size
    else:
        lift_lane(p, station.base, size, lane)


@inline
def remove_first_lane(p, number):
    """Take the first lane out of its station's heap."""
    station = p.stations[number]
    base = station.base
    p.lanes[p.station_lanes[base]].place = -1
    size = station.size - 1
    station.size = size
    if size > 0:
        last = p.station_lanes[base + size]
        if station.rule == TURNS:
            p.station_lanes[base] = last
            p.lanes[last].place = 0
        else:
            sink_lane(p, base, size, last)


@inline
def touch_station(p, number):
    """Note that the station may have something to start."""
    if p.stations[number].touched == 0:
        p.stations[number].touched = 1
        p.touched_stations[p.num_touched_stations] = number
        p.num_touched_stations += 1


# --- A pool's waiting lanes: a pairing heap -----------------------------------------------------


@inner
def _meld(p, root, other):
    """Join two pairing heaps of waiting lanes; returns the root, -1 stands for an empty heap."""
    if root < 0:
        return other
    if other < 0:
        return root
    below = other
    if is_before(p, other, root):
        below = root
        root = other
    child = p.lanes[root].child
    p.lanes[below].next = child
    p.lanes[below].previous = root
    if child >= 0:
        p.lanes[child].previous = below
    p.lanes[root].child = below
    return root


@inner
def _meld_siblings(p, lane):
    """Join a list of siblings: in pairs from the left, then all from the right."""
    pairs = -1
    while lane >= 0:
        other = p.lanes[lane].next
        following = -1
        if other >= 0:
            following = p.lanes[other].next
            p.lanes[other].next = -1
        root = _meld(p, lane, other)
        p.lanes[root].next = pairs
        pairs = root
        lane = following
    root = -1
    while pairs >= 0:
        following = p.lanes[pairs].next
        p.lanes[pairs].next = -1
        p.lanes[pairs].previous = -1
        root = _meld(p, root, pairs)
        pairs = following
    return root


@inner
def block_lane(p, number, pool):
    """Let a lane wait for credits of a pool."""
    lane = p.lanes[number]
    lane.pool = pool
    lane.next = -1
    lane.previous = -1
    lane.child = -1
    p.pools[pool].waiting = _meld(p, p.pools[pool].waiting, number)


@inner
def unblock_lane(p, number):
    """Let a lane no longer wait for credits. Its own place in the order may have changed."""
    lane = p.lanes[number]
    pool = lane.pool
    lane.pool = -1
    root = p.pools[pool].waiting
    below = _meld_siblings(p, lane.child)
    if root == number:
        p.pools[pool].waiting = below
        return
    following = lane.next
    previous = lane.previous
    if p.lanes[previous].child == number:
        p.lanes[previous].child = following
    else:
        p.lanes[previous].next = following
    if following >= 0:
        p.lanes[following].previous = previous
    p.pools[pool].waiting = _meld(p, root, below)


@inline
def lacking_pool(p, lane):
    """First pool that has too few units for the head of a lane, or -1."""
    number = p.lanes[lane].needs
    while number >= 0:
        node = p.nodes[number]
        if p.pools[node.pool].free < node.units:
            return node.pool
        number = node.next
    return -1
