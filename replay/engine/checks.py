"""Refusing graphs that cannot be run and runs that cannot go on, naming the tasks to blame."""

from __future__ import annotations

import numpy as np

from replay.engine.columns import IntArray, is_constant
from replay.engine.errors import GraphError
from replay.engine.taskgraph import LINE, Bools, CreditPools, CreditTakes, Gates, Int64s, TaskGraph

#: Tasks of a cycle that a message names.
_SHOWN = 6
#: Waiting resources, and holders of a pool, that a message names.
_SHOWN_WAITING = 4


def check_acyclic(graph: TaskGraph) -> None:
    """Refuse a graph with a cycle.

    A gate counts as if each of its tiles waited for all members and each waiter for all tiles:
    which member lands where is not known before the run, so an order that holds for every
    arrival is asked for.

    Parameters
    ----------
    graph
        The graph to check.

    Raises
    ------
    GraphError
        If there is a cycle, naming its tasks.
    """
    if graph.is_numbered_forward and len(graph.gates) == 0:
        return  # ids are a topological order: seen for free while the edges were counted
    if graph.order.size < graph.num_tasks + 2 * len(graph.gates):
        _raise_cycle(graph)


def _raise_cycle(graph: TaskGraph) -> None:
    """Find one cycle among the tasks no order reaches, and raise with its names."""
    import networkx as nx

    unreached = np.ones(graph.num_tasks + 2 * len(graph.gates), np.bool_)
    unreached[graph.order] = False
    src, dst = (ends.astype(np.int64) for ends in graph.edges())
    gates, base = graph.gates, graph.num_tasks
    gate_of_member = np.repeat(np.arange(len(gates)), np.diff(gates.member_indptr))
    gate_of_tile = np.repeat(np.arange(len(gates)), np.diff(gates.tile_indptr))
    arrived, finished = base + 2 * gate_of_member, base + 2 * gate_of_tile + 1
    src = np.concatenate((src, gates.member_task, base + 2 * gate_of_tile, gates.tile_last, arrived + 1))
    dst = np.concatenate((dst, arrived, gates.tile_first, finished, gates.member_waiter))
    inside = (dst >= 0) & unreached[src] & unreached[dst]
    # Edges are added, not given to DiGraph: that would look for scipy first, and warn without it.
    waiting = nx.DiGraph()
    waiting.add_edges_from(zip(src[inside], dst[inside], strict=True))
    cycle = [int(edge[0]) for edge in nx.find_cycle(waiting)]
    names = [graph.describe(node) if node < base else f"gate {(node - base) // 2}" for node in cycle[:_SHOWN]]
    more = f" -> ... {len(cycle) - _SHOWN} more" if len(cycle) > _SHOWN else ""
    message = f"the graph has a cycle: {' -> '.join(names)}{more} -> {names[0]}"
    raise GraphError(message)


def check_gates(gates: Gates, num_tasks: int) -> None:
    """Refuse gates that name tasks that do not exist."""
    for name in gates.TASKS:
        bad = int(getattr(gates, name).max(initial=-1))
        if bad >= num_tasks:
            message = f"gates: {name} {bad} does not exist; there are {num_tasks} tasks"
            raise GraphError(message)


def _check_there(what: str, name: str, tasks: IntArray, num_tasks: int) -> None:
    """Refuse takes or touches whose tasks do not exist."""
    if int(tasks.max(initial=-1)) >= num_tasks:
        row = int(np.argmax(tasks))
        message = f"{what} {row}: {name} {int(tasks[row])} does not exist; there are {num_tasks}"
        raise GraphError(message)


