"""Preparing what the kernel needs to know of tables, and of resources that serve in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.backend.memory import address
from replay.engine.cells import KeyCells
from replay.engine.kernels import layout
from replay.engine.kernels.interning import KeyReferences, Triples, number_keys, rehash
from replay.engine.kernels.packing import pack_touches
from replay.engine.state import Keys
from replay.engine.taskgraph import TURNS, Int32s, Int64s, TaskGraph, Touches

_CACHE_LINE = 64
_ROOM = 256
#: How much larger a table of triples becomes when it is full.
GROWTH = 4

Records = npt.NDArray[Any]


def table_parts(graph: TaskGraph, lane_of: Int64s, order: Int32s, known: Keys | None = None) -> dict[str, Any]:
    """Tables and touches as the kernels read them.

    Parameters
    ----------
    graph
        The graph.
    lane_of
        Lane of each resource whose tasks nothing separates (resource,), -1 for the others.
    order
        (touch,): touches by who touches.
    known
        Keys that tables hold or held; they get numbers too, whether they are touched or not:
        ``known_keys`` (key,).
    """
    tables, touches = graph.tables, graph.touches
    state = layout.TABLE.unset(len(tables))
    state["free"] = tables.room
    state["policy"] = tables.policy
    state["patience"] = tables.patience_ps
    state["backing"] = np.where(tables.backing < 0, -1, lane_of[tables.backing])
    state["port"] = np.where(tables.port < 0, -1, lane_of[tables.port])
    num_tasks = graph.num_tasks if len(touches) else 0
    numbers, num_keys = _number_keys(touches, len(tables), order, known or Keys.none())
    packed = _pack_touches(touches, order, numbers[: len(touches)])
    keys = aligned_zeros(np.zeros, num_keys, layout.KEY.num_bytes // 8)
    return {
        "tables": state,
        **packed,
        "known_keys": numbers[len(touches) :].astype(np.int64),
        "keys": layout.KEY.view(keys),
        "found": np.zeros(len(touches), np.int8),
        "port_served": np.zeros(len(touches) if (tables.port >= 0).any() else 0, np.int64),
        "backing_served": np.zeros(len(touches) if (tables.backing >= 0).any() else 0, np.int64),
        "extra_latency": np.zeros(num_tasks, np.int64),
    }


def _pack_touches(touches: Touches, order: Int32s, numbers: Int32s) -> dict[str, Any]:
    """Records of the touches in the given order, with the numbers of their keys in that order."""
    records = np.empty(len(touches), layout.TOUCH.dtype)
    form = np.empty(len(touches), np.int32)
    forms = prices = costs = np.zeros(0, layout.TRIPLE.dtype)
    sizes = np.zeros(3, np.int64)
    row, room = 0, _ROOM
    while row < len(touches):
        forms, form_table = grow(forms, room, int(sizes[layout.FORMS]))
        prices, price_table = grow(prices, room, int(sizes[layout.PRICES]))
        costs, cost_table = grow(costs, room, int(sizes[layout.COSTS]))
        touching = layout.PackedTouches(
            touches,
            first_row=row,
            num_touches=len(touches),
            room=room,
            order=order,
            number=numbers,
            form=form,
            forms=forms,
            form_table=form_table,
            prices=prices,
            price_table=price_table,
            costs=costs,
            cost_table=cost_table,
            touches=records,
            sizes=sizes,
        )
        row = pack_touches(touching)
        room *= GROWTH
    return {
        "touches": records,
        "forms": forms[: sizes[layout.FORMS]].view(layout.FORM.dtype),
        "prices": prices[: sizes[layout.PRICES]].view(layout.PRICE.dtype),
        "costs": costs[: sizes[layout.COSTS]].view(layout.COST.dtype),
    }


def aligned_zeros(make: Callable[..., Int64s], rows: int, columns: int) -> Int64s:
    """An array of whole numbers (row, column) that begins with a cache line."""
    raw = make(rows * columns + _CACHE_LINE // 8, np.int64)
    offset = (-address(raw) % _CACHE_LINE) // 8
    return raw[offset : offset + rows * columns].reshape(rows, columns)


def grow(triples: Records, room: int, size: int) -> tuple[Records, Int32s]:
    """A larger table of triples with its hash table, holding the first ``size`` again.

    ``room`` is a power of two.
    """
    larger = np.zeros(room, layout.TRIPLE.dtype)
    larger[:size] = triples[:size]
    table = np.full(2 * room, -1, np.int32)
    if size:
        rehash(Triples(size=size, room=room, triples=larger, table=table))
    return larger, table


def _number_keys(touches: Touches, num_tables: int, order: Int32s, known: Keys) -> tuple[Int32s, int]:
    """Number keys as they are first touched in the given order, and then the known ones.

    Returns
    -------
    Their numbers, (touch + key,) in that order, and how many keys there are.
    """
    table, key = touches.table, touches.key
    if len(known):
        table, key = np.concatenate([table, known.table]), np.concatenate([key, known.key])
        order = np.append(order, np.arange(len(touches), key.size, dtype=np.int32))
    cells = KeyCells.of(num_tables, table, key)
    number = np.empty(key.size, np.int32)
    naming = KeyReferences(
        num_rows=key.size,
        order=order,
        table=table,
        key=cells.key,
        first=cells.first,
        cells=np.zeros(cells.size, np.int32),
        number=number,
    )
    return number, number_keys(naming)


def turn_takers(graph: TaskGraph, lanes: Records, nodes: Records, station_of: Int64s) -> tuple[Int32s, Int32s]:
    """Stations that serve in turns, by the pools that their tasks take from, as compressed rows.

    Parameters
    ----------
    graph
        The graph.
    lanes
        (resource, priority, list of needs) of each lane whose tasks something separates (lane,).
    nodes
        Lists of credits (list,).
    station_of
        Station of each resource (resource,).
    """
    discipline = np.append(graph.resources.discipline, 0)
    pairs: set[tuple[int, int]] = set()
    for resource, _, needs in lanes[discipline[lanes["a"]] == TURNS].tolist():
        while needs >= 0:
            pairs.add((int(nodes["pool"][needs]), int(station_of[resource])))
            needs = int(nodes["next"][needs])
    if not pairs:
        return np.zeros(1, np.int32), np.zeros(0, np.int32)
    rows = np.array(sorted(pairs), np.int32)
    indptr = np.searchsorted(rows[:, 0], np.arange(len(graph.pools) + 1)).astype(np.int32)
    return indptr, np.ascontiguousarray(rows[:, 1])
