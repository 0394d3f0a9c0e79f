"""SMs in use at every instant of a schedule, and those that only communicate, by their tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import KINDS, PHASE_OF_KIND, PHASES, Kind

if TYPE_CHECKING:
    from replay.engine import TaskGraph, Timeline
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine


class Use(NamedTuple):
    """The instant at which a GPU uses most of its SMs.

    Attributes
    ----------
    sms
        How many are in use.
    rank, time_ps
        On which GPU, and from when.
    """

    sms: int
    rank: int
    time_ps: int


def most_in_use(timeline: Timeline, machine: Machine) -> Use:
    """Add up the SMs in use on each GPU at every instant, and give the instant with most.

    An SM is in use while a task is in service at one of its queues, however many of its warps serve
    one. A kernel between the layers uses all that its stream has.
    """
    rank, start, end, sms = _uses(timeline, machine)
    busy = end > start
    rank, start, end, sms = rank[busy], start[busy], end[busy], sms[busy]
    rank = np.concatenate((rank, rank))
    time, change = np.concatenate((start, end)), np.concatenate((sms, -sms))
    order = np.lexsort((change, time, rank))  # what ends at an instant makes room first
    if not len(order):
        return Use(0, 0, 0)
    total = np.cumsum(change[order])  # every rank's changes add up to nothing
    most = int(total.argmax())
    return Use(int(total[most]), int(rank[order[most]]), int(time[order[most]]))


def only_communicating(graph: TaskGraph, machine: Machine) -> int:
    """Most SMs per GPU that are held together, move rows, and have no task that computes."""
    found: dict[str, set[str]] = {}
    for name, queues in machine.sms.queues:
        kinds = np.unique(graph.kind[np.isin(graph.resource, queues)]).tolist()
        found.setdefault(name, set()).update(KINDS[Kind(kind)].role for kind in kinds)
    alone = {name for name, roles in found.items() if "copying" in roles and "compute" not in roles}
    return max(
        (sum(num for name, num in split.held.items() if name in alone) for split in machine.sms.ledger),
        default=0,
    )


def _uses(timeline: Timeline, machine: Machine) -> tuple[Ints, Ints, Ints, Ints]:
    """GPU, start, end and number of SMs of each use: four (use,)."""
    graph = timeline.graph
    # SM of each resource, -1 where several share a queue and each task has one of them.
    sm_of = np.full(len(graph.resources.names), -1, np.int64)
    is_sm = np.zeros(len(sm_of), np.bool_)
    numbers: dict[tuple[str, int, int], int] = {}
    for name, queues in machine.sms.queues:
        is_sm[queues] = True
        if queues.ndim == 1:
            continue
        for place in np.ndindex(queues.shape[:2]):
            sm_of[queues[place]] = numbers.setdefault((name, *place), len(numbers))
    task = np.flatnonzero((graph.resource >= 0) & (timeline.end_ps > timeline.start_ps))
    task = task[is_sm[graph.resource[task]]]
    resource = graph.resource[task]
    alone = sm_of[resource] < 0
    merged = _merge(timeline, task[~alone], sm_of[resource[~alone]])
    task = np.concatenate((task[alone], merged[0]))
    end = np.concatenate((timeline.end_ps[task[: alone.sum()]], merged[1]))
    is_whole = (graph.resource < 0) | ~is_sm[graph.resource]  # a kernel that is no blocks
    between = np.flatnonzero((PHASE_OF_KIND[graph.kind] == PHASES.index("between")) & is_whole)
    return (
        np.concatenate((graph.resources.owner[graph.resource[task]], graph.rank[between])),
        np.concatenate((timeline.start_ps[task], timeline.start_ps[between])),
        np.concatenate((end, timeline.visible_ps[between])),
        np.repeat([1, machine.sms.compute], [len(task), len(between)]),
    )


def _merge(timeline: Timeline, task: Tasks, sm: Ints) -> tuple[Ints, Ints]:
    """First task and end of each time without a pause at one SM: two (use,)."""
    order = np.lexsort((timeline.start_ps[task], sm))
    task, sm = task[order], sm[order]
    span = int(timeline.end_ps.max(initial=0)) + 1
    start, end = timeline.start_ps[task] + sm * span, timeline.end_ps[task] + sm * span
    reached = np.maximum.accumulate(end)
    begins = np.ones(len(task), np.bool_)
    begins[1:] = start[1:] > reached[:-1]
    first = np.flatnonzero(begins)
    last = np.append(first[1:], len(task))[: len(first)] - 1
    return task[first], (reached - sm * span)[last]
