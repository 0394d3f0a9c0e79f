"""Putting a part of a graph behind the window of those before it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from replay.engine.columns import EdgeBlocks, add_in_place, in_front
from replay.engine.critical_path import LastMet
from replay.engine.errors import GraphError
from replay.engine.kernels.layout import SIGNAL
from replay.engine.state import FLYING, PAST, Keys
from replay.engine.taskgraph import (
    NULL_RESOURCE,
    CreditTakes,
    Gates,
    GraphPart,
    Int32s,
    Int64s,
    Touches,
    renumber,
)
from replay.engine.windows import COLUMNS, GraphWindow, each, with_events

_Rows = TypeVar("_Rows", CreditTakes, Touches)

#: Of a task that only stands for one that is over: a pure delay of nobody.
_NOBODY = {"resource": NULL_RESOURCE, "rank": -1, "tag": -1}


def with_part(window: GraphWindow, part: GraphPart, over_ids: Int64s, over_visible_ps: Int64s) -> GraphWindow:
    """Add a part to a window, which is given up with it.

    Parameters
    ----------
    window
        What is left of the parts before.
    part
        The part, of the same resources, pools and tables, perhaps with more of them.
    over_ids, over_visible_ps
        (task,): tasks of earlier parts that are over, which the part waits for, and when they were
        visible. Ascending.

    Raises
    ------
    GraphError
        If it waits for a task that is neither in the window nor among these, or asks for keys that
        an earlier part may have asked for.
    """
    return _join(_report_again(window, over_ids, over_visible_ps), part)


def _report_again(window: GraphWindow, over_ids: Int64s, over_visible_ps: Int64s) -> GraphWindow:
    """Put tasks in front that stand for those that are over: they are reported once more."""
    count = over_ids.size
    if not count:
        return window
    graph, state = window.graph, window.state

    def column(name: str) -> npt.NDArray[Any]:
        of = getattr(graph, name)
        return np.concatenate([np.full(count, _NOBODY.get(name, 0), of.dtype), of])

    def move(tasks: Int32s) -> Int32s:
        return np.where(tasks >= 0, tasks + count, -1).astype(np.int32)

    nothing = np.zeros(count, np.int64)
    is_task = graph.successors >= 0
    before = {
        "status": np.full(count, FLYING, np.int8),
        "missing": nothing.astype(np.int32),
        "ready_ps": nothing,
        "visible_ps": over_visible_ps,
        "extra_service_ps": nothing,
        "extra_latency_ps": nothing,
    }
    return GraphWindow(
        replace(
            graph,
            takes=renumber(graph.takes, move),
            touches=renumber(graph.touches, move),
            gates=renumber(graph.gates, move),
            **each(COLUMNS, column),
            indptr=np.concatenate([np.zeros(count, np.int32), graph.indptr]),
            successors=np.where(is_task, graph.successors + count, graph.successors).astype(np.int32),
            num_predecessors=np.concatenate([before["missing"], graph.num_predecessors]),
            ids=np.concatenate([over_ids, window.ids]),
        ),
        replace(
            state,
            **each(before, lambda name: np.concatenate([before[name], getattr(state, name)])),
            slot_waiter=np.where(state.slot_waiter >= 0, state.slot_waiter + count, -1),
        ),
        window.touch_ids,
        np.concatenate([np.ones(count, np.bool_), window.is_counted]),
        _met_of(LastMet.nobody(count), window.met),
    )


def _join(window: GraphWindow, part: GraphPart) -> GraphWindow:
    """Put a part behind a window."""
    graph, state, added = window.graph, window.state, part.graph
    count = graph.num_tasks
    num_touches = len(added.touches)
    source = _places(window, part.outer_source)
    _check_keys(state.keys, graph.touches, added.touches)
    gates, more = graph.gates, added.gates
    edges = EdgeBlocks()
    src, dst = graph.edges()
    edges.append(src, dst, src.size)
    edges.append(source, part.outer_target + count, source.size)
    joined_gates = _joined_gates(gates, more, count)
    indptr, successors, num_edges = with_events(edges, gates, count + added.num_tasks, state.status)
    missing = added.num_predecessors.copy()
    np.add.at(missing, part.outer_target, 1)
    both = replace(
        graph,
        resources=added.resources,
        pools=added.pools,
        tables=added.tables,
        takes=_joined_takes(graph.takes, added.takes, count),
        touches=_behind(graph.touches, added.touches, count),
        gates=joined_gates,
        **each(COLUMNS, lambda name: in_front(getattr(graph, name), getattr(added, name))),
        indptr=np.concatenate([indptr[:count], added.indptr + indptr[-1]]),
        successors=np.concatenate(
            [
                _renumber(successors, gates, 0, joined_gates, 0, 0),
                _renumber(added.successors, more, count, joined_gates, gates.num_members, gates.num_tiles),
            ]
        ),
        num_predecessors=np.concatenate([state.missing, missing]),
        num_edges=num_edges + added.num_edges,
        ids=np.concatenate([window.ids, part.first_task + np.arange(added.num_tasks, dtype=np.int64)]),
    )
    return GraphWindow(
        both,
        replace(
            state,
            free_units=np.append(state.free_units, added.pools.capacity[state.free_units.size :]),
        ),
        np.append(window.touch_ids, part.first_touch + np.arange(num_touches, dtype=np.int64)),
        np.append(window.is_counted, np.zeros(added.num_tasks, np.bool_)),
        _met_of(window.met, LastMet.nobody(added.num_tasks)),
    )


def _places(window: GraphWindow, ids: Int64s | Int32s) -> Int64s:
    """Positions in a window of tasks that are not over, or are reported once more."""
    rows = np.flatnonzero(window.state.status != PAST)
    rows = rows[np.argsort(window.ids[rows], kind="stable")]
    if not ids.size:
        return rows[:0]
    found = rows[np.minimum(np.searchsorted(window.ids[rows], ids), rows.size - 1)]
    if np.any(window.ids[found] != ids):
        task = int(ids[int(np.argmax(window.ids[found] != ids))])
        message = f"a part waits for task {task}, which is long over"
        raise GraphError(message)
    return found


def _met_of(one: LastMet, other: LastMet) -> LastMet:
    return LastMet(np.append(one.ready_ps, other.ready_ps), np.append(one.cause, other.cause))


def _renumber(successors: Int32s, own: Gates, count: int, whole: Gates, members: int, tiles: int) -> Int32s:
    """Targets of edges in the whole: tasks moved by ``count``, events by the gates before."""
    moved = successors + np.int32(count)
    events = np.flatnonzero(successors < 0)
    event = -1 - successors[events].astype(np.int64)
    is_tile = (event >= own.num_members) & (event != -1 - SIGNAL)
    event[event < own.num_members] += members
    event[is_tile] += tiles + whole.num_members - own.num_members
    moved[events] = -1 - event
    return moved


def _joined_takes(takes: CreditTakes, more: CreditTakes, count: int) -> CreditTakes:
    shares = int(takes.share.max(initial=-1)) + 1
    if shares and (more.share >= 0).any():
        share = np.where(more.share >= 0, more.share + shares, -1).astype(np.int32)
        more = replace(more, share=share)
    return _behind(takes, more, count)


def _behind(rows: _Rows, more: _Rows, count: int) -> _Rows:
    """Takes or touches behind those of a window of so many tasks."""
    moved = renumber(more, lambda tasks: add_in_place(tasks, count))
    names = [field.name for field in fields(rows)]
    return replace(rows, **each(names, lambda of: in_front(getattr(rows, of), getattr(moved, of))))


def _joined_gates(gates: Gates, more: Gates, count: int) -> Gates:
    moved = renumber(more, lambda of: np.where(of >= 0, of + count, -1).astype(np.int32))
    moved = replace(
        moved,
        member_indptr=more.member_indptr[1:] + gates.num_members,
        tile_indptr=more.tile_indptr[1:] + gates.num_tiles,
    )
    names = [field.name for field in fields(gates)]
    return Gates(**each(names, lambda of: np.append(getattr(gates, of), getattr(moved, of))))


def _check_keys(known: Keys, touches: Touches, more: Touches) -> None:
    """Refuse keys that an earlier part may have asked for: what is known of them is forgotten."""
    for table, key in ((known.table, known.key), (touches.table, touches.key)):
        if not key.size or not len(more):
            continue
        size = int(max(table.max(), more.table.max())) + 1
        largest = np.full(size, -1, np.int64)
        np.maximum.at(largest, table, key)
        if np.any(more.key <= largest[more.table]):
            row = int(np.argmax(more.key <= largest[more.table]))
            message = (
                f"touch {row} of a part asks for key {int(more.key[row])} of table "
                f"{int(more.table[row])}; a part's keys are larger than those of earlier parts"
            )
            raise GraphError(message)
