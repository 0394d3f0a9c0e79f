"""Scheduling a task graph: prepares the kernel's arrays, runs it, and reads the result.

The semantics are in ``replay/DESIGN.md`` (engine semantics); how the kernel gets its speed, too.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.graph.columns import fixed, stepped
from replay.graph.errors import EngineError
from replay.graph.stuck import describe_deadlock
from replay.graph.taskgraph import TaskGraph
from replay.graph.timeline import Timeline

_CACHE_LINE = 64


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
        yet, or if the schedule is longer than the clock can count (40 hours with 64 resources,
        shorter in proportion to more).

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
        return Timeline(graph, nothing, nothing.copy(), landed)
    columns, gives = _columns(graph)
    plan, shape = _plan(graph, columns, gives)
    has_events = len(graph.takes) > 0 or graph.gates.num_tiles > 0
    run = kernels.run_full if has_events else kernels.run_plain
    done = run(plan, shape.shift, shape.num_streams, shape.num_flights, shape.has_instant)
    if plan.status[0] == kernels.TOO_LATE:
        raise EngineError(_too_long(kernels.NEVER >> shape.shift, len(graph.resources)))
    if plan.status[0] == kernels.EARLY_RELEASE:
        giver, taker = (graph.describe(int(task)) for task in plan.status[1:])
        message = f"{giver} gives back credits before {taker} has taken them"
        raise EngineError(message)
    if done < graph.num_tasks:
        raise EngineError(describe_deadlock(graph, _started(plan), _ready(plan)))
    landed = np.full(graph.gates.num_members, -1, np.int32)
    if graph.gates.num_members:
        landed[:] = plan.slot_tile[plan.member_slot]
    words = plan.words
    del plan  # everything but the records is free before the result takes its place
    start_ps, end_ps = np.empty(graph.num_tasks, np.int64), np.empty(graph.num_tasks, np.int64)
    kernels.unpack(columns, words, start_ps, end_ps)
    return Timeline(graph, start_ps, end_ps, landed)


def _too_long(limit_ps: int, num_resources: int) -> str:
    return (
        f"the schedule is longer than {limit_ps / 1e12:.0f} s, the most the clock counts "
        f"with {num_resources} resources"
    )


def _started(plan: Any) -> npt.NDArray[np.bool_]:
    """Which tasks have taken a server."""
    from replay.graph import kernels

    return np.asarray(plan.halves[kernels.MISSING :: kernels.HALVES][:-1] == kernels.STARTED)


def _ready(plan: Any) -> npt.NDArray[np.bool_]:
    """Which tasks wait for nothing but a server or credits."""
    from replay.graph import kernels

    return np.asarray(plan.halves[kernels.MISSING :: kernels.HALVES][:-1] == 0)


def _columns(graph: TaskGraph) -> tuple[Any, SimpleNamespace]:
    """What the kernels read of a graph: columns, and credits by taker and by giver."""
    from replay.graph import kernels

    takes = graph.takes
    need_indptr = give_indptr = np.zeros(1, np.int32)
    need_pool = np.zeros(0, np.int32)
    need_units = np.zeros(0, np.int64)
    gives = SimpleNamespace(pool=need_pool, units=need_units, taker=need_pool)
    if len(takes):
        task, released_by = fixed(takes.task), fixed(takes.released_by)
        need_indptr, order = kernels.group_rows(task, graph.num_tasks)
        need_pool, need_units = takes.pool[order], takes.units[order]
        kept = kernels.merge_needs(need_indptr, need_pool, need_units)
        need_pool, need_units = need_pool[:kept], need_units[:kept]
        give_indptr, order = kernels.group_rows(released_by, graph.num_tasks)
        gives = SimpleNamespace(
            pool=takes.pool[order], units=takes.units[order], taker=takes.task[order]
        )
    columns = kernels.Columns(
        resource=stepped(graph.resource),
        priority=stepped(graph.priority),
        duration=stepped(graph.duration_ps),
        latency=stepped(graph.latency_ps),
        indptr=fixed(graph.indptr),
        num_predecessors=fixed(graph.num_predecessors),
        need_indptr=fixed(need_indptr),
        need_pool=fixed(need_pool),
        need_units=fixed(need_units),
        give_indptr=fixed(give_indptr),
    )
    return columns, gives


def _records(num_tasks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Records of all tasks and one more, aligned so that none straddles a cache line."""
    from replay.graph import kernels

    size = (num_tasks + 1) * kernels.WORDS
    raw = np.empty(size + _CACHE_LINE // 8, np.int64)
    offset = (-raw.ctypes.data % _CACHE_LINE) // 8
    words = raw[offset : offset + size]
    return words, words.view(np.int32)


def _offsets(sizes: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Where each of the slices of the given sizes begins, and where the last one ends."""
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _plan(graph: TaskGraph, columns: Any, gives: SimpleNamespace) -> tuple[Any, SimpleNamespace]:
    """Lay out lanes, channels and stations, and fill the records.

    A resource is a *stream* if it has one server, all its tasks have one priority, and none of
    them takes or gives credits: its order of service is its order of arrival, so a task's end is
    known as soon as it arrives. All other resources are *stations*, with an event for each end.
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
    is_voq = np.append(resources.is_voq, True)
    is_mixed = table[kernels.IS_MIXED] > 0
    has_credits = (table[kernels.TAKERS] > 0) | (table[kernels.GIVERS] > 0)
    is_stream = has_lane & (servers == 1) & ~is_mixed & ~has_credits
    has_instant = bool(table[kernels.INSTANT].any())
    if has_instant:
        is_stream &= table[kernels.ZERO] == 0
    is_station = has_lane & ~is_stream
    is_station[null] = has_credits[null]

    lane_rule = np.where(is_mixed, kernels.BY_PRIORITY, kernels.ONE_LANE)
    lane_rule[is_voq & (table[kernels.TAKERS] > 0)] = kernels.BY_NEEDS
    is_single = has_lane & (lane_rule == kernels.ONE_LANE)
    # Streams have the first lanes, so that the kernel tells them by their number.
    of_single = np.concatenate([np.flatnonzero(is_stream), np.flatnonzero(is_single & ~is_stream)])
    single_lane = np.full(null + 1, -1, np.int64)
    single_lane[of_single] = np.arange(of_single.size)

    words, halves = _records(graph.num_tasks)
    classes = np.zeros(((kernels.MAX_CLASSES + 1) * (null + 2), 5), np.int64)
    first_class = np.full(null + 2, -1, np.int64)
    keys, lane_tasks, num_flights, num_direct = kernels.pack(
        columns, lane_rule, single_lane, of_single.size, is_stream.astype(np.uint8),
        classes, first_class, words, halves,
    )  # fmt: skip
    lane_resource = np.concatenate([of_single, keys[:, 0]])
    # Lanes of different resources meet when their heads want the same credits.
    lane_priority = np.concatenate([table[kernels.FIRST_PRIORITY, of_single], keys[:, 1]])
    num_streams = int(is_stream.sum())
    of_station = np.flatnonzero(is_station)  # the null resource, if it is one, comes last
    station_of = np.full(null + 1, -1, np.int64)
    station_of[of_station] = np.arange(of_station.size)
    lane_station = station_of[lane_resource]

    channels = _channels(
        classes[:num_flights], first_class, is_stream, single_lane, lane_tasks,
        np.minimum(servers, table[kernels.TASKS])[of_station],
    )  # fmt: skip
    num_lanes = lane_resource.size
    num_channels = channels.kind.size
    shift = max(2, int(num_channels - 1).bit_length())
    lanes_per_station = np.bincount(
        lane_station[lane_station >= 0], minlength=of_station.size
    ).astype(np.int64)
    lane_head = _offsets(lane_tasks)[:-1]
    plan = kernels.Plan(
        words=words,
        halves=halves,
        successors=fixed(graph.successors),
        latency=columns.latency,
        slots=np.empty(channels.num_slots, np.int32),
        tree=np.full(2 << shift, kernels.NEVER, np.int64),
        channel_head=channels.head,
        channel_tail=channels.head.copy(),
        channel_kind=channels.kind,
        channel_latency=channels.latency,
        heap_base=channels.heap_base,
        heap_size=np.zeros(num_channels, np.int64),
        heap_time=np.empty(channels.num_heap, np.int64),
        heap_task=np.empty(channels.num_heap, np.int32),
        lane_station=lane_station,
        lane_priority=lane_priority,
        lane_head=lane_head,
        lane_tail=lane_head.copy(),
        lane_run=lane_head.copy(),
        lane_run_time=np.full(num_lanes, -1, np.int64),
        lane_free_at=np.zeros(num_lanes, np.int64),
        lane_is_touched=np.zeros(num_lanes, np.uint8),
        lane_place=np.full(num_lanes, -1, np.int64),
        lane_pool=np.full(num_lanes, -1, np.int64),
        lane_next=np.full(num_lanes, -1, np.int64),
        lane_previous=np.full(num_lanes, -1, np.int64),
        station_free=servers[of_station],
        station_is_voq=is_voq[of_station].astype(np.uint8),
        station_takes=(table[kernels.TAKERS] > 0)[of_station].astype(np.uint8),
        station_base=_offsets(lanes_per_station)[:-1],
        station_size=np.zeros(of_station.size, np.int64),
        station_lanes=np.empty(num_lanes, np.int64),
        station_is_touched=np.zeros(of_station.size, np.uint8),
        need_indptr=columns.need_indptr,
        need_pool=columns.need_pool,
        need_units=columns.need_units,
        give_indptr=columns.give_indptr,
        give_pool=fixed(gives.pool),
        give_units=fixed(gives.units),
        give_taker=fixed(gives.taker),
        pool_free=graph.pools.capacity.copy(),
        pool_waiting=np.full(len(graph.pools), -1, np.int64),
        pool_is_touched=np.zeros(len(graph.pools), np.uint8),
        stack=np.empty(num_direct + 2, np.int32),
        touched=np.empty(num_lanes + 1, np.int32),
        stations=np.zeros(of_station.size + 1, np.int64),
        pools=np.zeros(len(graph.pools) + 1, np.int64),
        late=np.zeros(num_streams + 1, np.int64),
        status=np.zeros(3, np.int64),
        **_gate_state(graph),
    )
    shape = SimpleNamespace(
        shift=shift, num_streams=num_streams, num_flights=int(num_flights), has_instant=has_instant
    )
    return plan, shape


def _channels(
    classes: npt.NDArray[np.int64],
    first_class: npt.NDArray[np.int64],
    is_stream: npt.NDArray[np.bool_],
    single_lane: npt.NDArray[np.int64],
    lane_tasks: npt.NDArray[np.int64],
    station_room: npt.NDArray[np.int64],
) -> SimpleNamespace:
    """Memory of the channels: flights first, one for each class, then one for each station.

    A stream whose tasks all have one latency needs no room for those in flight: they are the
    front of the very slice of ``slots`` they queued in.
    """
    from replay.graph import kernels

    num_flights, num_stations = len(classes), station_room.size
    num_queued = int(lane_tasks.sum())
    kind = np.full(num_flights + num_stations, kernels.BY_HEAP, np.uint8)
    kind[:num_flights] = classes[:, kernels.KIND]
    room = np.concatenate([classes[:, kernels.COUNT], station_room])
    latency = np.zeros(num_flights + num_stations, np.int64)
    latency[:num_flights] = classes[:, kernels.LATENCY]

    is_shared = np.zeros(num_flights, np.bool_)
    place = classes[:, kernels.PLACE]
    is_only = (first_class[place] == np.arange(num_flights)) & (classes[:, kernels.NEXT] < 0)
    is_of_stream = np.append(is_stream, False)[place]
    is_shared = is_only & is_of_stream & (classes[:, kernels.KIND] == kernels.IN_ORDER)
    own_slots = np.where(kind == kernels.IN_ORDER, room, 0)
    own_slots[:num_flights][is_shared] = 0
    slot_base = num_queued + _offsets(own_slots)
    head = slot_base[:-1].copy()
    lane_head = _offsets(lane_tasks)[:-1]
    head[:num_flights][is_shared] = lane_head[single_lane[place[is_shared]]]
    heap_base = _offsets(np.where(kind == kernels.BY_HEAP, room, 0))
    return SimpleNamespace(
        kind=kind,
        latency=latency,
        head=head,
        heap_base=heap_base[:-1].copy(),
        num_slots=int(slot_base[-1]),
        num_heap=int(heap_base[-1]),
    )


def _gate_state(graph: TaskGraph) -> dict[str, npt.NDArray[Any]]:
    """What the kernel needs to hand out the gates' slots."""
    gates = graph.gates
    tile_indptr = _offsets(gates.tile_slots)
    return {
        "member_gate": np.repeat(
            np.arange(len(gates), dtype=np.int32), np.diff(gates.member_indptr)
        ),
        "member_waiter": fixed(gates.member_waiter),
        "member_slot": np.full(gates.num_members, -1, np.int32),
        "gate_slot": gates.member_indptr[:-1].copy(),
        "slot_tile": np.repeat(np.arange(gates.num_tiles, dtype=np.int32), gates.tile_slots),
        "slot_waiter": np.full(gates.num_members, -1, np.int32),
        "tile_indptr": tile_indptr,
        "tile_open": gates.tile_slots.astype(np.int64),
        "tile_first": fixed(gates.tile_first),
        "tile_is_done": np.zeros(gates.num_tiles, np.uint8),
        "arrivals": np.empty(gates.num_members, np.int32),
    }
