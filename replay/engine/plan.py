"""Laying a graph out for a run: lanes, channels and stations, and the records of the tasks.

The module is long because the parts of a plan are made here and nowhere else, in one order.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.columns import is_constant, stored_rows
from replay.engine.errors import EngineError
from replay.engine.kernels import layout as k
from replay.engine.kernels.edges import group_rows
from replay.engine.kernels.packing import RunRecords, SurveyColumns, pack, survey, unpack
from replay.engine.lookups import GROWTH, aligned_zeros, grow, table_parts, turn_takers
from replay.engine.resumption import add_channel_of_returns, restore
from replay.engine.state import LaidGraph, State
from replay.engine.taskgraph import Int64s, TaskGraph

Bools = npt.NDArray[np.bool_]
Parts = dict[str, Any]

#: Lanes, needs and ways that a graph has room for at first; most have fewer.
_ROOM = 511


def make_plan(graph: TaskGraph, state: State | None = None) -> tuple[k.RunPlan, LaidGraph]:
    """Lay out lanes, channels and stations, and fill the records.

    A resource is a *stream* if it has one server, all its tasks have one priority, and none of
    them takes or gives credits, touches a table or pays for an eviction: its order of service is
    its order of arrival, so a task's end is known as soon as it arrives. All other resources are
    *stations*, with an event for each end.
    Where a task is visible the moment it starts, an instant has several rounds, and it matters
    in which of them a server is free; then resources with tasks of no duration are stations too.
    Lines are streams always.

    Parameters
    ----------
    graph
        The graph.
    state
        Where a run begins that was paused; None at the beginning.

    Raises
    ------
    EngineError
        If a task takes longer than the clock can count.
    """
    by_task = _by_task(graph)
    found = _survey(graph, by_task)
    null = len(graph.resources)
    servers = np.append(graph.resources.servers.astype(np.int64), k.NEVER >> 1)
    rule = np.append(graph.resources.discipline, k.VOQ).astype(np.int64)
    is_line = rule == k.LINE
    has_lane = (found["tasks"] > 0) | is_line  # lines are drawn from, tasks or none
    has_lane[null] = found["takers"][null] > 0
    if state is None:  # else later tasks may lack credits, and whose turn it was counts
        rule[(rule == k.TURNS) & (found["takers"] == 0)] = k.FIFO
    looks_up = found["looks_up"] > 0
    is_mixed = found["is_mixed"] > 0
    has_credits = (found["takers"] > 0) | (found["givers"] > 0)
    is_stream = has_lane & (servers == 1) & ~is_mixed & ~has_credits & ~looks_up
    is_stream &= rule != k.TURNS
    has_instant = bool(found["instant"].any())
    if has_instant:
        is_stream &= (found["zero"] == 0) | is_line
    is_station = has_lane & ~is_stream
    is_station[null] = has_credits[null]

    lane_rule = np.where(is_mixed, k.BY_PRIORITY, k.ONE_LANE)
    lane_rule[(rule == k.VOQ) & (found["takers"] > 0)] = k.BY_NEEDS
    lane_rule[rule == k.TURNS] = k.BY_POOLS
    is_single = has_lane & (lane_rule == k.ONE_LANE)
    # Streams have the first lanes, so that the kernel tells them by their number.
    of_single = np.concatenate([is_stream.nonzero()[0], (is_single & ~is_stream).nonzero()[0]])
    most = int(found["most_takes"].max()), int(found["most_gives"].max())
    packed = _pack(graph, by_task, lane_rule, of_single, is_stream, most)
    _forget_takes(by_task, packed)
    late_channel = _add_late_channels(packed, found["late"])
    if state is not None:
        add_channel_of_returns(packed, state, is_stream)
    lane_resource = np.concatenate([of_single, packed.lanes["a"]])
    of_station = is_station.nonzero()[0]  # the null resource, if it is one, comes last
    station_of = np.full(null + 1, -1, np.int64)
    station_of[of_station] = np.arange(of_station.size)
    channels = _channels(packed, is_stream, np.minimum(servers, found["tasks"])[of_station])

    stations = np.zeros(of_station.size, k.STATION.dtype)
    stations["free"] = servers[of_station]
    stations["rule"] = rule[of_station]
    stations["contends"] = ((found["takers"] > 0) | looks_up | (rule == k.TURNS))[of_station]
    stations["late"] = late_channel[of_station]
    lanes_per_resource = np.bincount(lane_resource, minlength=null + 1)
    stations["base"] = _offsets(lanes_per_resource[of_station])[:-1]
    # Lanes of different resources meet when their heads want the same credits.
    lane_priority = np.concatenate([found["first_priority"][of_single], packed.lanes["b"]])
    turn_indptr, turn_stations = turn_takers(graph, packed.lanes, packed.nodes, station_of)
    known = None if state is None else state.keys
    tables = table_parts(graph, packed.single_lane, by_task.touch_order, known)
    if state is not None and state.is_lengthened and not tables["extra_latency"].size:
        tables["extra_latency"] = np.zeros(graph.num_tasks, np.int64)
    known_keys = tables.pop("known_keys")
    parts: Parts = dict(
        has_instant=has_instant,
        has_turns=turn_indptr.size > 1,
        num_flights=packed.num_flights,
        tasks=packed.tasks,
        num_streams=int(is_stream.sum()),
        num_stations=stations.size,
        lanes=_lanes(packed.lane_tasks, lane_priority, station_of[lane_resource], is_line[lane_resource]),
        stations=stations,
        nodes=packed.nodes,
        ways=packed.ways,
        turn_indptr=turn_indptr,
        turn_stations=turn_stations,
        shares=_shares(graph),
        status=np.zeros(k.STATUS_SIZE, np.int64),
        resume_at=0,
        queue=np.zeros(0, np.int32),
        **channels,
        **_work_lists(packed.num_direct, lane_resource.size, stations.size, graph),
        **_gate_parts(graph),
        **tables,
    )
    laid = LaidGraph(station_of, packed.single_lane, of_single.size, packed.lanes, known_keys, parts)
    if state is not None:
        restore(laid, graph, state)
    return k.RunPlan(graph, graph.takes, by_task, **parts), laid


def read_times(graph: TaskGraph, records: npt.NDArray[Any], extra_latency: Int64s) -> tuple[Int64s, Int64s]:
    """Start and end of every task (task,) after a run.

    The latency that touches added is given for every task, or empty where there are no touches.
    """
    start, end = np.empty(graph.num_tasks, np.int64), np.empty(graph.num_tasks, np.int64)
    unpack(
        RunRecords(
            graph,
            has_touches=extra_latency.size > 0,
            tasks=records,
            extra_latency=extra_latency,
            start=start,
            end=end,
        )
    )
    return start, end


def _offsets(sizes: npt.NDArray[Any]) -> Int64s:
    """Beginnings of slices of the given sizes, and the end of the last one."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    sizes.cumsum(out=offsets[1:])
    return offsets


