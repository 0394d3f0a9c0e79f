"""Times no schedule of a graph can beat."""

from __future__ import annotations

import numpy as np

from replay.engine.cells import KeyCells
from replay.engine.piece import RecentValues
from replay.engine.taskgraph import GraphPart, Int64s, TaskGraph
from replay.engine.timeline import sum_by


def least_work_ps(graph: TaskGraph, own: Int64s | None = None) -> Int64s:
    """Time in service that each resource has at least (resource,), summed over its servers.

    A resource with more servers than tasks is bound by its longest task instead; that is part of
    the longest chain.

    `own` is the sum of the durations of its tasks (resource,), where it is known already.

    What touches draw from the ports of tables counts; of what they draw from a backing, the least
    that brings each key in once. Where several resources are made of the same servers, the caller
    adds their work up: the graph does not know which these are.
    """
    if own is None:
        own = sum_by(graph.resource, graph.duration_ps, len(graph.resources))
    total = own.copy()
    tables, touches = graph.tables, graph.touches
    if len(touches):
        from replay.engine.kernels.reading import LeastDraws, sum_least_draws

        cells = KeyCells.of(len(tables), touches.table, touches.key)
        sum_least_draws(
            LeastDraws(
                touches,
                num_touches=len(touches),
                key=cells.key,
                port=tables.port.astype(np.int64),
                backing=tables.backing.astype(np.int64),
                first=cells.first,
                least=np.zeros(cells.size, np.int64),
                total=total,
            )
        )
    return total


def longest_chain_ps(graph: TaskGraph) -> int:
    """Longest chain of durations and latencies, as if every resource had infinitely many servers.

    Notes
    -----
    A gate binds late, so a bound may not say who lands where. Two bounds hold for every order of
    arrival. A tile is full no earlier than as many members could have arrived as there are slots up
    to its last one. A waiter waits at least for the tile that can be done first.

    Examples
    --------
    >>> from replay.engine import GraphBuilder
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("uplink", group="uplink")
    >>> ids = builder.add(3, resource=port, duration_ps=10, latency_ps=25)
    >>> graph = builder.build()
    >>> least_work_ps(graph).tolist(), longest_chain_ps(graph)
    ([30], 35)
    """
    return _longest_chain_ps(graph, np.zeros(graph.num_tasks, np.int64))


class LongestChain:
    """Longest chain of a graph that is given in parts.

    Attributes
    ----------
    length_ps
        Length in the parts so far.
    """

    def __init__(self) -> None:
        self.length_ps = 0
        self._visible_ps = RecentValues()

    def add(self, part: GraphPart) -> None:
        """Go on with a part."""
        self._visible_ps.begin(part)
        visible = np.zeros(part.graph.num_tasks, np.int64)
        sources = self._visible_ps.of(part.outer_source.astype(np.int64))
        np.maximum.at(visible, part.outer_target, sources)
        self.length_ps = max(self.length_ps, _longest_chain_ps(part.graph, visible))
        self._visible_ps.put_last(visible)


def _longest_chain_ps(graph: TaskGraph, ready: Int64s) -> int:
    """Longest chain; `ready` becomes when each task could be visible."""
    from replay.engine.kernels.reading import Chain, longest_chain

    if graph.num_tasks == 0:
        return 0
    gates = graph.gates
    is_forward = graph.is_numbered_forward and len(gates) == 0  # then ids are the order
    order = np.empty(0, np.int32) if is_forward else graph.order
    most_members = int(np.diff(gates.member_indptr).max()) if len(gates) else 0
    chain = Chain(
        graph,
        gates,
        num_nodes=max(graph.num_tasks, order.size),
        has_order=not is_forward,
        order=order,
        ready=ready,
        arrivals=np.empty(most_members, np.int64),
    )
    return int(longest_chain(chain))
