"""Kernels as a profiler sees them: time in which any of them runs on a GPU, and what they do.

A kernel runs from when it begins until the last of its work on the GPU is done, and the last row or
flag that it sends or takes has come. In between it is active, also where it waits for other GPUs.
Gaps between kernels, waits for a launch and for the host are not. A kernel communicates if it moves
rows, waits for other GPUs or tells them something; it computes if it does nothing of that, or
multiplies. One that does both, as fused kernels do, does both for all of its time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from replay.engine.covers import Intervals
from replay.engine.timeline import sum_by
from replay.measure.exposure import MOVING, union
from replay.model.machine.kinds import COMPUTE, Kind, among
from replay.model.machine.resources import ResourceClass

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.arrays import Ints, Picoseconds, Ranks
    from replay.model.machine.machine import Machine

COMMUNICATES = MOVING | {Kind.DISPATCH_SYNC, Kind.COMBINE_SYNC, Kind.PLAN_SYNC}
"""Rows that travel, and waits for other GPUs."""

MULTIPLIES = {Kind.GEMM1, Kind.GEMM2, Kind.WGRAD, Kind.DENSE_GEMM, Kind.ATTENTION}

COUNTED = COMPUTE | COMMUNICATES | {Kind.GEMM2_SYNC}
"""What a kernel does."""


@dataclass(frozen=True)
class Activity:
    """Times in which kernels run on each GPU: (rank,) in picoseconds.

    Attributes
    ----------
    computing, communicating
        In which kernels do that compute, and those that communicate.
    both
        In which both do.
    streaming
        What device memory would take for the bytes of these kernels by itself, operands of products
        outside MoE layers aside.
    """

    computing: Ints
    communicating: Ints
    both: Ints
    streaming: Ints | int = 0

    @property
    def active(self) -> Ints:
        """In which any kernel runs."""
        return self.computing + self.communicating - self.both

    def __add__(self, other: Self) -> Activity:
        """One after the other."""
        return Activity(
            self.computing + other.computing,
            self.communicating + other.communicating,
            self.both + other.both,
            self.streaming + other.streaming,
        )

    def __mul__(self, times: int) -> Activity:
        """The same so many times, one after the other."""
        return Activity(
            times * self.computing,
            times * self.communicating,
            times * self.both,
            times * self.streaming,
        )

    def of(self, ranks: Ranks) -> Activity:
        """Activity of some GPUs, each as often as it is named: (entry,) ranks."""
        streaming = self.streaming if isinstance(self.streaming, int) else self.streaming[ranks]
        return Activity(self.computing[ranks], self.communicating[ranks], self.both[ranks], streaming)


NOTHING = Activity(*np.zeros((3, 1), np.int64))
"""No kernel runs, on any GPU."""


def waiting(ps: Ints) -> Activity:
    """Activity of GPUs that spend `ps`, (rank,) picoseconds, in kernels that wait for other GPUs."""
    return Activity(np.zeros_like(ps), ps, np.zeros_like(ps))


def activity_of(machine: Machine, ends_ps: Picoseconds, timeline: Timeline) -> Activity:
    """Intervals in which kernels run, up to each GPU's own end.

    Parameters
    ----------
    machine
        The machine that made the graph, with notes on all its kernels.
    ends_ps
        (rank,): when each GPU is through.
    timeline
        When each task ran.
    """
    ranks, launched = machine.num_ranks, machine.notes.kernels
    if not launched:
        nothing = np.zeros(ranks, np.int64)
        return Activity(nothing, nothing, nothing)
    visible, kind = timeline.visible_ps, timeline.graph.kind
    tasks, kernel = _tasks(machine, timeline)
    communicates = np.array([one.is_exchange for one in launched])
    communicates[kernel[among(COMMUNICATES)[kind[tasks]]]] = True
    computes = ~communicates
    computes[kernel[among(MULTIPLIES)[kind[tasks]]]] = True
    ended = np.zeros((len(launched), ranks), np.int64)
    np.maximum.at(ended, (kernel, timeline.graph.rank[tasks]), visible[tasks])
    found = []
    for number, one in enumerate(launched):
        began = visible[one.begun]
        end = np.minimum(np.maximum(ended[number, one.rank], began), ends_ps[one.rank])
        found.append(Intervals(one.rank, began - one.row_ps, end))
    owner, start, end = (np.concatenate(column) for column in zip(*found, strict=True))
    of = np.repeat(np.arange(len(launched)), [len(one.rank) for one in launched])

    def total(chosen: Ints) -> Ints:
        parts = union(Intervals(owner[chosen], start[chosen], end[chosen]))
        return sum_by(parts.owner, parts.end - parts.start, ranks)

    computing, communicating = total(computes[of]), total(communicates[of])
    active = total(np.ones_like(of, np.bool_))
    both = computing + communicating - active
    return Activity(computing, communicating, both, _streaming(machine, timeline))


def _streaming(machine: Machine, timeline: Timeline) -> Ints:
    """(rank,): service of device memory."""
    graph = timeline.graph
    of_memory = np.append(machine.resources.classes(graph) == ResourceClass.HBM, False)
    tasks = np.flatnonzero(of_memory[graph.resource] & (graph.rank >= 0))
    return sum_by(graph.rank[tasks], timeline.service_ps[tasks], machine.num_ranks)


def _tasks(machine: Machine, timeline: Timeline) -> tuple[Ints, Ints]:
    """Tasks of kernels on GPUs, and the number of each one's kernel: two (task,)."""
    graph = timeline.graph
    on_host = np.append(machine.resources.classes(graph) == ResourceClass.HOST, False)
    counts = among(COUNTED)[graph.kind] & (graph.rank >= 0) & ~on_host[graph.resource]
    tasks = np.flatnonzero(counts)
    first = [one.first for one in machine.notes.kernels]
    kernel = np.searchsorted(first, tasks, side="right") - 1
    return tasks[kernel >= 0], kernel[kernel >= 0]