def _by_task(graph: TaskGraph) -> SimpleNamespace:
    """Takes by who takes and by who gives back, and touches by who touches, as compressed rows."""
    takes, touches = graph.takes, graph.touches
    by_taker = by_giver = by_toucher = np.zeros(1, np.int32), np.zeros(0, np.int32)
    if len(takes):
        by_taker = group_rows(takes.task, graph.num_tasks)
        by_giver = group_rows(takes.released_by, graph.num_tasks)
    if len(touches):
        by_toucher = group_rows(touches.task, graph.num_tasks)
    return SimpleNamespace(
        has_credits=len(takes) > 0,
        has_touches=len(touches) > 0,
        taker=np.ascontiguousarray(takes.task),
        take_indptr=by_taker[0],
        take_order=by_taker[1],
        give_indptr=by_giver[0],
        give_order=by_giver[1],
        touch_indptr=by_toucher[0],
        touch_order=by_toucher[1],
    )


def _survey(graph: TaskGraph, by_task: SimpleNamespace) -> npt.NDArray[Any]:
    """Records of the resources (resource,), the null one last; see `layout.SURVEY`."""
    resources = np.zeros(len(graph.resources) + 1, k.SURVEY.dtype)
    for column in (graph.duration_ps, graph.latency_ps):
        if int(stored_rows(column).max(initial=0)) > k.LONGEST:
            task = graph.describe(int(np.argmax(column > k.LONGEST)))
            message = f"{task} takes longer than the clock can count"
            raise EngineError(message)
    surveyed = SurveyColumns(
        graph,
        by_task,
        graph.touches,
        num_touches=len(graph.touches),
        null=len(graph.resources),
        has_levels=not is_constant(graph.priority),
        toucher=graph.touches.task,
        resources=resources,
    )
    survey(surveyed)
    return resources