def check_takes(takes: CreditTakes, pools: CreditPools, num_tasks: int) -> None:
    """Refuse takes of unknown tasks and takes that no pool could ever grant."""
    for name, tasks in (("task", takes.task), ("releasing task", takes.released_by)):
        _check_there("take", name, tasks, num_tasks)
    # Nearly all takes are out of question without their order: first most of the pools, then, since
    # a task takes less often from those that are left, these too.
    rows = _doubtful(takes, pools, _doubtful(takes, pools, slice(None)))
    if not rows.size:
        return
    # A task may take twice from one pool; it needs the sum before it starts.
    task, pool, units = (column[rows] for column in (takes.task, takes.pool, takes.units))
    order = np.lexsort((pool, task))
    starts = np.flatnonzero((np.diff(task[order], prepend=-1) != 0) | (np.diff(pool[order], prepend=-1) != 0))
    totals = np.add.reduceat(units[order].astype(np.int64), starts)
    capacity = pools.capacity[pool[order][starts]]
    if np.any(totals > capacity):
        row = int(np.flatnonzero(totals > capacity)[0])
        named = int(pool[order][starts][row])
        message = (
            f"task {int(task[order][starts][row])} takes {int(totals[row])} units of credit "
            f"pool {pools.names[named]!r}, which holds {int(capacity[row])}"
        )
        raise GraphError(message)


def _doubtful(takes: CreditTakes, pools: CreditPools, some: slice | Int64s) -> Int64s:
    """Takes that would be too large if each take of a task were its pool's largest."""
    from replay.engine.kernels.checks import TakeExtremes, find_extremes

    pool, task = takes.pool[some], takes.task[some]
    if not task.size:
        return np.zeros(0, np.int64)
    most = np.zeros(len(pools), np.int64)
    count = np.zeros(int(task.max()) + 1, np.int32)
    most_takes = find_extremes(
        TakeExtremes(num_takes=task.size, task=task, pool=pool, units=takes.units[some], most=most, count=count)
    )
    is_doubtful = most > pools.capacity // most_takes
    if not is_doubtful.any():
        return np.zeros(0, np.int64)
    rows = np.flatnonzero(is_doubtful[pool])
    return rows if isinstance(some, slice) else some[rows]


def check_roles(graph: TaskGraph) -> None:
    """Refuse touches by or at the cost of tasks that do not exist or hold no server, and lines that do more than queue.

    One pass finds whether anything is wrong; only then is the task to blame looked for.
    """
    from replay.engine.kernels.checks import TaskRoles, are_allowed

    takes, touches, resources = graph.takes, graph.touches, graph.resources
    is_line = (resources.discipline == LINE).astype(np.int32)
    for name, tasks in (("task", touches.task), ("charged task", touches.charged)):
        _check_there("touch", name, tasks, graph.num_tasks)
    roles = TaskRoles(
        graph,
        num_takes=len(takes),
        num_touches=len(touches),
        has_levels=is_line.any() and not is_constant(graph.priority),
        taker=takes.task,
        giver=takes.released_by,
        toucher=touches.task,
        payer=touches.charged,
        table=touches.table,
        units=touches.units,
        room=graph.tables.room,
        is_line=is_line,
        is_seen=np.zeros_like(is_line),
        first=np.zeros(len(is_line), np.int64),
    )
    if not are_allowed(roles):
        _check_touches(graph)
        _check_lines(graph)


def _check_touches(graph: TaskGraph) -> None:
    """Refuse touches by, or at the cost of, tasks that hold no server, and of more than there is room for."""
    touches = graph.touches
    for name, values in (("task", touches.task), ("charged task", touches.charged)):
        has_none = graph.resource[values] < 0
        if np.any(has_none):
            row = int(np.argmax(has_none))
            message = (
                f"touch {row}: {name} {graph.describe(int(values[row]))} is a pure delay; "
                "tables are touched by, and charge, tasks that hold a server"
            )
            raise GraphError(message)
    too_big = touches.units > graph.tables.room[touches.table]
    if np.any(too_big):
        row = int(np.argmax(too_big))
        table = int(touches.table[row])
        room = int(graph.tables.room[table])
        message = (
            f"touch {row}: key {int(touches.key[row])} takes {int(touches.units[row])} units of "
            f"table {graph.tables.names[table]!r}, which has room for {room}"
        )
        raise GraphError(message)


