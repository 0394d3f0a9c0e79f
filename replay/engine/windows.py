"""Windows of a graph given in parts: tasks that are not over, and those they refer to.

A window is a task graph of its own, with what has happened to its tasks. It loses the tasks that
are over and gains those of the next part, so that there is no more of a graph in memory than what
can happen about now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.columns import EdgeBlocks, is_constant
from replay.engine.critical_path import LastMet
from replay.engine.kernels.edges import sort_edges
from replay.engine.state import FRESH, PAST, Keys, State
from replay.engine.taskgraph import (
    Bools,
    Gates,
    GraphPart,
    Int32s,
    Int64s,
    TaskGraph,
    Touches,
    renumber,
)

Place = Callable[[Int32s | Int64s], Int64s]
"""Where tasks of a window that are kept stand afterwards."""

COLUMNS = (
    "resource",
    "kind",
    "duration_ps",
    "latency_ps",
    "priority",
    "payload_bytes",
    "wire_bytes",
    "rank",
    "tag",
)


@dataclass(frozen=True, eq=False)
class GraphWindow:
    """Tasks that are not over, and those they refer to.

    Attributes
    ----------
    graph
        The tasks, counted from 0; its `ids` are their numbers in the whole. Stand-ins for tasks
        that are over come first; the ids of all others ascend.
    state
        What has happened to them.
    touch_ids
        (touch,): numbers of the touches in the whole.
    is_counted
        (task,): whether the task has been reported as over.
    met
        Whom each task waited for last, edges alone.
    """

    graph: TaskGraph
    state: State
    touch_ids: Int64s
    is_counted: Bools
    met: LastMet

    @property
    def ids(self) -> Int64s:
        """(task,): numbers of the tasks in the whole."""
        assert self.graph.ids is not None
        return self.graph.ids

    @classmethod
    def of(cls, part: GraphPart) -> GraphWindow:
        """The first part of a graph."""
        graph = part.graph
        return cls(
            replace(graph, ids=part.first_task + np.arange(graph.num_tasks, dtype=np.int64)),
            State.at_first(graph),
            part.first_touch + np.arange(len(graph.touches), dtype=np.int64),
            np.zeros(graph.num_tasks, np.bool_),
            LastMet.nobody(graph.num_tasks),
        )

    def rest(self, left: Int64s, waited: LastMet) -> GraphWindow:
        """Window of tasks that are not over, and of those that they refer to.

        Parameters
        ----------
        left
            (left task,): tasks that are not over.
        waited
            Whom each of these waited for last (left task,), edges alone.
        """
        graph, state, status = self.graph, self.state, self.state.status
        is_over = status == PAST
        keep = ~is_over
        takes, touches, gates = graph.takes, graph.touches, graph.gates
        of_take = ~is_over[takes.task] | ~is_over[takes.released_by]
        shared = takes.share >= 0
        if shared.any():
            stays = np.bincount(takes.share[shared], weights=of_take[shared]) > 0
            of_take[shared] = stays[takes.share[shared]]
        of_touch = ~is_over[touches.task]
        of_member, of_tile, is_open = _open_gates(gates, ~is_over)
        for tasks in (
            takes.task[of_take],
            takes.released_by[of_take],
            touches.charged[of_touch],
            gates.member_task[of_member],
            gates.tile_first[of_tile],
            gates.tile_last[of_tile],
            gates.member_waiter[of_member & (gates.member_waiter >= 0)],
        ):
            keep[tasks] = True
        rows = np.flatnonzero(keep)

        def place(tasks: Int32s | Int64s) -> Int64s:
            return np.searchsorted(rows, tasks)

        left_touches = _rows(touches, of_touch, place)
        shares = np.cumsum(np.bincount(takes.share[of_take & shared], minlength=1) > 0) - 1
        left_takes = _rows(takes, of_take, place)
        if shared.any():
            share = np.where(left_takes.share >= 0, shares[left_takes.share], -1)
            left_takes = replace(left_takes, share=share.astype(np.int32))
        left_gates = _left_gates(gates, is_open, of_member, of_tile, place)
        edges = EdgeBlocks()
        source, target = graph.edges_of(left)
        waits = status[target] == FRESH
        edges.append(place(source[waits]), place(target[waits]), int(waits.sum()))
        indptr, successors, num_edges = with_events(edges, left_gates, rows.size, status[rows])
        kept = replace(
            graph,
            takes=left_takes,
            touches=left_touches,
            gates=left_gates,
            **each(COLUMNS, lambda name: _column(getattr(graph, name), rows)),
            indptr=indptr,
            successors=successors,
            num_predecessors=state.missing[rows],
            is_numbered_forward=False,
            num_edges=num_edges,
            ids=self.ids[rows],
        )
        of_rows = replace(
            state,
            **each(_OF_TASKS, lambda name: getattr(state, name)[rows]),
            **each(_OF_TOUCHES, lambda name: getattr(state, name)[of_touch]),
            keys=_left_keys(state.keys, left_touches),
            **_left_slots(state, gates, of_member, of_tile, is_open, place),
        )
        met = LastMet.nobody(rows.size)
        at = place(left)
        met.ready_ps[at], met.cause[at] = waited.ready_ps, waited.cause
        return GraphWindow(kept, of_rows, self.touch_ids[of_touch], self.is_counted[rows], met)


_OF_TASKS = (
    "status",
    "missing",
    "ready_ps",
    "visible_ps",
    "extra_service_ps",
    "extra_latency_ps",
)
_OF_TOUCHES = ("found", "port_served", "backing_served")


def each(names: Iterable[str], make: Callable[[str], Any]) -> dict[str, Any]:
    """Columns by name."""
    return {name: make(name) for name in names}


def _column(column: npt.NDArray[Any], rows: Int64s) -> npt.NDArray[Any]:
    """Some rows; a column of one value stays one."""
    return np.broadcast_to(column[0], rows.shape) if is_constant(column) else column[rows]


def _rows(table: Any, some: Bools, place: Place) -> Any:
    """Some rows of takes or touches, with the tasks that they name numbered anew."""
    columns = {field.name: getattr(table, field.name)[some] for field in fields(table)}
    return renumber(type(table)(**columns), lambda tasks: place(tasks).astype(np.int32))


def _open_gates(gates: Gates, is_live: Bools) -> tuple[Bools, Bools, Bools]:
    """Gates any of whose tasks is not over: (member,), (tile,) and (gate,)."""
    of_member = np.repeat(np.arange(len(gates)), np.diff(gates.member_indptr))
    of_tile = np.repeat(np.arange(len(gates)), np.diff(gates.tile_indptr))
    waits = gates.member_waiter >= 0
    is_open = np.zeros(len(gates), np.bool_)
    for gate, tasks in (
        (of_member, gates.member_task),
        (of_member[waits], gates.member_waiter[waits]),
        (of_tile, gates.tile_first),
        (of_tile, gates.tile_last),
    ):
        is_open[gate[is_live[tasks]]] = True
    return is_open[of_member], is_open[of_tile], is_open


def _left_gates(gates: Gates, is_open: Bools, of_member: Bools, of_tile: Bools, place: Place) -> Gates:
    def indptr(bounds: Int64s) -> Int64s:
        return np.concatenate([[0], np.cumsum(np.diff(bounds)[is_open])]).astype(np.int64)

    def tasks(column: Int32s, some: Bools) -> Int32s:
        of = column[some]
        return np.where(of >= 0, place(of), -1).astype(np.int32)

    return Gates(
        indptr(gates.member_indptr),
        tasks(gates.member_task, of_member),
        tasks(gates.member_waiter, of_member),
        gates.member_position[of_member],
        indptr(gates.tile_indptr),
        gates.tile_slots[of_tile],
        tasks(gates.tile_first, of_tile),
        tasks(gates.tile_last, of_tile),
    )


def _left_slots(
    state: State,
    gates: Gates,
    of_member: Bools,
    of_tile: Bools,
    is_open: Bools,
    place: Place,
) -> dict[str, Any]:
    """History of the gates that are left. Slots are as many as members, gate by gate."""
    moved = np.cumsum(of_member) - 1
    slot = state.member_slot[of_member]
    waiter = state.slot_waiter[of_member]
    following = state.next_slot[is_open]
    first = gates.member_indptr[:-1][is_open]
    left_first = np.concatenate([[0], np.cumsum(np.diff(gates.member_indptr)[is_open])])[:-1]
    return {
        "member_slot": np.where(slot >= 0, moved[np.maximum(slot, 0)], -1),
        "next_slot": (following - first + left_first).astype(np.int64),
        "slot_waiter": np.where(waiter >= 0, place(waiter), -1),
        "open_slots": state.open_slots[of_tile],
        "is_done": state.is_done[of_tile],
    }


def _left_keys(keys: Keys, touches: Touches) -> Keys:
    """Keys that tables hold, and of the others those that somebody still asks for."""
    if not len(keys):
        return keys
    wide = int(max(keys.key.max(), touches.key.max(initial=0))) + 1
    asked = np.unique(touches.table.astype(np.int64) * wide + touches.key)
    return keys.only(keys.is_present | np.isin(keys.table * wide + keys.key, asked))


def with_events(
    edges: EdgeBlocks, gates: Gates, num_tasks: int, status: npt.NDArray[np.int8]
) -> tuple[Int32s, Int32s, int]:
    """Sort edges and the events of gates still to come: first of each task, targets, number of edges."""
    for tasks, number in ((gates.member_task, 0), (gates.tile_last, gates.num_members)):
        some = np.flatnonzero(status[tasks] != PAST)
        edges.append(tasks[some], -1 - (number + some), some.size)
    indptr, successors, _, num_edges, _ = sort_edges(edges, num_tasks)
    return indptr, successors, num_edges
