"""Rows of a timeline: a process for each GPU, a thread for each server, and in what order."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from replay.engine.export.programs import interval_lanes
from replay.engine.export.scene import Scene
from replay.engine.taskgraph import Int64s, TaskGraph
from replay.engine.timeline import Timeline

#: Number of GPU 0's process: 0 is the idle process, and Perfetto writes the number behind the name,
#: where a small one could be taken for a GPU's.
_FIRST_PROCESS = 1_000
_PS_PER_NS = 1_000
#: Processes that are no GPU: what belongs to none, and the critical path.
SHARED, PATH = -1, -2
#: Threads of a process in the order in which they are shown: what is followed, layers, phases,
#: resources, delays.
JOURNEY, LAYER, PHASE, RESOURCE, DELAY = range(5)


class Thread(NamedTuple):
    """A row of the picture.

    Attributes
    ----------
    process
        Number of a GPU, `SHARED` or `PATH`.
    section, place, number, lane
        Where it stands in its process, in this order of importance.
    label
        Its name.
    """

    process: int
    section: int
    place: int
    number: int
    lane: int
    label: str


def process_of(graph: TaskGraph, tasks: Int64s) -> Int64s:
    """(task,): the owner of each task's resource, or the task's rank where it is a delay."""
    owners = np.append(graph.resources.owner, SHARED).astype(np.int64)
    resource = graph.resource[tasks]
    return np.where(resource >= 0, owners[resource], graph.rank[tasks].astype(np.int64))


def threads_of(timeline: Timeline, tasks: Int64s, scene: Scene) -> tuple[list[Thread], Int64s]:
    """Threads for the servers that tasks were on, and the place of each task's."""
    graph = timeline.graph
    resource = graph.resource[tasks].astype(np.int64)
    process = process_of(graph, tasks)
    # Delays of each process are a group of their own.
    group = np.where(resource >= 0, resource, len(graph.resources) + 1 + process)
    lane = interval_lanes(group, timeline.start_ps[tasks], timeline.end_ps[tasks])
    known, row = np.unique(np.column_stack([process, resource, lane]), axis=0, return_inverse=True)
    labels = _labels(graph)
    threads = [
        Thread(gpu, RESOURCE, int(scene.place[where]), where, lane, labels[where])
        if where >= 0
        else Thread(gpu, DELAY, 0, 0, lane, "delay")
        for gpu, where, lane in known.tolist()
    ]
    return threads, row.reshape(-1).astype(np.int64)


def together(timeline: Timeline, tasks: Int64s, row: Int64s) -> tuple[Int64s, dict[int, list[int]]]:
    """Find tasks that begin in one nanosecond on one thread.

    Parameters
    ----------
    tasks
        (task,): by start.
    row
        (task,): the thread of each.

    Returns
    -------
    Places in `tasks`: of the longest task of each nanosecond, ascending; and of the others, by the
    place of that one. Where none takes any time, the first stands for all.
    """
    start, end = timeline.start_ps[tasks] // _PS_PER_NS, timeline.end_ps[tasks] // _PS_PER_NS
    place = np.arange(tasks.size)
    order = np.lexsort((place, start - end, start, row))
    is_new = np.ones(tasks.size, np.bool_)
    is_new[1:] = (np.diff(start[order]) != 0) | (np.diff(row[order]) != 0)
    leads = order[is_new]
    follows = order[~is_new]
    lead = leads[np.cumsum(is_new) - 1][~is_new]
    rest: dict[int, list[int]] = {}
    for one, other in zip(lead.tolist(), follows.tolist(), strict=True):
        rest.setdefault(one, []).append(other)
    return np.sort(leads), rest


def _labels(graph: TaskGraph) -> list[str]:
    """Names of resources in their process, which says the owner already: "sm 3" for "sm 0.3"."""
    resources = graph.resources
    owners = list(zip(resources.groups, resources.owner.tolist(), strict=True))
    count = Counter(owners)
    return [
        _label(name, group, owner, is_only=count[group, owner] == 1)
        for name, (group, owner) in zip(resources.names, owners, strict=True)
    ]


def _label(name: str, group: str, owner: int, *, is_only: bool) -> str:
    if owner < 0:
        return name
    if is_only:
        return group
    rest = name.removeprefix(f"{group} {owner}.")
    return name if rest == name else f"{group} {rest}"


def place_of(process: int) -> tuple[bool, int]:
    """Sort key of a process: GPUs first, then what belongs to none, then the critical path."""
    return process < 0, abs(process)


def shown_at(thread: Thread) -> tuple[tuple[bool, int], Thread]:
    """Position of a thread among all."""
    return place_of(thread.process), thread


def pool_of(thread: Thread) -> tuple[int | str, ...]:
    """Facts that the threads of one pool of servers share."""
    return thread[:4]


def pid_of(process: int) -> int:
    """Number of a process; those that are no GPU come before the GPUs'."""
    return _FIRST_PROCESS + process
