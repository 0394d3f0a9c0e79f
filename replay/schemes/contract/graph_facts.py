"""Facts about a layer, read from its graph: bytes by port, and who depends on whom."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from replay.engine import TaskGraph, Timeline
from replay.model.machine.kinds import Kind, phase_of

Port = tuple[str, int]
ENDS = ("uplink", "downlink", "nic-out", "nic-in")
"""Ports at which a row leaves a GPU or comes to it, on whatever way between them."""


def port_bytes(graph: TaskGraph, what: str = "payload") -> dict[str, Counter[Port]]:
    """Bytes of every port task by phase and (direction, gpu), ports without any left out."""
    found: dict[str, Counter[Port]] = {"dispatch": Counter(), "combine": Counter()}
    carried = getattr(graph, f"{what}_bytes")
    is_port = np.isin(np.array([*graph.resources.groups, "none"]), ENDS)
    tasks = np.flatnonzero((carried > 0) & is_port[graph.resource])
    columns = (graph.resource[tasks], graph.kind[tasks], carried[tasks])
    phases = {kind: phase_of(Kind(kind)) or "" for kind in np.unique(graph.kind[tasks]).tolist()}
    for resource, kind, nbytes in zip(*(column.tolist() for column in columns), strict=True):
        phase = phases[kind]
        if phase in found:
            port = graph.resources.groups[resource], int(graph.resources.owner[resource])
            found[phase][port] += nbytes
    return found


class Dependencies:
    """Dependencies of a schedule: who waits for whom, gates included as they fell."""

    def __init__(self, timeline: Timeline) -> None:
        graph = timeline.graph
        self.graph = graph
        self.num_tasks = graph.num_tasks
        self.followers: defaultdict[int, set[int]] = defaultdict(set)
        for src, dst in zip(*(ends.tolist() for ends in graph.edges()), strict=True):
            self.followers[src].add(dst)
        gates = graph.gates
        rows = zip(
            gates.member_task.tolist(),
            gates.member_waiter.tolist(),
            timeline.landed_tile.tolist(),
            strict=True,
        )
        for member, waiter, tile in rows:
            self.followers[member].add(int(gates.tile_first[tile]))
            if waiter >= 0:
                self.followers[int(gates.tile_last[tile])].add(waiter)
        self.leaders: defaultdict[int, set[int]] = defaultdict(set)
        for src, targets in self.followers.items():
            for dst in targets:
                self.leaders[dst].add(src)

    def before(self, sources: Iterable[int]) -> set[int]:
        """The tasks themselves and all that they wait for."""
        return self._closure(sources, self.leaders)

    def after(self, sources: Iterable[int]) -> set[int]:
        """The tasks themselves and all that wait for them."""
        return self._closure(sources, self.followers)

    def _closure(self, sources: Iterable[int], ways: dict[int, set[int]]) -> set[int]:
        seen, todo = set(sources), list(sources)
        while todo:
            for task in ways.get(todo.pop(), ()):
                if task not in seen:
                    seen.add(task)
                    todo.append(task)
        return seen
