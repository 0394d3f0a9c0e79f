"""A scheduled graph as programs that send each other messages: what simulators of that kind take.

A program holds a *calculation* for every task, a *delay* for the time on the way to tasks of the
same GPU, and a *send* or *receive* for every edge that crosses programs. Operations depend on
others of their own program only. What was decided when the graph was scheduled is fixed: a gate's
members depend on the tile they landed in, and tasks keep the server they were on.

There is one program a GPU, or one a server of a GPU, whichever the other simulator can follow.

A task belongs to its rank's GPU, else to the owner of its resource, else to where its first
predecessor is (or successor, where it has none).
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.engine.columns import IntArray
from replay.engine.taskgraph import NULL_RESOURCE, Int64s, TaskGraph
from replay.engine.timeline import Timeline

CALCULATION, DELAY, SEND, RECEIVE = range(4)
#: Order of the operations of a task in its rank's program.
_PLACE = np.array([1, 2, 3, 0])  # receives come first, sends last

Transfers = Literal["network", "schedule"]
"""Who times transfers: the other simulator's network, or durations and latencies of the graph."""

OnePer = Literal["gpu", "server"]
"""What has a program of its own."""


@dataclass(frozen=True)
class ExportedFiles:
    """Account of what an export wrote.

    Attributes
    ----------
    paths
        The files.
    num_events
        Events, nodes or operations in them.
    notes
        What the files do not hold or hold differently, a sentence each.
    """

    paths: tuple[Path, ...]
    num_events: int
    notes: tuple[str, ...] = ()


class ProgramOperation(NamedTuple):
    """A row of `Programs`."""

    what: int
    rank: int
    task: int
    start_ps: int
    end_ps: int
    server: int
    peer: int
    size_bytes: int
    tag: int


@dataclass(frozen=True, eq=False)
class Programs:
    """Programs; rows are operations, program by program, dependencies before dependents.

    Attributes
    ----------
    num_ranks
        Number of programs.
    what
        `CALCULATION`, `DELAY`, `SEND` or `RECEIVE` (operation,).
    rank, gpu
        The program it is part of, and the GPU that this is on (operation,).
    task
        The task it stands for; of a message the one at this end of the edge (operation,).
    start_ps, end_ps
        When it began and ended in the schedule (operation,); equal where it takes no time. A
        message is where what it waits for ends.
    server
        Which of its GPU's servers it needs (operation,): 0 for what needs none. A message has that
        of what it hangs on.
    peer, size_bytes, tag
        Of messages (operation,): the other program, the size (0 within a GPU), and a number that
        no other message between the two has. -1, 0 and -1 for other operations.
    indptr, needs
        ``needs[indptr[i]:indptr[i + 1]]`` are the operations that operation ``i`` waits for.
    notes
        What of the graph the programs do not hold, a sentence each.
    """

    num_ranks: int
    what: Int64s
    rank: Int64s
    gpu: Int64s
    task: Int64s
    start_ps: Int64s
    end_ps: Int64s
    server: Int64s
    peer: Int64s
    size_bytes: Int64s
    tag: Int64s
    indptr: Int64s
    needs: Int64s
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.what.size)

    def operations(self, low: int, high: int) -> Iterator[ProgramOperation]:
        """Some of the operations, one after the other."""
        some = [getattr(self, name)[low:high].tolist() for name in ProgramOperation._fields]
        return map(ProgramOperation._make, zip(*some, strict=True))

    def rows_of_ranks(self) -> list[tuple[int, int]]:
        """First row of each rank's program and the one behind its last, rank by rank."""
        edges = np.searchsorted(self.rank, np.arange(self.num_ranks + 1)).tolist()
        return list(itertools.pairwise(edges))


