"""Scheduling a task graph: lays it out, runs the kernels, and reads the result.

The semantics are in ``ENGINE.md``; how the kernels get their speed, too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from replay.engine.checks import describe_deadlock
from replay.engine.errors import EngineError
from replay.engine.taskgraph import TaskGraph
from replay.engine.timeline import LineDraws, Timeline

if TYPE_CHECKING:
    from replay.engine.kernels.layout import RunPlan


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
    >>> from replay.engine import GraphBuilder
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("uplink", group="uplink")
    >>> ids = builder.add(2, resource=port, duration_ps=10, latency_ps=3)
    >>> timeline = schedule(builder.build())
    >>> timeline.start_ps.tolist(), timeline.end_ps.tolist(), timeline.makespan_ps
    ([0, 10], [10, 20], 23)
    """
    if graph.num_tasks == 0:
        nothing = np.empty(0, np.int64)
        landed = np.full(graph.gates.num_members, -1, np.int32)
        none = np.empty(0, np.int8)
        drawn = LineDraws(*(np.empty(0, np.int64) for _ in range(4)))
        return Timeline(graph, nothing, nothing.copy(), landed, none, nothing.copy(), drawn)
    return timeline_of(graph, _run(graph))


def makespan_ps(graph: TaskGraph) -> int:
    """Time at which the last task of a graph is visible, where nothing else is asked of a replay.

    Raises as `schedule` does.

    Examples
    --------
    >>> from replay.engine import GraphBuilder
    >>> builder = GraphBuilder(["send"])
    >>> ids = builder.add(2, resource=builder.resource("uplink", "links"), duration_ps=10, latency_ps=3)
    >>> makespan_ps(builder.build())
    23
    """
    if graph.num_tasks == 0:
        return 0
    return int(_run(graph).arrays["tasks"]["visible"][:-1].max())


def _run(graph: TaskGraph) -> RunPlan:
    """Replay a graph that has tasks."""
    # Imported where a kernel is needed first: loading numba takes longer than most commands.
    from replay.engine.kernels import layout
    from replay.engine.kernels.loop import run
    from replay.engine.plan import make_plan

    plan = make_plan(graph)[0]  # the layout refers to the same arrays, and is given up at once
    done = run(plan)
    raise_if_failed(graph, plan)
    if done < graph.num_tasks:
        missing = plan.arrays["tasks"]["missing"][:-1]
        raise EngineError(describe_deadlock(graph, missing == layout.STARTED, missing == 0))
    return plan


def timeline_of(graph: TaskGraph, plan: RunPlan) -> Timeline:
    """Read the schedule off a plan that ran, which is given up."""
    from replay.engine.plan import read_times

    arrays = plan.arrays
    landed = np.full(graph.gates.num_members, -1, np.int32)
    slot = arrays["members"]["slot"]
    has_slot = (slot >= 0).nonzero()[0]
    landed[has_slot] = arrays["gate_slots"]["tile"][slot[has_slot]]
    records, late, found = (arrays[name] for name in ("tasks", "extra_latency", "found"))
    drawn = LineDraws.of(graph, arrays["port_served"], arrays["backing_served"])
    del arrays
    vars(plan).clear()  # all but the records is free before the result takes its place
    start_ps, end_ps = read_times(graph, records, late)
    if not late.size:
        late = np.broadcast_to(np.int64(0), (graph.num_tasks,))
    return Timeline(graph, start_ps, end_ps, landed, found, late, drawn)


def raise_if_failed(graph: TaskGraph, plan: RunPlan) -> None:
    """Say in words what ended a run.

    Raises
    ------
    EngineError
        If anything but the last task did.
    """
    from replay.engine.kernels import layout

    end, *tasks = plan.arrays["status"][:3].tolist()
    if end == layout.TOO_LATE:
        raise EngineError(_too_long(layout.NEVER >> plan.arrays["shift"], len(graph.resources)))
    if end == layout.EARLY_RELEASE:
        giver, taker = (graph.describe(task) for task in tasks)
        message = f"{giver} gives back credits before {taker} has taken them"
        raise EngineError(message)
    if end == layout.LATE_CHARGE:
        toucher, payer = (graph.describe(task) for task in tasks)
        message = f"{toucher} evicts at the cost of {payer}, which has started already"
        raise EngineError(message)


def _too_long(limit_ps: int, num_resources: int) -> str:
    return (
        f"the schedule is longer than {limit_ps / 1e12:.0f} s, the most the clock counts with {num_resources} resources"
    )


def compile_ahead(progress: Callable[[int, int], None] | None = None) -> None:
    """Compile what the cache lacks, so that processes that start together need not each do so.

    Parameters
    ----------
    progress
        Told how many kernels are compiled, out of how many.
    """
    from replay.engine.kernels.ahead import compile_all

    compile_all(progress)
