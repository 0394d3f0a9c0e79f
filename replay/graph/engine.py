"""Scheduling a task graph: prepares the kernel's arrays, runs it, and reads the result.

The semantics are in ``replay/graph/ENGINE.md``; how the kernel gets its speed, too.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.graph.columns import fixed, stepped
from replay.graph.errors import EngineError
from replay.graph.lookups import aligned, grown, kernel_lookups, turn_takers, who_looks_up
from replay.graph.stuck import describe_deadlock
from replay.graph.taskgraph import FIFO, TURNS, VOQ, TaskGraph
from replay.graph.timeline import Timeline


def schedule(graph: TaskGraph) -> Timeline:
    """Replay a graph: give every task its start and end.

    Parameters
    ----------
    graph
        The graph; it is not changed.

    Returns
    -------
    Start and end of every task, in integer picoseconds. The same graph gives the same times, in
    every process and on every machine.

    Raises
    ------
    EngineError
        If tasks wait for credits for ever, if a task gives credits back that have not been taken
        yet, if an eviction is to be paid for by a task that has started already, or if the
        schedule is longer than the clock can count: 2**63 picoseconds over the number of resources
        and their distinct latencies, rounded up to a power of two (40 hours with 64, nine minutes
        with 10,000).

    Examples
    --------
    >>> from replay.graph import GraphBuilder
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("uplink", group="uplink")
    >>> ids = builder.add(2, resource=port, duration_ps=10, latency_ps=3)
    >>> timeline = schedule(builder.build())
    >>> timeline.start_ps.tolist(), timeline.end_ps.tolist(), timeline.makespan_ps
    ([0, 10], [10, 20], 23)
    """
    from replay.graph import kernels

    if graph.num_tasks == 0:
        nothing = np.empty(0, np.int64)
        landed = np.full(graph.gates.num_members, -1, np.int32)
        none = np.empty(0, np.int8)
        return Timeline(graph, nothing, nothing.copy(), landed, none, nothing.copy())
    columns = _columns(graph)
    plan, shape = _plan(graph, columns)
    done = kernels.run(plan, shape.shift, shape.num_streams, shape.num_flights, shape.has_instant)
    if plan.flights.status[0] == kernels.TOO_LATE:
        raise EngineError(_too_long(kernels.NEVER >> shape.shift, len(graph.resources)))
    if plan.flights.status[0] == kernels.EARLY_RELEASE:
        giver, taker = (graph.describe(int(task)) for task in plan.flights.status[1:])
        message = f"{giver} gives back credits before {taker} has taken them"
        raise EngineError(message)
    if plan.flights.status[0] == kernels.LATE_CHARGE:
        toucher, payer = (graph.describe(int(task)) for task in plan.flights.status[1:])
        message = f"{toucher} evicts at the cost of {payer}, which has started already"
        raise EngineError(message)
    if done < graph.num_tasks:
        raise EngineError(describe_deadlock(graph, _started(plan), _ready(plan)))
    landed = np.full(graph.gates.num_members, -1, np.int32)
    if graph.gates.num_members:
        slot = plan.members[:, kernels.MB_SLOT]
        landed[:] = plan.gate_slots[slot, kernels.SL_TILE]
    words, late = plan.flights.words, plan.lookups.extra_latency
    touched = plan.lookups.touched
    del plan  # everything but the records is free before the result takes its place
    start_ps, end_ps = (
        np.empty(graph.num_tasks, np.int64),
        np.empty(graph.num_tasks, np.int64),
    )
    kernels.unpack(columns, words, late, start_ps, end_ps)
    if len(graph.touches) == 0:
        late = np.broadcast_to(np.int64(0), (graph.num_tasks,))
    return Timeline(graph, start_ps, end_ps, landed, touched, late)


def _too_long(limit_ps: int, num_resources: int) -> str:
    return (
        f"the schedule is longer than {limit_ps / 1e12:.0f} s, the most the clock counts "
        f"with {num_resources} resources"
    )


def _started(plan: Any) -> npt.NDArray[np.bool_]:
    """Which tasks have taken a server."""
    from replay.graph import kernels

    return np.asarray(
        plan.flights.halves[kernels.MISSING :: kernels.HALVES][:-1] == kernels.STARTED
    )


def _ready(plan: Any) -> npt.NDArray[np.bool_]:
    """Which tasks wait for nothing but a server or credits."""
    from replay.graph import kernels

    return np.asarray(plan.flights.halves[kernels.MISSING :: kernels.HALVES][:-1] == 0)


def _columns(graph: TaskGraph) -> Any:
    """What the kernels read of a graph."""
    from replay.graph import kernels

    takes, touches = graph.takes, graph.touches
    nobody = np.zeros(1, np.int32), np.zeros(0, np.int32)
    by_taker = by_giver = by_toucher = nobody
    most = 0
    if len(takes):
        by_taker = kernels.group_rows(fixed(takes.task), graph.num_tasks)
        by_giver = kernels.group_rows(fixed(takes.released_by), graph.num_tasks)
        most = int(np.diff(by_taker[0]).max())
    if len(touches):
        by_toucher = kernels.group_rows(fixed(touches.task), graph.num_tasks)
    return kernels.Columns(
        resource=stepped(graph.resource),
        priority=stepped(graph.priority),
        duration=stepped(graph.duration_ps),
        latency=stepped(graph.latency_ps),
        indptr=fixed(graph.indptr),
        num_predecessors=fixed(graph.num_predecessors),
        successors=fixed(graph.successors),
        takes=kernels.Takes(
            task=fixed(takes.task),
            pool=fixed(takes.pool),
            units=fixed(takes.units),
            take_indptr=fixed(by_taker[0]),
            take_order=fixed(by_taker[1]),
            give_indptr=fixed(by_giver[0]),
            give_order=fixed(by_giver[1]),
            scratch=np.empty((most, 2), np.int64),
        ),
        touch_indptr=fixed(by_toucher[0]),
        touch_order=fixed(by_toucher[1]),
    )


def _offsets(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where each of the slices of the given sizes begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _plan(graph: TaskGraph, columns: Any) -> tuple[Any, SimpleNamespace]:
    """Lay out lanes, channels and stations, and fill the records.

    A resource is a *stream* if it has one server, all its tasks have one priority, and none of
    them takes or gives credits, touches a table or pays for an eviction: its order of service is
    its order of arrival, so a task's end is known as soon as it arrives. All other resources are
    *stations*, with an event for each end.
    Where a task is visible the moment it starts, an instant has several rounds, and it matters
    in which of them a server is free; then resources with tasks of no duration are stations too.
    """
    from replay.graph import kernels

    resources = graph.resources
    null = len(resources)
    table = np.zeros((7, null + 1), np.int64)
    slow = kernels.survey(columns, graph.num_tasks, kernels.NEVER >> 2, table)
    if slow >= 0:
        message = f"{graph.describe(int(slow))} takes longer than the clock can count"
        raise EngineError(message)
    has_lane = table[kernels.TASKS] > 0
    has_lane[null] = table[kernels.TAKERS, null] > 0
    servers = np.append(resources.servers.astype(np.int64), kernels.NEVER >> 1)
    rule = np.append(resources.discipline, VOQ).astype(np.int64)
    rule[(rule == TURNS) & (table[kernels.TAKERS] == 0)] = FIFO  # the same, where all have credits
    looks_up, late = who_looks_up(graph)
    is_mixed = table[kernels.IS_MIXED] > 0
    has_credits = (table[kernels.TAKERS] > 0) | (table[kernels.GIVERS] > 0)
    is_stream = has_lane & (servers == 1) & ~is_mixed & ~has_credits & ~looks_up
    has_instant = bool(table[kernels.INSTANT].any())
    if has_instant:
        is_stream &= table[kernels.ZERO] == 0
    is_station = has_lane & ~is_stream
    is_station[null] = has_credits[null]

    lane_rule = np.where(is_mixed, kernels.BY_PRIORITY, kernels.ONE_LANE)
    lane_rule[(rule != FIFO) & (table[kernels.TAKERS] > 0)] = kernels.BY_NEEDS
    is_single = has_lane & (lane_rule == kernels.ONE_LANE)
    # Streams have the first lanes, so that the kernel tells them by their number.
    of_single = np.concatenate([np.flatnonzero(is_stream), np.flatnonzero(is_single & ~is_stream)])
    packed = _pack(graph.num_tasks, columns, lane_rule, of_single, is_stream)
    late_channel = _add_late_channels(packed, late)
    lane_resource = np.concatenate([of_single, packed.keys[:, 0]])
    # Lanes of different resources meet when their heads want the same credits.
    lane_priority = np.concatenate([table[kernels.FIRST_PRIORITY, of_single], packed.keys[:, 1]])
    of_station = np.flatnonzero(is_station)  # the null resource, if it is one, comes last
    station_of = np.full(null + 1, -1, np.int64)
    station_of[of_station] = np.arange(of_station.size)
    room = np.minimum(servers, table[kernels.TASKS])[of_station]
    channels = _channels(packed, is_stream, room)
    shift = max(2, int(len(channels.table) - 1).bit_length())

    lanes = np.full((lane_resource.size, kernels.LANE_COLUMNS), -1, np.int64)
    lanes[:, kernels.LN_HEAD] = _offsets(packed.lane_tasks)[:-1]
    lanes[:, kernels.LN_TAIL] = lanes[:, kernels.LN_RUN] = lanes[:, kernels.LN_HEAD]
    lanes[:, [kernels.LN_FREE_AT, kernels.LN_TOUCHED]] = 0
    lanes[:, kernels.LN_PRIORITY] = lane_priority
    lanes[:, kernels.LN_STATION] = station_of[lane_resource]
    stations = np.zeros((of_station.size, kernels.STATION_COLUMNS), np.int64)
    stations[:, kernels.ST_FREE] = servers[of_station]
    stations[:, kernels.ST_RULE] = rule[of_station]
    stations[:, kernels.ST_CONTENDS] = ((table[kernels.TAKERS] > 0) | looks_up)[of_station]
    stations[:, kernels.ST_LOOKS_UP] = looks_up[of_station]
    stations[:, kernels.ST_LATE] = late_channel[of_station]
    lanes_per_resource = np.bincount(lane_resource, minlength=null + 1)
    stations[:, kernels.ST_BASE] = _offsets(lanes_per_resource[of_station])[:-1]
    pools = np.zeros((len(graph.pools), kernels.POOL_COLUMNS), np.int64)
    pools[:, kernels.PL_FREE] = graph.pools.capacity
    pools[:, kernels.PL_WAITING] = -1
    flights = kernels.Flights(
        words=packed.words,
        halves=packed.halves,
        successors=columns.successors,
        latency=columns.latency,
        slots=np.empty(channels.num_slots, np.int32),
        tree=np.full(2 << shift, kernels.NEVER, np.int64),
        channels=channels.table,
        heap_time=np.empty(channels.num_heap, np.int64),
        heap_task=np.empty(channels.num_heap, np.int32),
        status=np.zeros(3, np.int64),
        touch_indptr=columns.touch_indptr,
    )
    queues = kernels.Queues(
        lanes=lanes,
        stations=stations,
        station_lanes=np.empty(lane_resource.size, np.int64),
        pools=pools,
        rivals=np.full((len(stations) + len(pools), kernels.RIVAL_COLUMNS), -1, np.int64),
        nodes=packed.nodes,
        ways=packed.ways,
    )
    turn_indptr, turn_stations = turn_takers(graph, packed.keys, packed.nodes, station_of)
    plan = kernels.Plan(
        flights=flights,
        queues=queues,
        lookups=kernel_lookups(graph, columns),
        turn_indptr=turn_indptr,
        turn_stations=turn_stations,
        give_indptr=columns.takes.give_indptr,
        give_order=columns.takes.give_order,
        taker=columns.takes.task,
        stack=np.empty(packed.num_direct + 2, np.int32),
        touched=np.empty(lane_resource.size, np.int32),
        late=np.empty(of_single.size, np.int32),
        touched_stations=np.zeros(len(stations) + 1, np.int64),
        touched_pools=np.zeros(len(pools) + 1, np.int64),
        deferred=np.empty(lane_resource.size, np.int64),
        **_gate_state(graph),
    )
    shape = SimpleNamespace(
        shift=shift,
        num_streams=int(is_stream.sum()),
        num_flights=packed.num_flights,
        has_instant=has_instant,
    )
    return plan, shape


def _pack(
    num_tasks: int,
    columns: Any,
    lane_rule: npt.NDArray[np.int64],
    of_single: npt.NDArray[np.int64],
    is_stream: npt.NDArray[np.bool_],
) -> SimpleNamespace:
    """Fill the records, finding the lanes and flight classes on the way."""
    from replay.graph import kernels

    num_single = of_single.size
    single_lane = np.full(is_stream.size, -1, np.int64)
    single_lane[of_single] = np.arange(num_single)
    words = aligned(np.empty, num_tasks + 1, kernels.WORDS).reshape(-1)
    halves = words.view(np.int32)
    # Places: every resource, the null one, and the null one for tasks with credits.
    classes = np.zeros(((kernels.MAX_CLASSES + 1) * (is_stream.size + 1), 5), np.int64)
    first_class = np.full(is_stream.size + 1, -1, np.int64)
    sizes = np.zeros(5, np.int64)
    keys = nodes = ways = np.zeros((0, 3), np.int64)
    lane_tasks = np.zeros(0, np.int64)
    # No list is longer than the most that one task takes and gives back.
    room = 64 + columns.takes.scratch.shape[0]
    if len(columns.takes.give_order):
        room += int(np.diff(columns.takes.give_indptr).max())
    task = 0
    while True:
        # The tables grow together until no task finds one full.
        keys, table = grown(keys, room, int(sizes[kernels.LANES]))
        nodes, node_table = grown(nodes, room, int(sizes[kernels.NODES]))
        ways, way_table = grown(ways, room, int(sizes[kernels.WAYS]))
        more = np.zeros(num_single + room, np.int64)
        more[: lane_tasks.size] = lane_tasks
        lane_tasks = more
        task = kernels.pack(
            columns, task, num_tasks, lane_rule, single_lane, num_single, is_stream.view(np.uint8),
            lane_tasks, keys, table, nodes, node_table, ways, way_table,
            classes, first_class, sizes, words, halves,
        )  # fmt: skip
        if task == num_tasks:
            break
        room *= 2
    num_lanes = int(sizes[kernels.LANES])
    return SimpleNamespace(
        words=words,
        halves=halves,
        keys=keys[:num_lanes],
        nodes=nodes[: sizes[kernels.NODES]],
        ways=ways[: sizes[kernels.WAYS]],
        lane_tasks=lane_tasks[: num_single + num_lanes],
        single_lane=single_lane,
        classes=classes[: sizes[kernels.CLASSES]],
        first_class=first_class,
        num_flights=int(sizes[kernels.CLASSES]),
        num_direct=int(sizes[kernels.DIRECT]),
    )


def _add_late_channels(
    packed: SimpleNamespace, late: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Give each resource with touches that may be late a heap for them: (resource,), -1 for none.

    Everybody else keeps the order of leaving, and with it the queue of its latency.
    """
    from replay.graph import kernels

    where = np.flatnonzero(late)
    classes = np.zeros((where.size, packed.classes.shape[1]), np.int64)
    classes[:, kernels.NEXT] = -1
    classes[:, kernels.COUNT] = late[where]
    classes[:, kernels.KIND] = kernels.BY_HEAP
    classes[:, kernels.PLACE] = where
    channel = np.full(late.size, -1, np.int64)
    channel[where] = packed.num_flights + np.arange(where.size)
    packed.classes = np.concatenate([packed.classes, classes])
    packed.num_flights += where.size
    return channel


