"""Saying why a run cannot go on: who waits for which credits, and who holds them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from replay.engine.taskgraph import TaskGraph

#: Waiting resources, and holders of a pool, that a message names.
_SHOWN = 4


def describe_deadlock(
    graph: TaskGraph, is_started: npt.NDArray[np.bool_], is_ready: npt.NDArray[np.bool_]
) -> str:
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
        for task in waiting[first][:_SHOWN]
    ]
    more = f"; and {where.size - _SHOWN} more resources" if where.size > _SHOWN else ""
    return (
        f"deadlock: {waiting.size} ready tasks on {where.size} resources wait for credits that "
        f"nobody will give back: {'; '.join(parts)}{more}"
    )


def _lacking(
    graph: TaskGraph,
    task: int,
    free: npt.NDArray[np.int64],
    is_held: npt.NDArray[np.bool_],
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
            for row in rows[:_SHOWN]
        ]
        more = f" and {rows.size - _SHOWN} more" if rows.size > _SHOWN else ""
        parts.append(
            f"{units} of pool {graph.pools.names[pool]!r} "
            f"({int(free[pool])} of {int(graph.pools.capacity[pool])} free, "
            f"held by {', '.join(holders) or 'nobody'}{more})"
        )
    return " and ".join(parts) or "a server whose queue is blocked"
