# mypy: allow-untyped-defs, allow-untyped-calls
"""Sorting a graph's edges, orders of its tasks, and rows by groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from replay.engine.backend.compiling import AHEAD, entry, inline, prefetch
from replay.engine.backend.memory import FixedNumber, KernelMemory, Number, StridedColumn, Vector
from replay.engine.columns import EdgeBlocks, IntArray
from replay.engine.errors import GraphError
from replay.engine.kernels.layout import SIGNAL


class EdgeBlock(KernelMemory):
    """A block of edges: edge ``i`` goes from ``source[i] + i * source_slope``; see `EdgeBlocks`."""

    count = FixedNumber()
    num_tasks = FixedNumber()
    source = StridedColumn()
    source_slope = FixedNumber()
    target = StridedColumn()
    target_slope = FixedNumber()
    indptr = Vector(np.int32)
    num_predecessors = Vector(np.int32)
    successors = Vector(np.int32)
    totals = Vector(np.int64)


#: ``EdgeBlock.totals``: edges between tasks, and those that go to no larger id.
BETWEEN, BACKWARD = 0, 1


@entry(EdgeBlock)
def count_edges(b):
    """Count a block's successors into ``indptr[2:]``, and predecessors; look for odd edges.

    ``indptr`` has two rows more than there are tasks; a negative target is a gate event and counts
    as a successor only. Returns the row of a dangling edge or -1.
    """
    num_edges = 0
    num_backward = 0
    for edge in range(b.count):
        u = b.source[edge] + edge * b.source_slope
        v = b.target[edge] + edge * b.target_slope
        if u >= b.num_tasks or v >= b.num_tasks:
            return edge
        b.indptr[u + 2] = b.indptr[u + 2] + 1
        if v >= 0:
            b.num_predecessors[v] = b.num_predecessors[v] + 1
            num_edges += 1
            if v <= u:
                num_backward += 1
    b.totals[BETWEEN] = b.totals[BETWEEN] + num_edges
    b.totals[BACKWARD] = b.totals[BACKWARD] + num_backward
    return -1


@entry(EdgeBlock)
def place_edges(b):
    """Scatter a block's targets to their source's row, in order; ``indptr[1:]`` is the cursor."""
    for edge in range(b.count):
        row = b.source[edge] + edge * b.source_slope + 1
        place = b.indptr[row]
        b.successors[place] = b.target[edge] + edge * b.target_slope
        b.indptr[row] = place + 1


def sort_edges(
    edges: EdgeBlocks, num_tasks: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32], int, bool]:
    """Sort edges by their source (a counting sort, stable), giving the blocks up on the way.

    Returns
    -------
    First edge of each task (task + 1,), targets (edge,), predecessors of each task (task,), number
    of edges between tasks, and whether all of them go from a smaller to a larger id.

    Raises
    ------
    GraphError
        If an edge names a task that does not exist.
    """
    indptr = np.zeros(num_tasks + 2, np.int32)
    num_predecessors = np.zeros(num_tasks, np.int32)
    successors = np.empty(len(edges), np.int32)
    totals = np.zeros(2, np.int64)

    blocks = [
        EdgeBlock(
            count=count,
            num_tasks=num_tasks,
            source=source,
            source_slope=source_slope,
            target=target,
            target_slope=target_slope,
            indptr=indptr,
            num_predecessors=num_predecessors,
            successors=successors,
            totals=totals,
        )
        for count, (source, source_slope), (target, target_slope) in edges.pop_all()
    ]
    for block in blocks:
        bad = count_edges(block)
        if bad >= 0:
            of = block.arrays
            u, v = (int(of[end][bad]) + bad * of[f"{end}_slope"] for end in ("source", "target"))
            message = f"edge {u} -> {v} names a task that does not exist; there are {num_tasks} tasks"
            raise GraphError(message)
    np.cumsum(indptr[1:], out=indptr[1:], dtype=np.int32)  # the first places, one row further on
    blocks.reverse()
    while blocks:  # popping frees each block as soon as it is placed
        place_edges(blocks.pop())
    is_forward = int(totals[BACKWARD]) == 0
    return indptr[: num_tasks + 1], successors, num_predecessors, int(totals[BETWEEN]), is_forward


class KeyedRows(KernelMemory):
    """Rows with a key each, to be sorted by it."""

    num_rows = FixedNumber()
    num_groups = FixedNumber()
    key = Vector(np.int32)
    indptr = Vector(np.int32)
    order = Vector(np.int32)


@entry(KeyedRows)
def _group_rows(r):
    """Counting sort with the counts and cursors in ``indptr``."""
    indptr = r.indptr
    for row in range(r.num_rows):
        key = r.key[row] + 2
        indptr[key] = indptr[key] + 1
    for group in range(2, r.num_groups + 2):
        indptr[group] = indptr[group] + indptr[group - 1]
    for row in range(r.num_rows):
        key = r.key[row] + 1
        place = indptr[key]
        r.order[place] = row
        indptr[key] = place + 1


def group_rows(keys: IntArray, num_groups: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Sort rows by their key, from 0 on: rows ``order[indptr[g]:indptr[g + 1]]`` have key ``g``.

    Returns
    -------
    ``indptr`` (group + 1,) and ``order`` (row,); rows of one key stay in order.
    """
    indptr = np.zeros(num_groups + 2, np.int32)
    order = np.empty(keys.size, np.int32)
    key = np.ascontiguousarray(keys, np.int32)
    rows = KeyedRows(num_rows=keys.size, num_groups=num_groups, key=key, indptr=indptr, order=order)
    _group_rows(rows)
    return indptr[: num_groups + 1], order