def resolved_edges(timeline: Timeline) -> tuple[Int64s, Int64s]:
    """Edges as the schedule had them: (sources, targets), each (edge,).

    Beside the graph's own edges, one from each member of a gate to the first task of the tile it
    landed in, and one from the last task of that tile to the member's waiter. A member that came
    when its tile was already done has an edge to its waiter, too.
    """
    graph = timeline.graph
    src, dst = (ends.astype(np.int64) for ends in graph.edges())
    gates, tile = graph.gates, timeline.landed_tile.astype(np.int64)
    visible = timeline.visible_ps
    last = gates.tile_last[tile]
    waits = gates.member_waiter >= 0
    is_late = waits & (visible[gates.member_task] > visible[last])
    sources = (src, gates.member_task, last[waits], gates.member_task[is_late])
    targets = (
        dst,
        gates.tile_first[tile],
        gates.member_waiter[waits],
        gates.member_waiter[is_late],
    )
    return np.concatenate(sources).astype(np.int64), np.concatenate(targets).astype(np.int64)


def _distinct(src: Int64s, dst: Int64s) -> tuple[Int64s, Int64s]:
    """Edges without repetitions, by source and then target."""
    pairs = np.unique(np.column_stack([src, dst]), axis=0)
    return pairs[:, 0], pairs[:, 1]


def make_programs(timeline: Timeline, transfers: Transfers = "network", one_per: OnePer = "gpu") -> Programs:
    """Turn a schedule into programs.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    transfers
        With "network", tasks that carry bytes across GPUs (both ends of the edge) take no time
        of their own and what they carry is sent: the other simulator's network says how long that
        takes. With "schedule", they keep their durations and latencies, for a network without.
    one_per
        What has a program of its own: a "gpu", whose operations name the server they need, or a
        "server" of a GPU, whose operations follow one another. What takes no time, and each delay
        among those that overlap, has a server of its own.
    """
    graph = timeline.graph
    src, dst = _distinct(*resolved_edges(timeline))
    home = home_ranks(graph, src, dst)
    is_between = home[src] != home[dst]
    carried = np.maximum(graph.wire_bytes, graph.payload_bytes)
    size = np.where(graph.wire_bytes > 0, graph.wire_bytes, graph.payload_bytes)
    is_transfer = np.zeros(graph.num_tasks, np.bool_)
    if transfers == "network":
        for ends in (src, dst):
            is_transfer[ends[is_between]] = True
        is_transfer &= carried > 0
    # A task's way to others takes time of its own, unless the network's stands for it.
    has_delay = timeline.on_the_way_ps > 0
    if transfers == "network":
        goes_on = np.ones(graph.num_tasks, np.bool_)
        goes_on[src] = False  # the last task's way counts, too
        goes_on[src[~is_between]] = True
        has_delay &= goes_on

    # Calculation t is operation t, delays follow.
    tasks = np.arange(graph.num_tasks, dtype=np.int64)
    delayed = np.flatnonzero(has_delay)
    task = np.concatenate([tasks, delayed])
    start = np.concatenate([timeline.start_ps, timeline.end_ps[delayed]])
    served = np.where(is_transfer, timeline.start_ps, timeline.end_ps)
    end = np.concatenate([served, timeline.visible_ps[delayed]])
    after = tasks.copy()
    after[delayed] = tasks.size + np.arange(delayed.size)
    source = np.where(is_between & (transfers == "network"), src, after[src])
    source = np.concatenate([source, delayed])
    target = np.concatenate([dst, after[delayed]])

    gpu = home[task]
    pool = np.concatenate([graph.resource, np.full(delayed.size, NULL_RESOURCE)])
    server = _servers(gpu, pool, start, end)
    rank = gpu
    if one_per == "server":
        rank = np.unique(np.column_stack([gpu, server]), axis=0, return_inverse=True)[1].reshape(-1)
    crosses = rank[source] != rank[target]
    sender, receiver = source[crosses], target[crosses]
    sent_bytes = np.concatenate([np.where(is_between, size[src], 0), 0 * delayed])[crosses]

    # A message hangs on the operation at its end of the edge.
    at = np.concatenate([np.arange(task.size), sender, receiver])
    what = np.repeat([CALCULATION, DELAY, SEND, RECEIVE], [tasks.size, delayed.size, sender.size, sender.size])
    level = _levels(timeline.start_ps, src, dst)
    order = np.lexsort((_PLACE[what], task[at], level[task[at]], start[at], rank[at]))
    number = np.empty(order.size, np.int64)
    number[order] = np.arange(order.size)
    sends, receives = number[task.size :].reshape(2, -1)
    needs = np.concatenate([number[source[~crosses]], number[sender], receives])
    needed_by = np.concatenate([number[target[~crosses]], sends, number[receiver]])
    by_needer = np.argsort(needed_by, kind="stable")
    counts = np.bincount(needed_by, minlength=order.size)
    nothing = np.full(task.size, -1, np.int64)
    return Programs(
        num_ranks=int(rank.max(initial=0)) + 1,
        what=what[order],
        rank=rank[at][order],
        gpu=gpu[at][order],
        task=task[at][order],
        start_ps=np.concatenate([start, end[sender], end[sender]])[order],
        end_ps=np.concatenate([end, end[sender], end[sender]])[order],
        server=server[at][order],
        peer=np.concatenate([nothing, rank[receiver], rank[sender]])[order],
        size_bytes=np.concatenate([0 * task, sent_bytes, sent_bytes])[order],
        tag=np.concatenate([nothing, np.tile(_tags(rank[sender], rank[receiver]), 2)])[order],
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        needs=needs[by_needer],
        notes=_notes(graph, home, is_between, src, transfers),
    )


