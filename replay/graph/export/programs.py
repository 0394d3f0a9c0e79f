"""A scheduled graph as one program a rank: what simulators of message passing take.

A rank's program holds a *calculation* for every task, a *delay* for the time on the way to tasks
of the same rank, and a *send* or *receive* for every edge that crosses ranks. Operations depend
on others of their own rank only. What was decided when the graph was scheduled is fixed: a gate's
members depend on the tile they landed in, and tasks keep the server they were on.

A task belongs to its rank, else to the owner of its resource, else to where its first predecessor
is (or successor, where it has none).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from replay.graph.errors import UserError
from replay.graph.export.lanes import interval_lanes
from replay.graph.taskgraph import TaskGraph
from replay.graph.timeline import Timeline

Int64s = npt.NDArray[np.int64]

CALCULATION, DELAY, SEND, RECEIVE = range(4)
#: Order of the operations of a task in its rank's program.
_PLACE = np.array([1, 2, 3, 0])  # receives come first, sends last

Transfers = Literal["network", "schedule"]
"""Who times transfers: the other simulator's network, or durations and latencies of the graph."""


@dataclass(frozen=True, eq=False)
class Programs:
    """Programs of all ranks; rows are operations, rank by rank, dependencies before dependents.

    Attributes
    ----------
    num_ranks
        Number of programs.
    what
        `CALCULATION`, `DELAY`, `SEND` or `RECEIVE` (operation,).
    rank
        Whose program it is part of (operation,).
    task
        The task it stands for; of a message the one at this end of the edge (operation,).
    start_ps, end_ps
        When it began and ended in the schedule (operation,); equal where it takes no time.
    server
        Which of its rank's servers it needs (operation,): 0 for what needs none.
    num_servers
        Servers of each rank (rank,), number 0 not counted.
    peer, size_bytes, tag
        Of messages (operation,): the other rank, the size, and a number that no other message
        between the two has. -1, 0 and -1 for other operations.
    indptr, needs
        ``needs[indptr[i]:indptr[i + 1]]`` are the operations that operation ``i`` waits for.
    notes
        What of the graph the programs do not hold, a sentence each.
    """

    num_ranks: int
    what: Int64s
    rank: Int64s
    task: Int64s
    start_ps: Int64s
    end_ps: Int64s
    server: Int64s
    num_servers: Int64s
    peer: Int64s
    size_bytes: Int64s
    tag: Int64s
    indptr: Int64s
    needs: Int64s
    notes: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.what.size)

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


def make_programs(
    timeline: Timeline, transfers: Transfers = "network", max_servers: int | None = None
) -> Programs:
    """Turn a schedule into one program a rank.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    transfers
        With "network", tasks that carry bytes across ranks (both ends of the edge) take no time
        of their own and what they carry is sent: the other simulator's network says how long that
        takes. With "schedule", they keep their durations and latencies, for a network without.
    max_servers
        Most servers a rank may have. Where it has more, operations that did not overlap in the
        schedule share servers, whatever their resources.

    Raises
    ------
    UserError
        If more operations than `max_servers` overlap.
    """
    graph = timeline.graph
    src, dst = _distinct(*resolved_edges(timeline))
    home = home_ranks(graph, src, dst)
    is_message = home[src] != home[dst]
    carried = np.maximum(graph.wire_bytes, graph.payload_bytes)
    size = np.where(graph.wire_bytes > 0, graph.wire_bytes, graph.payload_bytes)
    is_transfer = np.zeros(graph.num_tasks, np.bool_)
    if transfers == "network":
        for ends in (src, dst):
            is_transfer[ends[is_message]] = True
        is_transfer &= carried > 0
    # A task's way to others takes time of its own, unless the network's stands for it.
    has_delay = timeline.on_the_way_ps > 0
    if transfers == "network":
        goes_on = np.ones(graph.num_tasks, np.bool_)
        goes_on[src] = False  # the last task's way counts, too
        goes_on[src[~is_message]] = True
        has_delay &= goes_on
    end = np.where(is_transfer, timeline.start_ps, timeline.end_ps)

    tasks = np.arange(graph.num_tasks, dtype=np.int64)
    delayed = np.flatnonzero(has_delay)
    sent, received = src[is_message], dst[is_message]
    what = np.repeat(
        [CALCULATION, DELAY, SEND, RECEIVE], [tasks.size, delayed.size, sent.size, sent.size]
    )
    task = np.concatenate([tasks, delayed, sent, received])
    visible = timeline.visible_ps
    start_ps = np.concatenate([timeline.start_ps, timeline.end_ps[delayed], end[sent], end[sent]])
    end_ps = np.concatenate([end, visible[delayed], end[sent], end[sent]])

    # Operations by number: calculation t is t, a delay follows all of those, and so on.
    after = tasks.copy()
    after[delayed] = tasks.size + np.arange(delayed.size)
    send = tasks.size + delayed.size + np.arange(sent.size)
    receive = send + sent.size
    source = after if transfers == "schedule" else tasks
    needs = [after[src[~is_message]], delayed, source[sent], receive]
    needers = [dst[~is_message], after[delayed], send, received]

    nothing = np.full(tasks.size + delayed.size, -1, np.int64)
    peer = np.concatenate([nothing, home[received], home[sent]])
    tag = np.tile(_tags(home[sent], home[received]), 2)
    lanes = _Servers(graph, home, what, task, start_ps, end_ps)
    server, num_servers = lanes.number(max_servers)
    order = _program_order(timeline, home, src, dst, what, task)
    number = np.empty(order.size, np.int64)
    number[order] = np.arange(order.size)
    needed_by = number[np.concatenate(needers)]
    by_needer = np.argsort(needed_by, kind="stable")
    counts = np.bincount(needed_by, minlength=order.size)
    return Programs(
        num_ranks=num_servers.size,
        what=what[order],
        rank=home[task][order],
        task=task[order],
        start_ps=start_ps[order],
        end_ps=end_ps[order],
        server=server[order],
        num_servers=num_servers,
        peer=peer[order],
        size_bytes=np.concatenate([nothing * 0, np.tile(size[sent], 2)])[order],
        tag=np.concatenate([nothing, tag])[order],
        indptr=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        needs=number[np.concatenate(needs)][by_needer],
        notes=(*lanes.notes, *_notes(graph, home, is_message, src, transfers)),
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


class _Servers:
    """Numbers the servers of each rank."""

    def __init__(
        self,
        graph: TaskGraph,
        home: Int64s,
        what: Int64s,
        task: Int64s,
        start_ps: Int64s,
        end_ps: Int64s,
    ) -> None:
        self.notes: tuple[str, ...] = ()
        self._num_operations = what.size
        self._num_ranks = int(home.max(initial=0)) + 1
        self._timed = np.flatnonzero(end_ps > start_ps)
        self._start, self._end = start_ps[self._timed], end_ps[self._timed]
        resource = graph.resource[task[self._timed]].astype(np.int64)
        is_delay = (what[self._timed] == DELAY) | (resource < 0)
        # Delays overlap freely; they get as many servers as overlap, behind the resources'.
        self._group = np.where(is_delay, len(graph.resources), resource)
        self._rank = home[task[self._timed]]

    def number(self, max_servers: int | None) -> tuple[Int64s, Int64s]:
        """Server of each operation, 0 where it takes no time, and how many each rank has."""
        group = self._group
        if max_servers is not None:
            crowded = np.flatnonzero(self._lanes(group)[1] > max_servers)
            group = np.where(np.isin(self._rank, crowded), -1, group)
            if crowded.size:
                shared = (
                    f"{crowded.size} ranks have more than {max_servers} servers: there, "
                    "operations that did not overlap share them, whatever their resources"
                )
                self.notes = (shared,)
        server = np.zeros(self._num_operations, np.int64)
        server[self._timed], num_servers = self._lanes(group)
        if max_servers is not None and num_servers.max() > max_servers:
            rank = int(num_servers.argmax())
            message = (
                f"rank {rank} does {int(num_servers[rank])} things at once; the format has room "
                f"for {max_servers}"
            )
            raise UserError(message)
        return server, num_servers

    def _lanes(self, group: Int64s) -> tuple[Int64s, Int64s]:
        lane = interval_lanes((group + 1) * self._num_ranks + self._rank, self._start, self._end)
        rows, of_row = np.unique(
            np.column_stack([self._rank, group, lane]), axis=0, return_inverse=True
        )
        first = np.searchsorted(rows[:, 0], np.arange(self._num_ranks))
        number = 1 + of_row.reshape(-1) - first[self._rank]
        return number, np.bincount(rows[:, 0], minlength=self._num_ranks).astype(np.int64)


def _program_order(
    timeline: Timeline, home: Int64s, src: Int64s, dst: Int64s, what: Int64s, task: Int64s
) -> Int64s:
    """Operations by rank, then in the order of the schedule, dependencies first."""
    start = timeline.start_ps
    level = np.zeros(start.size, np.int64)
    # Tasks that start at the same instant may still wait for each other.
    at_once = np.flatnonzero(start[src] == start[dst])
    while True:
        raised = level[dst[at_once]] <= level[src[at_once]]
        if not raised.any():
            break
        at_once_raised = at_once[raised]
        np.maximum.at(level, dst[at_once_raised], level[src[at_once_raised]] + 1)
    keys = (_PLACE[what], task, level[task], start[task], home[task])
    return np.lexsort(keys).astype(np.int64)


def _notes(
    graph: TaskGraph,
    home: Int64s,
    is_message: npt.NDArray[np.bool_],
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
    fan_out = int(np.count_nonzero(np.bincount(src[is_message], minlength=1) > 1))
    if fan_out:
        notes.append(
            f"{fan_out} tasks send to several ranks: each of these is a message of its own"
        )
    homeless = int(np.count_nonzero(graph.rank != home))
    if homeless:
        notes.append(f"{homeless} tasks without a rank are with their resource or a neighbour")
    if transfers == "network":
        notes.append("how long transfers take is left to the network of who runs this")
    return tuple(notes)