def _channels(
    packed: SimpleNamespace,
    is_stream: npt.NDArray[np.bool_],
    station_room: npt.NDArray[np.int64],
) -> SimpleNamespace:
    """Memory of the channels: flights first, one for each class, then one for each station.

    A stream whose tasks all have one latency needs no room for those in flight: they are the
    front of the very slice of ``slots`` they queued in.
    """
    from replay.graph import kernels

    classes, num_flights = packed.classes, packed.num_flights
    table = np.zeros((num_flights + station_room.size, kernels.CHANNEL_COLUMNS), np.int64)
    table[:, kernels.CH_KIND] = kernels.BY_HEAP
    table[:num_flights, kernels.CH_KIND] = classes[:, kernels.KIND]
    table[:num_flights, kernels.CH_LATENCY] = classes[:, kernels.LATENCY]
    room = np.concatenate([classes[:, kernels.COUNT], station_room])
    is_in_order = table[:, kernels.CH_KIND] == kernels.IN_ORDER

    place = classes[:, kernels.PLACE]
    is_only = packed.first_class[place] == np.arange(num_flights)
    is_only &= classes[:, kernels.NEXT] < 0
    is_shared = np.zeros(len(table), np.bool_)
    is_shared[:num_flights] = is_only & np.append(is_stream, False)[place]
    is_shared &= is_in_order
    slot_base = int(packed.lane_tasks.sum()) + _offsets(np.where(is_in_order & ~is_shared, room, 0))
    table[:, kernels.CH_HEAD] = slot_base[:-1]
    lane_head = _offsets(packed.lane_tasks)[:-1]
    lane = packed.single_lane[place[is_shared[:num_flights]]]
    table[is_shared, kernels.CH_HEAD] = lane_head[lane]
    table[:, kernels.CH_TAIL] = table[:, kernels.CH_HEAD]
    heap_base = _offsets(np.where(is_in_order, 0, room))
    table[:, kernels.CH_BASE] = heap_base[:-1]
    return SimpleNamespace(table=table, num_slots=int(slot_base[-1]), num_heap=int(heap_base[-1]))