def home_ranks(graph: TaskGraph, src: Int64s, dst: Int64s) -> Int64s:
    """Rank whose program a task is part of (task,); see the module."""
    owner = np.append(graph.resources.owner, -1).astype(np.int64)[graph.resource]
    home: Int64s = np.where(graph.rank >= 0, graph.rank, owner).astype(np.int64)
    for known, unknown in ((src, dst), (dst, src)):
        while True:
            open_ = np.flatnonzero((home[unknown] < 0) & (home[known] >= 0))
            if open_.size == 0:
                break
            open_ = open_[np.lexsort((known[open_], unknown[open_]))]
            tasks, first = np.unique(unknown[open_], return_index=True)
            home[tasks] = home[known[open_[first]]]
    home[home < 0] = 0
    return home


def _tags(source: Int64s, target: Int64s) -> Int64s:
    """Number the messages between two ranks (message,), in the order of the edges."""
    order = np.lexsort((target, source))
    pairs = np.column_stack([source, target])[order]
    is_new = np.ones(order.size, np.bool_)
    is_new[1:] = np.any(pairs[1:] != pairs[:-1], axis=1)
    place = np.arange(order.size)
    tags = np.empty(order.size, np.int64)
    tags[order] = place - np.maximum.accumulate(np.where(is_new, place, 0))
    return tags


def _servers(gpu: Int64s, resource: Int64s, start: Int64s, end: Int64s) -> Int64s:
    """Number the servers of each GPU from 1: (operation,), 0 where it takes no time.

    Delays, which have no resource, overlap freely: they get as many servers as overlap, behind
    those of the GPU's resources.
    """
    timed = np.flatnonzero(end > start)
    gpu, pool = gpu[timed], resource[timed]
    pool = np.where(pool < 0, pool.max(initial=-1) + 1, pool)
    lane = interval_lanes(pool * (gpu.max(initial=0) + 1) + gpu, start[timed], end[timed])
    rows, of_row = np.unique(np.column_stack([gpu, pool, lane]), axis=0, return_inverse=True)
    server = np.zeros(start.size, np.int64)
    server[timed] = 1 + of_row.reshape(-1) - np.searchsorted(rows[:, 0], gpu)
    return server


