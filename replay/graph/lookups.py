"""Preparing what the kernel needs to know of tables, and of resources that serve in turns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from replay.graph.columns import IntArray, stepped
from replay.graph.kernels import layout, pack_touches, rehash
from replay.graph.kernels.interning import Triples
from replay.graph.state import Keys
from replay.graph.taskgraph import TURNS, Int32s, Int64s, TaskGraph, Touches

#: Keys that are not used, for every touch, before keys are sorted: they cost four bytes each.
_SPARE_KEYS = 16
_CACHE_LINE = 64
_LARGEST = 2**63 - 1

Records = npt.NDArray[Any]


def table_parts(
    graph: TaskGraph, lane_of: Int64s, indptr: Int32s, order: Int32s, known: Keys | None = None
) -> dict[str, Any]:
    """Tables and touches as the kernels read them.

    Parameters
    ----------
    graph
        The graph.
    lane_of
        Lane of each resource whose tasks nothing separates (resource,), -1 for the others.
    indptr, order
        Touches by who touches, as compressed rows.
    known
        Keys that tables hold or held; they get numbers too, whether they are touched or not:
        ``known_keys`` (key,).
    """
    tables, touches = graph.tables, graph.touches
    state = np.full(len(tables), -1, layout.TABLE.dtype)
    state["free"] = tables.room
    state["policy"] = tables.policy
    state["patience"] = tables.patience_ps
    state["backing"] = np.where(tables.backing < 0, -1, lane_of[tables.backing])
    state["port"] = np.where(tables.port < 0, -1, lane_of[tables.port])
    state["lag"] = tables.lag_ps
    num_tasks = graph.num_tasks if len(touches) else 0
    packed, num_keys = _pack_touches(touches, len(tables), order, known or Keys.none())
    keys = aligned(np.zeros, num_keys, layout.KEY.num_bytes // 8)
    return {
        "touch_indptr": indptr,
        "tables": state,
        **packed,
        "keys": layout.KEY.view(keys),
        "found": np.zeros(len(touches), np.int8),
        "port_served": np.zeros(len(touches) if (tables.port >= 0).any() else 0, np.int64),
        "backing_served": np.zeros(len(touches) if (tables.backing >= 0).any() else 0, np.int64),
        "extra_latency": np.zeros(num_tasks, np.int64),
    }


def _pack_touches(
    touches: Touches, num_tables: int, order: Int32s, known: Keys
) -> tuple[dict[str, Any], int]:
    """Records of the touches in the given order, what they have in common, and how many keys."""
    place_of, base, of_known, num_places = _places_of_keys(touches, num_tables, known)
    key_number = np.full(num_places, -1, np.int32)
    records = np.empty(len(touches), layout.TOUCH.dtype)
    forms = prices = costs = np.zeros(0, layout.TRIPLE.dtype)
    sizes = np.zeros(4, np.int64)
    place, room = 0, 64
    while place < len(touches):
        forms, form_table = grown(forms, room, int(sizes[layout.FORMS]))
        prices, price_table = grown(prices, room, int(sizes[layout.PRICES]))
        costs, cost_table = grown(costs, room, int(sizes[layout.COSTS]))
        touching = layout.Touching(
            first_place=place,
            num_touches=len(touches),
            room=room,
            order=order,
            key_place=stepped(place_of),
            table=stepped(touches.table),
            miss_latency=stepped(touches.miss_latency_ps),
            miss_duration=stepped(touches.miss_duration_ps),
            evict_duration=stepped(touches.evict_duration_ps),
            port_duration=stepped(touches.port_duration_ps),
            units=stepped(touches.units),
            charged=stepped(touches.charged),
            drops=stepped(touches.drops.view(np.int8)),
            base=base,
            key_number=key_number,
            forms=forms,
            form_table=form_table,
            prices=prices,
            price_table=price_table,
            costs=costs,
            cost_table=cost_table,
            touches=records,
            sizes=sizes,
        )
        place = pack_touches(touching)
        room *= 2
    is_new = key_number[of_known] < 0
    num_keys = int(sizes[layout.KEYS])
    key_number[of_known[is_new]] = np.arange(num_keys, num_keys + int(is_new.sum()))
    packed = {
        "known_keys": key_number[of_known].astype(np.int64),
        "touches": records,
        "forms": forms[: sizes[layout.FORMS]].view(layout.FORM.dtype),
        "prices": prices[: sizes[layout.PRICES]].view(layout.PRICE.dtype),
        "costs": costs[: sizes[layout.COSTS]].view(layout.COST.dtype),
    }
    return packed, num_keys + int(is_new.sum())


def aligned(make: Callable[..., Int64s], rows: int, columns: int) -> Int64s:
    """An array of whole numbers (row, column) that begins with a cache line."""
    raw = make(rows * columns + _CACHE_LINE // 8, np.int64)
    offset = (-raw.ctypes.data % _CACHE_LINE) // 8
    return raw[offset : offset + rows * columns].reshape(rows, columns)


def grown(triples: Records, room: int, size: int) -> tuple[Records, Int32s]:
    """A larger table of triples with its hash table, holding the first ``size`` again.

    ``room`` is a power of two.
    """
    larger = np.zeros(room, layout.TRIPLE.dtype)
    larger[:size] = triples[:size]
    table = np.full(2 * room, -1, np.int32)
    rehash(Triples(size=size, room=room, triples=larger, table=table))
    return larger, table


def _places_of_keys(
    touches: Touches, num_tables: int, known: Keys
) -> tuple[IntArray, Int64s, Int64s, int]:
    """Give each (table, key) a place.

    Keys that use few of the numbers between them are replaced by their rank.

    Returns
    -------
    (touch,) and (table,), to be added up; (key,) those of the known ones; and the places' number.
    """
    kind = touches.key.dtype  # what is to be compared many times has to be of one type
    smallest, largest = np.full(num_tables, np.iinfo(kind).max, kind), np.full(num_tables, -1, kind)
    np.minimum.at(smallest, touches.table, touches.key)
    np.maximum.at(largest, touches.table, touches.key)
    smallest, largest = np.where(largest < 0, _LARGEST, smallest), largest.astype(np.int64)
    np.maximum.at(largest, known.table, known.key)
    # Keys that are not touched are of earlier parts and smaller: each gets a place of its own.
    is_old = known.key < smallest[known.table]
    spans = np.maximum(largest - smallest + 1, 0)
    num_old = int(is_old.sum())
    total = sum(spans.tolist()) + num_old  # a Python sum: keys may be large
    if total <= _SPARE_KEYS * (len(touches) + len(known)) + num_tables:
        base = np.cumsum(spans) - spans - np.where(spans > 0, smallest, 0)
        place = base[known.table] + known.key
        place[is_old] = total - num_old + np.arange(num_old)
        return touches.key, base, place, total
    key, of_table = np.append(touches.key, known.key), np.append(touches.table, known.table)
    order = np.lexsort((key, of_table))
    is_new = np.ones(key.size, np.bool_)
    table_, key_ = of_table[order], key[order]
    is_new[1:] = (np.diff(table_) != 0) | (key_[1:] != key_[:-1])
    rank = np.empty(key.size, np.int64)
    rank[order] = np.cumsum(is_new) - 1
    base = np.zeros(num_tables, np.int64)
    return rank[: len(touches)], base, rank[len(touches) :], int(is_new.sum())


def who_looks_up(graph: TaskGraph) -> tuple[npt.NDArray[np.bool_], Int64s]:
    """Resources whose services touches may lengthen, and touches of each that may be late.

    Both (resource,), the null resource last.
    """
    touches, size = graph.touches, len(graph.resources) + 1
    looks_up = np.zeros(size, np.bool_)
    if len(touches) == 0:
        return looks_up, np.zeros(size, np.int64)
    looks_up[graph.resource[touches.task]] = True
    looks_up[graph.resource[touches.charged]] = True
    late = graph.resource[touches.task[touches.miss_latency_ps > 0]]
    return looks_up, np.bincount(late, minlength=size).astype(np.int64)


def turn_takers(
    graph: TaskGraph, lanes: Records, nodes: Records, station_of: Int64s
) -> tuple[Int32s, Int32s]:
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
