"""Exposed communication by itself, for those who need no other measure of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.measure.exposure import ExposureCollector
from replay.measure.notes import Times, Waits
from replay.measure.pools import Pools
from replay.measure.progress import TaskProgress

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine


def exposed_ps(machine: Machine, ends: Ints, timeline: Timeline) -> Picoseconds:
    """Time in which nothing of a GPU computes, up to its own end: (rank,).

    Parameters
    ----------
    machine
        The machine that made the graph.
    ends
        (rank,) task after which the rank's tokens are combined.
    timeline
        When each task ran.

    Returns
    -------
    `Measures.exposed_communication_us_per_gpu`, in picoseconds.
    """
    graph = timeline.graph
    pools, classes = Pools.of(graph, machine), machine.resources.classes(graph)
    held_up = Waits(of_starts=False)
    held_up.begin(machine.notes.held_up)
    exposing = ExposureCollector(machine.num_ranks)
    exposing.add(TaskProgress(timeline), pools, classes, held_up.over(Times(timeline)))
    return exposing.result(pools, timeline.visible_ps[ends]).ps