def _levels(start: Int64s, src: Int64s, dst: Int64s) -> Int64s:
    """Place of tasks among those that start at the same instant and wait for each other."""
    level = np.zeros(start.size, np.int64)
    at_once = np.flatnonzero(start[src] == start[dst])
    while True:
        raised = level[dst[at_once]] <= level[src[at_once]]
        if not raised.any():
            return level
        at_once_raised = at_once[raised]
        np.maximum.at(level, dst[at_once_raised], level[src[at_once_raised]] + 1)


def _notes(
    graph: TaskGraph,
    home: Int64s,
    is_between: npt.NDArray[np.bool_],
    src: Int64s,
    transfers: Transfers,
) -> tuple[str, ...]:
    """Notes on what the programs do not hold."""
    notes = []
    if len(graph.takes):
        notes.append(f"{len(graph.takes)} takes of credits are left out: buffers have no end")
    if len(graph.touches):
        notes.append(f"{len(graph.touches)} touches of tables are fixed as this schedule had them")
    if len(graph.gates):
        notes.append(f"{len(graph.gates)} gates are fixed as this schedule resolved them")
    if np.any(graph.priority != graph.priority[:1]):
        notes.append("priorities are left out")
    served = np.flatnonzero(graph.resource >= 0)
    pairs = np.unique(np.column_stack([graph.resource[served], home[served]]), axis=0)
    shared = int(np.count_nonzero(np.bincount(pairs[:, 0], minlength=1) > 1))
    if shared:
        notes.append(f"{shared} resources serve several ranks: each of these has its own")
    fan_out = int(np.count_nonzero(np.bincount(src[is_between], minlength=1) > 1))
    if fan_out:
        notes.append(f"{fan_out} tasks send to several ranks: each of these is a message of its own")
    homeless = int(np.count_nonzero(graph.rank != home))
    if homeless:
        notes.append(f"{homeless} tasks without a rank are with their resource or a neighbour")
    if transfers == "network":
        notes.append("how long transfers take is left to the network of who runs this")
    return tuple(notes)


# ---- servers -------------------------------------------------------------------------------------


def interval_lanes(group: IntArray, start: IntArray, end: IntArray) -> Int64s:
    """Give overlapping intervals of a group different lanes, as few as possible.

    Intervals take the lowest lane that is free, in order of their start (then end, then
    position); one that ends when another starts makes room for it. A group needs as many lanes
    as intervals overlap at most: no more than servers, where the intervals are services.

    Parameters
    ----------
    group
        Whom the interval belongs to (interval,), such as a resource.
    start, end
        Its two ends (interval,).

    Returns
    -------
    (interval,) lanes, counted from 0 in each group.

    Examples
    --------
    >>> group, start = np.array([7, 7, 7, 8]), np.array([0, 1, 2, 0])
    >>> interval_lanes(group, start, np.array([2, 5, 3, 9])).tolist()
    [0, 1, 0, 0]
    """
    lanes = np.zeros(group.size, np.int64)
    order = np.lexsort((end, start, group))
    groups, starts, ends = group[order], start[order], end[order]
    same = np.flatnonzero((groups[1:] == groups[:-1]) & (starts[1:] < ends[:-1]))
    # Where no interval meets its successor none meets a later one: all are on lane 0.
    for crowded in np.unique(groups[same]):
        low, high = np.searchsorted(groups, [crowded, crowded + 1])
        lanes[order[low:high]] = _greedy(starts[low:high], ends[low:high])
    return lanes


def _greedy(starts: IntArray, ends: IntArray) -> list[int]:
    """Lanes of intervals in order of their start."""
    busy: list[tuple[int, int]] = []  # (end, lane)
    free: list[int] = []
    used = 0
    lanes = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        while busy and busy[0][0] <= start:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if free:
            lane = heapq.heappop(free)
        else:
            lane, used = used, used + 1
        heapq.heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes
