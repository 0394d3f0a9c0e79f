"""Task graphs and their discrete-event schedule; knows nothing of experts or tokens."""

from __future__ import annotations

from replay.graph.builder import GraphBuilder
from replay.graph.engine import schedule
from replay.graph.errors import EngineError, GraphError, UserError
from replay.graph.taskgraph import NULL_RESOURCE, TaskGraph
from replay.graph.timeline import Timeline

__all__ = [
    "NULL_RESOURCE",
    "EngineError",
    "GraphBuilder",
    "GraphError",
    "TaskGraph",
    "Timeline",
    "UserError",
    "schedule",
]
