"""Reading where a run stands off the plan that ran, and putting it into one that has not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay.engine.kernels import layout as k
from replay.engine.state import FIXED, FLYING, FRESH, PAST, QUEUED, SERVING, Keys, LaidGraph, State
from replay.engine.taskgraph import LINE, Bools, Int8s, Int64s, TaskGraph

if TYPE_CHECKING:
    from types import SimpleNamespace


def add_channel_of_returns(packed: SimpleNamespace, state: State, is_stream: Bools) -> None:
    """Add a channel, kept as a heap, for tasks whose times are fixed already, whatever their latency."""
    one = np.zeros(1, k.CLASS.dtype)
    one["next"], one["kind"] = -1, k.BY_HEAP
    one["count"] = int(np.isin(state.status, (FIXED, SERVING, FLYING)).sum())
    one["place"] = is_stream.size - 1
    packed.classes = np.concatenate([packed.classes, one])
    packed.num_flights += 1


def restore(laid: LaidGraph, graph: TaskGraph, state: State) -> None:
    """Put a state into the parts of a plan that is not made yet."""
    parts, status = laid.parts, state.status
    count = status.size
    tasks, resource = parts["tasks"][:count], graph.resource[:count]
    station = laid.station[resource]
    is_giving = tasks["lane"] == k.GIVING_LANE
    on_station = (station >= 0) & (tasks["lane"] >= 0)
    flies = status == FLYING
    flies |= np.isin(status, (FIXED, SERVING)) & ~on_station & ~is_giving
    serves = (status == SERVING) & (on_station | is_giving)
    waits = (status == QUEUED) | ((status == FIXED) & on_station)

    tasks["duration"] += state.extra_service_ps
    tasks["missing"] = np.select([status == FRESH, waits], [state.missing, 1], default=k.STARTED)
    tasks["visible"] = np.select([status == FRESH, waits], [-1, state.ready_ps], default=state.visible_ps)
    if parts["extra_latency"].size:
        parts["extra_latency"][:count] = state.extra_latency_ps
    end = state.visible_ps - graph.latency_ps[:count] - state.extra_latency_ps
    late = np.flatnonzero(serves & (state.extra_latency_ps > 0) & ~is_giving)
    tasks["lane"][late] = k.LATE_LANE - station[late]

    queued = np.flatnonzero(waits)
    order = np.lexsort((queued, state.ready_ps[queued]))
    parts["queue"] = queued[order].astype(np.int32)
    parts["num_queued"] = queued.size
    parts["resume_at"] = state.now_ps

    _fill_heaps(parts, np.flatnonzero(flies), state.visible_ps, parts["num_flights"] - 1)
    in_service = np.flatnonzero(serves)
    for number in np.unique(station[in_service]).tolist():
        some = in_service[station[in_service] == number]
        _fill_heaps(parts, some, end, parts["num_flights"] + number)
        parts["stations"]["free"][number] -= int((~is_giving[some]).sum())
    _grow_tree(parts)

    lanes = parts["lanes"]
    of_stream = np.flatnonzero(np.isin(status, (FIXED, SERVING)) & ~on_station & (resource >= 0))
    lane = laid.single_lane[resource[of_stream]]
    np.maximum.at(lanes["free_at"], lane, end[of_stream])
    lines = np.flatnonzero(graph.resources.discipline[: state.line_free_ps.size] == LINE)
    lanes["free_at"][laid.single_lane[lines]] = state.line_free_ps[lines]

    parts["pools"]["free"][: state.free_units.size] = state.free_units
    _restore_shares(parts, graph, status)
    for number, name, of in laid.turning():
        lanes["served"][number] = state.turns.get(name, -1)
        parts["stations"]["served"][of] = state.served.get(name[0], 0)
    _restore_gates(parts, state)
    _restore_tables(parts, state, laid.known_keys)


def _fill_heaps(parts: dict[str, Any], tasks: Int64s, times: Int64s, number: int) -> None:
    """Put tasks into a channel that is a heap: what is in order is one."""
    tasks = tasks[np.argsort(times[tasks], kind="stable")]
    channel = parts["channels"][number]
    base = int(channel["base"])
    parts["heap_task"][base : base + tasks.size] = tasks
    parts["heap_time"][base : base + tasks.size] = times[tasks]
    channel["size"] = tasks.size


def _grow_tree(parts: dict[str, Any]) -> None:
    """Write the leaves of the channels that are heaps, and the minima above them."""
    tree, first, shift = parts["tree"], parts["first_leaf"], parts["shift"]
    channels = parts["channels"]
    filled = np.flatnonzero((channels["kind"] == k.BY_HEAP) & (channels["size"] > 0))
    soonest = parts["heap_time"][channels["base"][filled]]
    tree[first + filled] = (soonest << shift) | filled
    while first > 1:
        first >>= 1
        level = slice(first, 2 * first)
        tree[level] = np.minimum(tree[2 * first : 4 * first : 2], tree[2 * first + 1 : 4 * first : 2])


def _restore_shares(parts: dict[str, Any], graph: TaskGraph, status: Int8s) -> None:
    """Count those again that have not left yet."""
    takes = graph.takes
    rows = np.flatnonzero(takes.share >= 0)
    if rows.size:
        known = np.append(status, np.int8(FRESH))  # all others are fresh
        of = known[np.minimum(takes.released_by[rows], status.size)]
        is_left = np.isin(of, (FLYING, PAST))
        left = np.bincount(takes.share[rows], weights=~is_left, minlength=parts["shares"].size)
        parts["shares"]["left"] = left.astype(np.int64)


def _restore_gates(parts: dict[str, Any], state: State) -> None:
    for into, values in (
        (parts["members"]["slot"], state.member_slot),
        (parts["gate_slot"], state.next_slot),
        (parts["gate_slots"]["waiter"], state.slot_waiter),
        (parts["tiles"]["open"], state.open_slots),
        (parts["tiles"]["is_done"], state.is_done),
    ):
        into[: values.size] = values


def _restore_tables(parts: dict[str, Any], state: State, numbers: Int64s) -> None:
    """Put the keys back into their tables, in order, and what touches found into its rows."""
    known = state.keys
    for name in ("found", "port_served", "backing_served"):
        if parts[name].size:
            parts[name][: state.found.size] = getattr(state, name)
    if not len(known):
        return
    records, tables = parts["keys"], parts["tables"]
    # A form for each number of units: what a key takes is asked of the touch that brought it in.
    rooms, form = np.unique(known.units, return_inverse=True)
    forms = np.zeros(rooms.size, k.FORM.dtype)
    forms["room"] = rooms << k.ROOM_FLAGS
    records["form"][numbers] = parts["forms"].size + form
    parts["forms"] = np.concatenate([parts["forms"], forms])
    records["state"][numbers] = np.where(known.is_present, k.PRESENT, k.EVICTED)
    records["time"][numbers] = known.time
    records["arrival"][numbers] = known.arrival
    held = numbers[known.is_present]
    of_table = known.table[known.is_present]
    is_last = np.append(np.diff(of_table) != 0, True)[: held.size]
    is_first = np.append(True, np.diff(of_table) != 0)[: held.size]
    records["newer"][held] = np.where(is_last, -1, np.append(held[1:], -1)[: held.size])
    records["older"][held] = np.where(is_first, -1, np.append(-1, held[:-1])[: held.size])
    tables["oldest"][of_table[is_first]] = held[is_first]
    tables["newest"][of_table[is_last]] = held[is_last]
    np.subtract.at(tables["free"], of_table, known.units[known.is_present])


# ---- off a plan that ran -------------------------------------------------------------------------


def state_of(laid: LaidGraph, graph: TaskGraph, before: State) -> State:
    """Read where a run stands that was paused.

    Parameters
    ----------
    laid
        The layout of the plan that ran.
    graph
        The graph.
    before
        Where the run began.

    Returns
    -------
    The state, without since when those wait whose start is fixed.
    """
    arrays = laid.parts
    now, rounds = int(arrays["status"][k.NOW]), int(arrays["status"][k.ROUND])
    tasks = arrays["tasks"][:-1]
    visible, left = _remaining(arrays, tasks, now)
    lane, missing = (tasks[name][left] for name in ("lane", "missing"))
    on_station = (lane >= arrays["num_streams"]) | (lane <= k.LATE_LANE)
    # A record says since when a task waits at a station where others say when they are visible.
    waits_there = on_station & (missing == 0)
    status = np.full(graph.num_tasks, PAST, np.int8)
    extra_service, extra_latency, ready = (np.zeros(graph.num_tasks, np.int64) for _ in range(3))
    if arrays["extra_latency"].size:
        extra_latency[left] = arrays["extra_latency"][left]
    has_server = graph.resource[left] >= 0
    duration = graph.duration_ps[left]
    extra_service[left] = np.where(has_server, tasks["duration"][left] - duration, 0)
    end = visible[left] - graph.latency_ps[left] - extra_latency[left]
    start = end - duration - extra_service[left]
    is_delay, is_fresh = lane == k.NO_LANE, missing > 0
    waits = ~is_fresh & ((visible[left] < 0) | waits_there)
    # What begins now has begun if a round of this moment is over; a station knows it anyway.
    begun = (start < now) | ((start == now) & (rounds > 0)) | ~has_server
    begun |= on_station & (missing == k.STARTED)
    status[left] = np.select(
        [is_fresh, waits, ~begun, (end <= now) | is_delay],
        [FRESH, QUEUED, FIXED, FLYING],
        default=SERVING,
    )
    ready[left] = np.where(waits_there, visible[left], now)
    unmet = np.zeros(graph.num_tasks, np.int32)
    unmet[left] = np.where(is_fresh, missing, 0)
    return State(
        now_ps=now,
        status=status,
        missing=unmet,
        ready_ps=ready,
        visible_ps=visible,
        extra_service_ps=extra_service,
        extra_latency_ps=extra_latency,
        free_units=arrays["pools"]["free"].copy(),
        line_free_ps=_line_free(laid, graph, before),
        **_turns_of(laid, graph, before),
        keys=_keys_of(laid, graph, before, status),
        found=arrays["found"],
        port_served=_or_none(arrays["port_served"], len(graph.touches)),
        backing_served=_or_none(arrays["backing_served"], len(graph.touches)),
        **_gates_of(arrays),
    )


def _remaining(arrays: dict[str, Any], tasks: npt.NDArray[Any], now_ps: int) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """Visibility time of each task (task,), and the tasks that are not over (left task,)."""
    from replay.engine.kernels.reading import PausedRecords, find_left

    visible, left = np.empty(tasks.size, np.int64), np.empty(tasks.size, np.int32)
    paused = PausedRecords(
        num_tasks=tasks.size,
        num_streams=arrays["num_streams"],
        now=now_ps,
        tasks=arrays["tasks"],
        visible=visible,
        left=left,
    )
    return visible, left[: find_left(paused)].copy()


def _or_none(served: Int64s, count: int) -> Int64s:
    return served if served.size else np.zeros(count, np.int64)


def _gates_of(arrays: dict[str, Any]) -> dict[str, Any]:
    return {
        "member_slot": arrays["members"]["slot"].astype(np.int64),
        "next_slot": arrays["gate_slot"].copy(),
        "slot_waiter": arrays["gate_slots"]["waiter"].astype(np.int64),
        "open_slots": arrays["tiles"]["open"][:-1].copy(),
        "is_done": arrays["tiles"]["is_done"][:-1] == 1,
    }


def _line_free(laid: LaidGraph, graph: TaskGraph, before: State) -> Int64s:
    """(resource,): until when lines serve what they have been asked for."""
    free = np.zeros(len(graph.resources), np.int64)
    free[: before.line_free_ps.size] = before.line_free_ps
    lines = np.flatnonzero(graph.resources.discipline == LINE)
    free[lines] = laid.parts["lanes"]["free_at"][laid.single_lane[lines]]
    return free


def _turns_of(laid: LaidGraph, graph: TaskGraph, before: State) -> dict[str, Any]:
    arrays = laid.parts
    turns, served = dict(before.turns), dict(before.served)
    for lane, name, _ in laid.turning():
        turns[name] = int(arrays["lanes"]["served"][lane])
    for resource in range(len(graph.resources)):
        station = int(laid.station[resource])
        if station >= 0:
            served[resource] = int(arrays["stations"]["served"][station])
    return {"turns": turns, "served": served}


def _keys_of(laid: LaidGraph, graph: TaskGraph, before: State, status: Int8s) -> Keys:
    """Keys that tables hold, those of a table from its oldest to its newest, and others asked for.

    The others are those that somebody who is left will ask for, and that a table has held.
    """
    arrays = laid.parts
    records = arrays["keys"]
    if not records.size:
        return Keys.none()
    touch, known, touches = arrays["touches"], before.keys, graph.touches
    chains: list[int] = []
    newer = records["newer"].tolist()
    for oldest in arrays["tables"]["oldest"].tolist():
        while oldest >= 0:
            chains.append(oldest)
            oldest = newer[oldest]
    is_gone = np.zeros(records.size, np.bool_)
    is_gone[touch["key"][status[touches.task[touch["row"]]] != PAST]] = True
    is_gone &= records["state"] == k.EVICTED
    numbers = np.concatenate([np.array(chains, np.int64), np.flatnonzero(is_gone)])
    # Which they are: some were known before, and some touch asks for each of the others.
    is_told = is_gone.copy()
    is_told[chains] = True
    table, key = np.zeros(records.size, np.int64), np.zeros(records.size, np.int64)
    table[laid.known_keys], key[laid.known_keys] = known.table, known.key
    asks = np.flatnonzero(is_told[touch["key"]])
    of, row = touch["key"][asks], touch["row"][asks]
    table[of], key[of] = touches.table[row], touches.key[row]
    return Keys(
        table=table[numbers],
        key=key[numbers],
        units=arrays["forms"]["room"][records["form"][numbers]] >> k.ROOM_FLAGS,
        time=records["time"][numbers],
        arrival=records["arrival"][numbers],
        is_present=np.arange(numbers.size) < len(chains),
    )