def _pack(
    graph: TaskGraph,
    by_task: SimpleNamespace,
    lane_rule: Int64s,
    of_single: Int64s,
    is_stream: Bools,
    most: tuple[int, int],
) -> SimpleNamespace:
    """Fill the records, finding the lanes and flight classes on the way.

    Of ``most``, the rows of takes of a task and those that one gives back, no list is longer.
    """
    num_tasks, num_single = graph.num_tasks, of_single.size
    single_lane = np.full(is_stream.size, -1, np.int64)
    single_lane[of_single] = np.arange(num_single)
    tasks = k.TASK.view(aligned_zeros(np.empty, num_tasks + 1, k.TASK.num_bytes // 8))
    # Places: every resource, the null one, and the null one for tasks with credits.
    classes = np.zeros((k.MAX_CLASSES + 1) * (is_stream.size + 1), k.CLASS.dtype)
    first_class = np.full(is_stream.size + 1, -1, np.int64)
    sizes = np.zeros(5, np.int64)
    lanes = nodes = ways = np.zeros(0, k.TRIPLE.dtype)
    lane_tasks = np.zeros(0, np.int64)
    room = 1 << (_ROOM + most[0] + sum(most)).bit_length()
    task = 0
    while True:
        # The tables grow together until no task finds one full.
        lanes, lane_table = grow(lanes, room, int(sizes[k.LANES]))
        nodes, node_table = grow(nodes, room, int(sizes[k.NODES]))
        ways, way_table = grow(ways, room, int(sizes[k.WAYS]))
        lane_tasks = np.append(lane_tasks, np.zeros(num_single + room - lane_tasks.size, np.int64))
        packing = k.Packing(
            graph,
            graph.takes,
            by_task,
            first_task=task,
            room=room,
            null=is_stream.size - 1,
            num_single=num_single,
            lane_rule=lane_rule,
            single_lane=single_lane,
            is_stream=is_stream.view(np.int8),
            lane_tasks=lane_tasks,
            lanes=lanes,
            lane_table=lane_table,
            nodes=nodes,
            node_table=node_table,
            ways=ways,
            way_table=way_table,
            classes=classes,
            first_class=first_class,
            wanted_pool=np.empty(most[0], np.int64),
            wanted_units=np.empty(most[0], np.int64),
            tasks=tasks,
            sizes=sizes,
        )
        task = pack(packing)
        if task == num_tasks:
            break
        room *= GROWTH
    num_lanes = int(sizes[k.LANES])
    return SimpleNamespace(
        tasks=tasks,
        lanes=lanes[:num_lanes],
        nodes=nodes[: sizes[k.NODES]].view(k.NODE.dtype),
        ways=ways[: sizes[k.WAYS]].view(k.WAY.dtype),
        lane_tasks=lane_tasks[: num_single + num_lanes],
        single_lane=single_lane,
        classes=classes[: sizes[k.CLASSES]],
        first_class=first_class,
        num_flights=int(sizes[k.CLASSES]),
        num_direct=int(sizes[k.DIRECT]),
    )


def _forget_takes(by_task: SimpleNamespace, packed: SimpleNamespace) -> None:
    """Free what tells takes by task: tables come in its place.

    Takes by who gives them back stay where somebody may be too early or gives back with others.
    """
    none = np.zeros(1, np.int32)
    by_task.take_indptr = by_task.take_order = none
    if not (packed.ways["gives"] & (k.MAY_BE_EARLY | k.SHARES)).any():
        by_task.give_indptr = by_task.give_order = none


def _shares(graph: TaskGraph) -> npt.NDArray[Any]:
    """Takes that several tasks give back together (share,), of which nobody has left yet."""
    takes = graph.takes
    rows = (takes.share >= 0).nonzero()[0]
    share, is_first = takes.share[rows], takes.units[rows] > 0
    shares = np.zeros(int(is_first.sum()), k.SHARE.dtype)
    shares["left"] = np.bincount(share, minlength=shares.size)
    shares["pool"][share[is_first]] = takes.pool[rows[is_first]]
    shares["units"][share[is_first]] = takes.units[rows[is_first]]
    return shares


def _add_late_channels(packed: SimpleNamespace, late: Int64s) -> Int64s:
    """Give each resource with touches that may be late a heap for them: (resource,), -1 for none.

    Everybody else keeps the order of leaving, and with it the queue of its latency.
    """
    where = late.nonzero()[0]
    classes = np.zeros(where.size, k.CLASS.dtype)
    classes["next"] = -1
    classes["count"] = late[where]
    classes["kind"] = k.BY_HEAP
    classes["place"] = where
    channel = np.full(late.size, -1, np.int64)
    channel[where] = packed.num_flights + np.arange(where.size)
    packed.classes = np.concatenate([packed.classes, classes])
    packed.num_flights += where.size
    return channel


def _lanes(lane_tasks: Int64s, priority: Int64s, station: Int64s, is_line: Bools) -> npt.NDArray[Any]:
    """Lanes that are empty, with room for their tasks one after the other in ``slots``."""
    lanes = k.LANE.unset(lane_tasks.size)
    for name in ("head", "tail", "run"):
        lanes[name] = _offsets(lane_tasks)[:-1]
    for name in ("free_at", "touched"):
        lanes[name] = 0
    lanes["priority"] = priority
    lanes["station"] = station
    lanes["is_line"][is_line] = 1
    return lanes


def _channels(packed: SimpleNamespace, is_stream: Bools, station_room: Int64s) -> Parts:
    """Channels with their memory: flights first, one for each class, then one for each station.

    A stream whose tasks all have one latency needs no room for those in flight: they are the
    front of the very slice of ``slots`` they queued in.
    """
    classes, num_flights = packed.classes, packed.num_flights
    channels = np.zeros(num_flights + station_room.size, k.CHANNEL.dtype)
    channels["kind"] = k.BY_HEAP
    channels["kind"][:num_flights] = classes["kind"]
    channels["latency"][:num_flights] = classes["latency"]
    room = np.concatenate([classes["count"], station_room])
    is_in_order = channels["kind"] == k.IN_ORDER

    place = classes["place"]
    is_only = packed.first_class[place] == np.arange(num_flights)
    is_only &= classes["next"] < 0
    is_shared = np.zeros(channels.size, np.bool_)
    is_shared[:num_flights] = is_only & np.append(is_stream, False)[place]
    is_shared &= is_in_order
    slot_base = int(packed.lane_tasks.sum()) + _offsets(np.where(is_in_order & ~is_shared, room, 0))
    channels["head"] = slot_base[:-1]
    lane_head = _offsets(packed.lane_tasks)[:-1]
    lane = packed.single_lane[place[is_shared[:num_flights]]]
    channels["head"][is_shared] = lane_head[lane]
    channels["tail"] = channels["head"]
    heap_base = _offsets(np.where(is_in_order, 0, room))
    channels["base"] = heap_base[:-1]
    shift = max(2, (channels.size - 1).bit_length())
    return {
        "shift": shift,
        "first_leaf": 1 << shift,
        "last_channel": channels.size - 1,
        "channels": channels,
        "slots": np.empty(int(slot_base[-1]), np.int32),
        "tree": np.full(2 << shift, k.NEVER, np.int64),
        "heap_time": np.empty(int(heap_base[-1]), np.int64),
        "heap_task": np.empty(int(heap_base[-1]), np.int32),
    }


def _work_lists(num_direct: int, num_lanes: int, num_stations: int, graph: TaskGraph) -> Parts:
    """Pools and rivals, and lists of what is to be looked at, all of them empty."""
    pools = np.zeros(len(graph.pools), k.POOL.dtype)
    pools["free"] = graph.pools.capacity
    pools["waiting"] = -1
    return {
        "pools": pools,
        "rivals": k.RIVAL.unset(num_stations + pools.size),
        "station_lanes": np.empty(num_lanes, np.int64),
        "stack": np.empty(num_direct + 2, np.int32),
        "touched_lanes": np.empty(num_lanes, np.int32),
        "late_lanes": np.empty(num_lanes, np.int32),
        "touched_stations": np.empty(num_stations, np.int64),
        "touched_pools": np.empty(pools.size, np.int64),
        "deferred": np.empty(num_lanes, np.int64),
    }


def _gate_parts(graph: TaskGraph) -> Parts:
    """Parts from which the kernels hand out the gates' slots."""
    gates = graph.gates
    members = k.MEMBER.unset(gates.num_members)
    members["gate"] = np.arange(len(gates)).repeat(np.diff(gates.member_indptr))
    members["waiter"] = gates.member_waiter
    gate_slots = k.SLOT.unset(gates.num_members)
    gate_slots["tile"] = np.arange(gates.num_tiles).repeat(gates.tile_slots)
    tiles = np.zeros(gates.num_tiles + 1, k.TILE.dtype)
    tiles["base"] = _offsets(gates.tile_slots)
    tiles["open"][:-1] = gates.tile_slots
    tiles["first"][:-1] = gates.tile_first
    return {
        "num_members": gates.num_members,
        "num_tiles": gates.num_tiles,
        "members": members,
        "gate_slot": gates.member_indptr[:-1].copy(),
        "gate_slots": gate_slots,
        "tiles": tiles,
        "arrivals": np.empty(gates.num_members, np.int32),
    }