class Order(KernelMemory):
    """A graph with its gates, to be brought into an order."""

    num_tasks = FixedNumber()
    num_members = FixedNumber()
    num_gates = FixedNumber()
    done = Number()
    indptr = Vector(np.int32)
    successors = Vector(np.int32)
    missing = Vector(np.int32)
    member_indptr = Vector(np.int64)
    member_waiter = Vector(np.int32)
    member_gate = Vector(np.int32)
    tile_indptr = Vector(np.int64)
    tile_slots = Vector(np.int32)
    tile_first = Vector(np.int32)
    tile_gate = Vector(np.int32)
    arrivals = Vector(np.int32)
    tiles = Vector(np.int32)
    order = Vector(np.int32)


@inline
def _count_down(g, counts, index, node):
    """One thing less to wait for; the node comes next if that was the last."""
    remaining = counts[index] - 1
    counts[index] = remaining
    if remaining == 0:
        g.order[g.done] = node
        g.done += 1


@inline
def _prefetch_ahead(g, head):
    """Ask for what is read of later nodes: a step each, as each names what comes next."""
    if head + AHEAD < g.done and g.order[head + AHEAD] < g.num_tasks:
        prefetch(g.indptr, g.order[head + AHEAD])
    if head + AHEAD // 2 < g.done and g.order[head + AHEAD // 2] < g.num_tasks:
        prefetch(g.successors, g.indptr[g.order[head + AHEAD // 2]])
    if head + AHEAD // 4 < g.done and g.order[head + AHEAD // 4] < g.num_tasks:
        node = g.order[head + AHEAD // 4]
        if g.indptr[node] < g.indptr[node + 1]:
            prefetch(g.missing, g.successors[g.indptr[node]])


@entry(Order)
def _order_tasks(g):
    """Take what waits for nothing, then what waits for that alone, and so on.

    ``missing`` starts as the number of predecessors (a gate's dependency counts as one),
    ``arrivals`` and ``tiles`` as those of each gate; all are used up. Returns how many nodes were
    reached.
    """
    for task in range(g.num_tasks):
        if g.missing[task] == 0:
            g.order[g.done] = task
            g.done += 1
    for gate in range(g.num_gates):
        if g.arrivals[gate] == 0:
            g.order[g.done] = g.num_tasks + 2 * gate
            g.done += 1
        if g.tiles[gate] == 0:
            g.order[g.done] = g.num_tasks + 2 * gate + 1
            g.done += 1
    head = 0
    while head < g.done:
        node = g.order[head]
        _prefetch_ahead(g, head)
        head += 1
        gate = (node - g.num_tasks) >> 1
        if node < g.num_tasks:
            for edge in range(g.indptr[node], g.indptr[node + 1]):
                target = g.successors[edge]
                event = -1 - target
                if target >= 0:
                    _count_down(g, g.missing, target, target)
                elif event < g.num_members:
                    gate = g.member_gate[event]
                    _count_down(g, g.arrivals, gate, g.num_tasks + 2 * gate)
                elif target != SIGNAL:
                    gate = g.tile_gate[event - g.num_members]
                    _count_down(g, g.tiles, gate, g.num_tasks + 2 * gate + 1)
        elif (node - g.num_tasks) & 1 == 0:
            for tile in range(g.tile_indptr[gate], g.tile_indptr[gate + 1]):
                if g.tile_slots[tile] > 0:
                    _count_down(g, g.missing, g.tile_first[tile], g.tile_first[tile])
        else:
            for member in range(g.member_indptr[gate], g.member_indptr[gate + 1]):
                waiter = g.member_waiter[member]
                if waiter >= 0:
                    _count_down(g, g.missing, waiter, waiter)
    return g.done


def order_tasks(graph: Any) -> npt.NDArray[np.int32]:
    """Kahn's order with two extra nodes per gate, as far as it gets; see `TaskGraph.order`."""
    gates = graph.gates
    arrivals, tiles = np.diff(gates.member_indptr), np.diff(gates.tile_indptr)
    numbers = np.arange(len(gates), dtype=np.int32)
    order = np.empty(graph.num_tasks + 2 * len(gates), np.int32)
    memory = Order(
        graph,
        gates,
        num_gates=len(gates),
        missing=graph.num_predecessors.copy(),
        member_gate=numbers.repeat(arrivals),
        tile_gate=numbers.repeat(tiles),
        arrivals=arrivals.astype(np.int32),
        tiles=tiles.astype(np.int32),
        order=order,
    )
    return order[: _order_tasks(memory)]
