# mypy: allow-untyped-defs, allow-untyped-calls
"""The loop over the instants of a run.

In the twin: ``run``, ``apply_everything_that_happens_now`` and ``become_visible``.
"""

from __future__ import annotations

from replay.engine.backend.compiling import entry, inline, inner
from replay.engine.kernels.channels import receive
from replay.engine.kernels.events import (
    admit_arrivals,
    close_tile,
    leave,
    make_ready,
    make_ready_apart,
)
from replay.engine.kernels.lanes import sort_ids, touch_station
from replay.engine.kernels.layout import (
    GIVING_LANE,
    NEVER,
    NOW,
    OK,
    QUEUED,
    ROUND,
    SIGNALS,
    RunPlan,
)
from replay.engine.kernels.starts import commit, commit_apart, order_lane, serve_stations


@inline
def _become_visible(p, task):
    """Meet the dependencies of a task's successors, and collect its events at gates."""
    for edge in range(p.tasks[task].edges, p.tasks[task + 1].edges):
        target = p.successors[edge]
        if target >= 0:
            missing = p.tasks[target].missing - 1
            p.tasks[target].missing = missing
            if missing == 0:
                make_ready(p, target)
        elif -1 - target < p.num_members:
            p.arrivals[p.num_arrivals] = -1 - target
            p.num_arrivals += 1
        elif -1 - target - p.num_members < p.num_tiles:
            close_tile(p, -1 - target - p.num_members)
        else:
            p.num_signals += 1


@inline
def _apply_what_happens_now(p):
    """Phase 1: everything that leaves or becomes visible now. Returns how many became visible."""
    done = 0
    while True:
        if p.num_stack > 0:
            p.num_stack -= 1
            task = p.stack[p.num_stack]
        else:
            key = p.tree[1]
            if key >> p.shift != p.now:
                if p.num_arrivals == 0:
                    return done
                admit_arrivals(p)
                continue
            channel = key & ((1 << p.shift) - 1)
            task = receive(p, channel)
            if channel >= p.num_flights:
                if p.tasks[task].lane != GIVING_LANE:
                    p.stations[channel - p.num_flights].free += 1
                    touch_station(p, channel - p.num_flights)
                leave(p, task)
                continue
        done += 1
        _become_visible(p, task)


@inline
def _serve_touched_lanes(p, is_final):
    """Phase 2, lanes: fix what starts in streams, order what waits at stations."""
    count = p.num_touched_lanes
    p.num_touched_lanes = 0
    for index in range(count):
        number = p.touched_lanes[index]
        if number >= p.num_streams:
            order_lane(p, number)
            continue
        lane = p.lanes[number]
        low = lane.run
        high = lane.tail
        if high - low > 1:
            sort_ids(p.slots, low, high)
        if not is_final and lane.is_line < 0:
            # A task that is visible the moment it starts opens a further round of this instant,
            # which may bring tasks that go before those still queued here: fix only what starts
            # now.
            stop = low
            if lane.free_at <= p.now:
                stop = low + 1
            if stop < high:
                p.late_lanes[p.num_late_lanes] = number
                p.num_late_lanes += 1
            high = stop
        if low < high:
            commit(p, number, low, high)


@inner
def _queue_again(p):
    """Let those queue that waited at the pause, in the order in which they became ready."""
    for place in range(p.num_queued):
        number = p.queue[place]
        task = p.tasks[number]
        ready = task.visible
        task.missing = 0
        lane = p.lanes[task.lane]
        tail = lane.tail
        if task.lane < p.num_streams:
            task.visible = -1
            if ready == p.now:
                make_ready_apart(p, number)
                continue
            p.slots[tail] = number
            lane.tail = tail + 1
            commit_apart(p, task.lane, tail, tail + 1)
            continue
        p.slots[tail] = number
        lane.tail = tail + 1
        if lane.run_time != ready:
            lane.run_time = ready
            lane.run = tail
        if lane.touched == 0:
            lane.touched = 1
            p.touched_lanes[p.num_touched_lanes] = task.lane
            p.num_touched_lanes += 1
    p.num_queued = 0


@entry(RunPlan)
def run(p):
    """Replay the graph until its end or a signal; returns how many tasks became visible.

    A signal ends the run when everything that happens at this moment has happened and nothing
    has started yet: whatever else is ready now may still be added.
    """
    done = 0
    is_final = p.has_instant == 0
    for task in range(p.num_tasks):
        if p.tasks[task].missing == 0:
            make_ready_apart(p, task)
    while p.status[0] == OK:
        if p.num_queued > 0 and p.now == p.resume_at:
            _queue_again(p)
        done += _apply_what_happens_now(p)
        if p.num_signals > 0:
            break
        _serve_touched_lanes(p, is_final)
        if p.num_touched_stations > 0 or p.num_touched_pools > 0:
            serve_stations(p)
        p.round += 1
        is_final = p.has_instant == 0
        if p.tree[1] >> p.shift == p.now:
            continue
        if p.num_late_lanes > 0:
            # No further round: once more for what was left open.
            for index in range(p.num_late_lanes):
                p.touched_lanes[index] = p.late_lanes[index]
            p.num_touched_lanes = p.num_late_lanes
            p.num_late_lanes = 0
            is_final = True
            continue
        if p.tree[1] == NEVER and p.num_queued == 0:
            break
        following = p.tree[1] >> p.shift
        if p.num_queued > 0 and following > p.resume_at:
            following = p.resume_at
        p.now = following
        p.round = 0
    p.status[NOW] = p.now
    p.status[ROUND] = p.round
    p.status[SIGNALS] = p.num_signals
    p.status[QUEUED] = p.num_queued
    return done