def _check_lines(graph: TaskGraph) -> None:
    """Refuse tasks of a line that do more than queue: its order must be known when they arrive."""
    is_line = np.append(graph.resources.discipline == LINE, False)  # the null resource is none
    on_line = is_line[graph.resource]
    takes, touches = graph.takes, graph.touches
    for what, tasks in (
        ("takes credits", takes.task),
        ("gives credits back", takes.released_by),
        ("touches a table", touches.task),
        ("pays for evictions", touches.charged),
    ):
        if np.any(on_line[tasks]):
            task = int(tasks[int(np.argmax(on_line[tasks]))])
            message = f"{graph.describe(task)} {what}, which a task of a line may not"
            raise GraphError(message)
    served = np.flatnonzero(on_line)
    line, priority = graph.resource[served], graph.priority[served]
    first = np.zeros(is_line.size, np.int64)  # priority of each line's first task
    first[line[::-1]] = priority[::-1]
    other = priority != first[line]
    if np.any(other):
        task = int(served[int(np.argmax(other))])
        message = f"{graph.describe(task)} has a priority of its own; on a line all have one"
        raise GraphError(message)


# ---- runs that cannot go on ----------------------------------------------------------------------


def describe_deadlock(graph: TaskGraph, is_started: Bools, is_ready: Bools) -> str:
    """Name the waiting resources with their first tasks, the pools they lack, and the holders.

    Parameters
    ----------
    graph
        The graph that got stuck.
    is_started
        Whether each task took a server (task,).
    is_ready
        Whether each task waits for a server or credits only (task,).

    Returns
    -------
    One sentence for the problem and one for each waiting resource.
    """
    takes = graph.takes
    free = graph.pools.capacity.copy()
    is_held = is_started[takes.task] & ~is_started[takes.released_by]
    shared = np.flatnonzero(takes.share >= 0)
    held = np.bincount(takes.share[shared], weights=is_held[shared]) > 0  # until the last has left
    is_held[shared] = held[takes.share[shared]]
    np.subtract.at(free, takes.pool[is_held], takes.units[is_held])
    waiting = np.flatnonzero(is_ready & (np.bincount(takes.task, minlength=graph.num_tasks) > 0))
    # Priority and id suffice to name one: which of a priority became ready first is not kept.
    order = np.lexsort((waiting, graph.priority[waiting], graph.resource[waiting]))
    waiting = waiting[order]
    where, first = np.unique(graph.resource[waiting], return_index=True)
    parts = [
        f"{graph.describe(int(task))} waits for {_lacking(graph, int(task), free, is_held)}"
        for task in waiting[first][:_SHOWN_WAITING]
    ]
    more = f"; and {where.size - _SHOWN_WAITING} more resources" if where.size > _SHOWN_WAITING else ""
    return (
        f"deadlock: {waiting.size} ready tasks on {where.size} resources wait for credits that "
        f"nobody will give back: {'; '.join(parts)}{more}"
    )


def _lacking(
    graph: TaskGraph,
    task: int,
    free: Int64s,
    is_held: Bools,
) -> str:
    """The pools a task wants more of than there is, with their holders."""
    takes = graph.takes
    wanted: dict[int, int] = {}
    for row in np.flatnonzero(takes.task == task):
        wanted[int(takes.pool[row])] = wanted.get(int(takes.pool[row]), 0) + int(takes.units[row])
    parts = []
    for pool, units in wanted.items():
        if free[pool] >= units:
            continue
        rows = np.flatnonzero(is_held & (takes.pool == pool))
        holders = [
            f"{graph.describe(int(takes.task[row]))} until task {int(takes.released_by[row])} ends"
            for row in rows[:_SHOWN_WAITING]
        ]
        more = f" and {rows.size - _SHOWN_WAITING} more" if rows.size > _SHOWN_WAITING else ""
        parts.append(
            f"{units} of pool {graph.pools.names[pool]!r} "
            f"({int(free[pool])} of {int(graph.pools.capacity[pool])} free, "
            f"held by {', '.join(holders) or 'nobody'}{more})"
        )
    return " and ".join(parts) or "a server whose queue is blocked"