def _gate_state(graph: TaskGraph) -> dict[str, npt.NDArray[Any]]:
    """What the kernel needs to hand out the gates' slots."""
    from replay.graph import kernels

    gates = graph.gates
    members = np.full((gates.num_members, kernels.MEMBER_COLUMNS), -1, np.int32)
    members[:, kernels.MB_GATE] = np.repeat(np.arange(len(gates)), np.diff(gates.member_indptr))
    members[:, kernels.MB_WAITER] = gates.member_waiter
    gate_slots = np.full((gates.num_members, kernels.SLOT_COLUMNS), -1, np.int32)
    gate_slots[:, kernels.SL_TILE] = np.repeat(np.arange(gates.num_tiles), gates.tile_slots)
    tiles = np.zeros((gates.num_tiles + 1, kernels.TILE_COLUMNS), np.int64)
    tiles[:, kernels.TL_BASE] = _offsets(gates.tile_slots)
    tiles[:-1, kernels.TL_OPEN] = gates.tile_slots
    tiles[:-1, kernels.TL_FIRST] = gates.tile_first
    return {
        "members": members,
        "gate_slot": gates.member_indptr[:-1].copy(),
        "gate_slots": gate_slots,
        "tiles": tiles,
        "arrivals": np.empty(gates.num_members, np.int64),
    }
