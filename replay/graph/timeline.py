"""When everything happened: start and end of every task, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from replay.graph.taskgraph import Int32s, Int64s, TaskGraph


@dataclass(frozen=True, eq=False)
class Timeline:
    """The schedule of a graph.

    Attributes
    ----------
    graph
        What was scheduled.
    start_ps, end_ps
        When each task got its server and left it (task,), in picoseconds.
    landed_tile
        Tile each membership landed in (membership,), in the order of
        :attr:`~replay.graph.taskgraph.Gates.member_task`; -1 if it never arrived.
    """

    graph: TaskGraph
    start_ps: Int64s
    end_ps: Int64s
    landed_tile: Int32s

    @property
    def visible_ps(self) -> Int64s:
        """When each task became visible to its successors (task,)."""
        return self.end_ps + self.graph.latency_ps

    @cached_property
    def makespan_ps(self) -> int:
        """When the last task became visible; 0 for a graph without tasks."""
        return int(self.visible_ps.max(initial=0))
