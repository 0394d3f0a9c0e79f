"""Scheduling a graph that is given in parts, exactly as if it had been given at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from replay.graph.engine import raise_if_failed
from replay.graph.errors import EngineError
from replay.graph.joining import with_part
from replay.graph.met import Met, last_met
from replay.graph.pausing import state_of
from replay.graph.recent import Recent
from replay.graph.state import FIXED, FLYING, FRESH, PAST, QUEUED, SERVING, State
from replay.graph.stuck import describe_deadlock
from replay.graph.taskgraph import Bools, GraphPart, Int64s, TaskGraph
from replay.graph.timeline import Drawn, Timeline
from replay.graph.windows import Window

NEVER = 2**63 - 1
#: Tasks that are over and that a part waits for, for which there is room without a copy.
_MOST_REPORTED = 1024


class OutOfOrderError(EngineError):
    """A part came too late: something of it should have happened before what has happened."""


@dataclass(frozen=True, eq=False)
class Piece:
    """What has become of a graph since the piece before.

    Attributes
    ----------
    timeline
        The schedule of a window of the graph; its times hold where `is_done`.
    is_done
        (task,): tasks that became visible in this piece. Every task of the graph is done in one
        piece; its touches, and what they drew, are in the same one.
    ids, touch_ids
        (task,), (touch,): numbers in the whole.
    met
        When each task became ready, and for whom it waited last.
    now_ps
        The moment up to which everything has happened.
    begun_since_ps
        When the first of the tasks began that have begun and are not over; `NEVER` for none.
    served_since_ps, waits_since_ps
        Of the tasks that are not over, when the first of those in service began, and since when the
        first of those waited that had to wait for a server; both `NEVER` if there are none.
    """

    timeline: Timeline
    is_done: Bools
    ids: Int64s
    touch_ids: Int64s
    met: Met
    now_ps: int
    begun_since_ps: int
    served_since_ps: int
    waits_since_ps: int


class Scheduler:
    """Schedules a graph part by part.

    The schedule is that of the whole graph, to the picosecond, whatever the parts. A part may be
    added as late as at the moment at which the first task becomes visible that it waits for:
    `GraphBuilder.part` is told which tasks to look out for, and `run` stops when one of them is
    visible. Tasks that wait only for what was visible earlier are scheduled in the past, which is
    refused if anything has happened since at their resources.
    """

    def __init__(self) -> None:
        self._window: Window | None = None
        self._visible_ps = Recent()
        self._busy_until = np.zeros(0, np.int64)  # (resource,)

    def add(self, part: GraphPart) -> None:
        """Add a part.

        Raises
        ------
        GraphError
            If it waits for a task that is long over, or asks for keys of earlier parts.
        """
        awaited = self._visible_ps.begin(part)
        if self._window is None:
            self._window = Window.of(part)
        else:
            over = np.setdiff1d(awaited, self._window.ids[self._window.state.status != PAST])
            self._window = with_part(self._window, part, over, self._visible_ps.of(over))
        more = len(part.graph.resources) - self._busy_until.size
        self._busy_until = np.append(self._busy_until, np.zeros(more, np.int64))

    @property
    def room(self) -> int:
        """Rows that what is left may take in front of the next part; see `GraphBuilder.part`."""
        if self._window is None:
            return 0
        graph = self._window.graph
        return max(graph.num_tasks + _MOST_REPORTED, len(graph.takes), len(graph.touches))

    @property
    def is_over(self) -> bool:
        """Whether all tasks of all parts are over."""
        return self._window is None or not self._window.graph.num_tasks

    def run(self) -> Piece:
        """Go on until a task is visible that was to be looked out for, or to the end.

        Raises
        ------
        EngineError
            As for `schedule`.
        OutOfOrderError
            If a task of the last part should have begun while its resource did something else.
        """
        from replay.graph.kernels import layout, run
        from replay.graph.plan import make_plan

        window = self._window
        assert window is not None
        graph, before = window.graph, window.state
        plan, laid = make_plan(graph, before)
        run(plan)
        raise_if_failed(graph, plan)
        arrays = plan.arrays
        if arrays["status"][layout.QUEUED]:
            message = "a part was at its end before those before it went on"
            raise OutOfOrderError(message)
        state = state_of(laid, graph, before)
        is_over = state.status == PAST
        if not arrays["status"][layout.SIGNALS] and not is_over.all():
            is_started = ~np.isin(state.status, (FRESH, QUEUED, FIXED))
            raise EngineError(describe_deadlock(graph, is_started, state.status == QUEUED))
        timeline = _timeline(graph, arrays, state)
        self._check_order(before, state, timeline)
        left = np.flatnonzero(~is_over)
        met, edges = last_met(timeline, (is_over.view(np.int8), 1), window.met, left)
        is_done = is_over & ~window.is_counted
        begun = np.isin(state.status, (SERVING, FLYING)) & (graph.resource >= 0)
        waits = np.isin(state.status, (QUEUED, FIXED)) & (graph.resource >= 0)
        waits |= begun & (timeline.start_ps > met.ready_ps)
        piece = Piece(
            timeline,
            is_done,
            window.ids,
            window.touch_ids,
            met,
            state.now_ps,
            begun_since_ps=int(
                timeline.start_ps[np.isin(state.status, (SERVING, FLYING, FIXED))].min(
                    initial=NEVER
                )
            ),
            served_since_ps=int(timeline.start_ps[begun].min(initial=NEVER)),
            waits_since_ps=int(met.ready_ps[waits].min(initial=NEVER)),
        )
        self._visible_ps.put(window.ids[is_done], state.visible_ps[is_done])
        # Of those whose start is fixed the records have lost since when they wait.
        since = np.where(state.status == FIXED, met.ready_ps, state.ready_ps)
        state = replace(state, ready_ps=since)
        after = Window(graph, state, window.touch_ids, window.is_counted | is_over, met)
        self._window = after.rest(edges)
        return piece

    def _check_order(self, before: State, state: State, timeline: Timeline) -> None:
        """Refuse what began before the pause where something else happened or waited."""
        graph, start, end = timeline.graph, timeline.start_ps, timeline.end_ps
        is_new = state.status != FRESH
        is_new[: before.status.size] &= before.status == FRESH
        early = np.flatnonzero(is_new & (start < before.now_ps) & (state.status != QUEUED))
        where = graph.resource[early]
        is_bad = (where >= 0) & (start[early] < self._busy_until[where])
        waits = np.zeros(len(graph.resources) + 1, np.bool_)
        waited = np.flatnonzero(np.isin(before.status, (QUEUED, FIXED)))
        waits[graph.resource[waited]] = True
        is_bad |= (where >= 0) & waits[where]
        if early.size:
            needs = np.zeros(graph.num_tasks, np.bool_)
            for tasks in (graph.takes.task, graph.takes.released_by, graph.touches.task):
                needs[tasks] = True
            is_bad |= needs[early]
        if is_bad.any():
            late = int(early[int(np.argmax(is_bad))])
            message = (
                f"{graph.describe(late)} should have begun at {int(start[late])} ps, "
                "before its part was added"
            )
            raise OutOfOrderError(message)
        served = np.flatnonzero((graph.resource >= 0) & (state.status >= FIXED))
        np.maximum.at(self._busy_until, graph.resource[served], end[served])
        lines = state.line_free_ps > 0
        self._busy_until[lines] = np.maximum(self._busy_until[lines], state.line_free_ps[lines])


def _timeline(graph: TaskGraph, arrays: dict[str, Any], state: State) -> Timeline:
    from replay.graph.plan import read_times

    start, end = read_times(graph, arrays["tasks"], arrays["extra_latency"])
    landed = np.full(graph.gates.num_members, -1, np.int32)
    has_slot = np.flatnonzero(state.member_slot >= 0)
    landed[has_slot] = arrays["gate_slots"]["tile"][state.member_slot[has_slot]]
    late = arrays["extra_latency"]
    if not late.size:
        late = np.broadcast_to(np.int64(0), start.shape)
    drawn = Drawn.of(graph, state.port_served, state.backing_served)
    return Timeline(graph, start, end, landed, state.found, late, drawn)
