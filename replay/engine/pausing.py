"""Reading where a run stands that was paused, off the plan that ran."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.kernels import layout as k
from replay.engine.state import FIXED, FLYING, FRESH, PAST, QUEUED, SERVING, Keys, Laid, State
from replay.engine.taskgraph import LINE, Int8s, Int64s, TaskGraph


def state_of(laid: Laid, graph: TaskGraph, before: State) -> State:
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
    visible, left = _left(arrays, tasks, now)
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


def _left(
    arrays: dict[str, Any], tasks: npt.NDArray[Any], now_ps: int
) -> tuple[Int64s, npt.NDArray[np.int32]]:
    """When each task is visible (task,), and the tasks that are not over (left task,)."""
    from replay.engine.kernels.reading import Paused, find_left

    visible, left = np.empty(tasks.size, np.int64), np.empty(tasks.size, np.int32)
    paused = Paused(
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


def _line_free(laid: Laid, graph: TaskGraph, before: State) -> Int64s:
    """(resource,): until when lines serve what they have been asked for."""
    free = np.zeros(len(graph.resources), np.int64)
    free[: before.line_free_ps.size] = before.line_free_ps
    lines = np.flatnonzero(graph.resources.discipline == LINE)
    free[lines] = laid.parts["lanes"]["free_at"][laid.single_lane[lines]]
    return free


def _turns_of(laid: Laid, graph: TaskGraph, before: State) -> dict[str, Any]:
    arrays = laid.parts
    turns, served = dict(before.turns), dict(before.served)
    for lane, name, _ in laid.turning():
        turns[name] = int(arrays["lanes"]["served"][lane])
    for resource in range(len(graph.resources)):
        station = int(laid.station[resource])
        if station >= 0:
            served[resource] = int(arrays["stations"]["served"][station])
    return {"turns": turns, "served": served}


def _keys_of(laid: Laid, graph: TaskGraph, before: State, status: Int8s) -> Keys:
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
