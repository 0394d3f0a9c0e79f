"""Putting where a run stands into a plan that has not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from replay.engine.kernels import layout as k
from replay.engine.state import FIXED, FLYING, FRESH, PAST, QUEUED, SERVING, Laid, State
from replay.engine.taskgraph import LINE, Bools, Int8s, Int64s, TaskGraph

if TYPE_CHECKING:
    from types import SimpleNamespace


def add_channel_of_returns(packed: SimpleNamespace, state: State, is_stream: Bools) -> None:
    """Add a heap from which what is fixed already comes back, whatever its latency."""
    one = np.zeros(1, k.CLASS.dtype)
    one["next"], one["kind"] = -1, k.BY_HEAP
    one["count"] = int(np.isin(state.status, (FIXED, SERVING, FLYING)).sum())
    one["place"] = is_stream.size - 1
    packed.classes = np.concatenate([packed.classes, one])
    packed.num_flights += 1


def restore(laid: Laid, graph: TaskGraph, state: State) -> None:
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
    tasks["visible"] = np.select(
        [status == FRESH, waits], [-1, state.ready_ps], default=state.visible_ps
    )
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
        tree[level] = np.minimum(
            tree[2 * first : 4 * first : 2], tree[2 * first + 1 : 4 * first : 2]
        )


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
