"""The same graph with slower or faster tasks."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from replay.engine.columns import IntArray
    from replay.engine.taskgraph import TaskGraph

Floats = npt.NDArray[np.float64]
Times = npt.NDArray[np.int64]


def slowed(graph: TaskGraph, factors: Floats) -> TaskGraph:
    """Multiply the times of tasks by factors of their kinds.

    Parameters
    ----------
    graph
        The tasks.
    factors
        (kind,): positive; 1 leaves a kind as it is.

    Returns
    -------
    The graph with other durations and latencies, and other costs of look-ups, which are those of
    the task that looks up; in whole picoseconds.
    """
    if (factors == 1).all():
        return graph
    of_task, touches = factors[graph.kind], graph.touches

    def times(given: IntArray, factor: Floats) -> Times:
        return np.rint(given * factor).astype(np.int64)

    of_touch = of_task[touches.task]
    return dataclasses.replace(
        graph,
        duration_ps=times(graph.duration_ps, of_task),
        latency_ps=times(graph.latency_ps, of_task),
        touches=dataclasses.replace(
            touches,
            miss_latency_ps=times(touches.miss_latency_ps, of_touch),
            miss_duration_ps=times(touches.miss_duration_ps, of_touch),
            evict_duration_ps=times(touches.evict_duration_ps, of_touch),
            port_duration_ps=times(touches.port_duration_ps, of_touch),
        ),
    )
