"""Scheduling a graph that is given in parts, exactly as if it had been given at once."""

from __future__ import annotations

import numpy as np

from replay.engine.checks import describe_deadlock
from replay.engine.critical_path import LastMet, last_met
from replay.engine.engine import raise_if_failed, timeline_of
from replay.engine.errors import EngineError
from replay.engine.junction import with_part
from replay.engine.piece import Piece, RecentValues
from replay.engine.resumption import state_of
from replay.engine.state import FIXED, FRESH, PAST, QUEUED, SERVING, State
from replay.engine.taskgraph import NEVER, GraphPart, Int64s
from replay.engine.timeline import Timeline
from replay.engine.windows import GraphWindow

#: Tasks that are over and that a part waits for, for which there is room without a copy.
_MOST_REPORTED = 1024


class OutOfOrderError(EngineError):
    """A part came too late: something of it should have happened before what has happened."""


class Scheduler:
    """Schedules a graph part by part.

    The schedule is that of the whole graph, to the picosecond, whatever the parts. A part may be
    added as late as at the moment at which the first task becomes visible that it waits for:
    `GraphBuilder.part` is told which tasks to look out for, and `run` stops when one of them is
    visible. Tasks that wait only for what was visible earlier are scheduled in the past, which is
    refused if anything has happened since at their resources.
    """

    def __init__(self) -> None:
        self._window: GraphWindow | None = None
        self._visible_ps = RecentValues()
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
            self._window = GraphWindow.of(part)
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
        """Tell whether all tasks of all parts are over."""
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
        from replay.engine.kernels import layout
        from replay.engine.kernels.loop import run
        from replay.engine.plan import make_plan

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
        left = np.flatnonzero(~is_over)
        if not arrays["status"][layout.SIGNALS] and left.size:
            is_started = ~np.isin(state.status, (FRESH, QUEUED, FIXED))
            raise EngineError(describe_deadlock(graph, is_started, state.status == QUEUED))
        timeline = timeline_of(graph, plan)
        self._check_order(before, state, timeline)
        met, edges = last_met(timeline, is_over, window.met, left)
        # Of those whose start is fixed the records have lost since when they wait.
        fixed = left[state.status[left] == FIXED]
        state.ready_ps[fixed] = met.ready_ps[fixed]
        piece = Piece(
            timeline,
            is_over & ~window.is_counted,
            window.ids,
            window.touch_ids,
            met,
            state.now_ps,
            **_since(timeline, met, state, left),
        )
        self._visible_ps.put(piece, state.visible_ps)
        after = GraphWindow(graph, state, window.touch_ids, window.is_counted | is_over, met)
        self._window = after.rest(left, edges)
        return piece

    def _check_order(self, before: State, state: State, timeline: Timeline) -> None:
        """Refuse what began before the pause where something else happened or waited."""
        from replay.engine.kernels.sums import LastEnds, find_last_ends

        graph, start = timeline.graph, timeline.start_ps
        early = np.flatnonzero(start < before.now_ps)
        known = np.append(before.status, np.int8(FRESH))[np.minimum(early, before.status.size)]
        is_new = (known == FRESH) & ~np.isin(state.status[early], (FRESH, QUEUED))
        early = early[is_new]
        if early.size:
            self._check_early(early, before, timeline)
        find_last_ends(
            LastEnds(
                num_tasks=graph.num_tasks,
                resource=graph.resource,
                status=state.status,
                is_known_from=FIXED,
                end=timeline.end_ps,
                last=self._busy_until,
            )
        )
        np.maximum(self._busy_until, state.line_free_ps, out=self._busy_until)

    def _check_early(self, early: Int64s, before: State, timeline: Timeline) -> None:
        graph, start = timeline.graph, timeline.start_ps[early]
        where = graph.resource[early]
        waits = np.zeros(len(graph.resources) + 1, np.bool_)
        waits[graph.resource[np.flatnonzero(np.isin(before.status, (QUEUED, FIXED)))]] = True
        needs = np.zeros(graph.num_tasks, np.bool_)
        for tasks in (graph.takes.task, graph.takes.released_by, graph.touches.task):
            needs[tasks] = True
        is_bad = (where >= 0) & (waits[where] | (start < self._busy_until[where])) | needs[early]
        if is_bad.any():
            row = int(np.argmax(is_bad))
            message = (
                f"{graph.describe(int(early[row]))} should have begun at {int(start[row])} ps, "
                "before its part was added"
            )
            raise OutOfOrderError(message)


def _since(timeline: Timeline, met: LastMet, state: State, left: Int64s) -> dict[str, int]:
    """Since when something is under way of the tasks that are left; see `Piece`."""
    status, start, ready = state.status[left], timeline.start_ps[left], met.ready_ps[left]
    has_server = timeline.graph.resource[left] >= 0
    begun = (status >= SERVING) & has_server
    waits = np.isin(status, (QUEUED, FIXED)) & has_server | begun & (start > ready)
    return {
        "begun_since_ps": int(start[status >= FIXED].min(initial=NEVER)),
        "served_since_ps": int(start[begun].min(initial=NEVER)),
        "waits_since_ps": int(ready[waits].min(initial=NEVER)),
    }
