"""Task graphs and their discrete-event schedule; knows nothing of experts or tokens."""

from __future__ import annotations

from replay.engine.bounds import (
    Bounds,
    busiest_ps,
    least_work_ps,
    longest_chain_ps,
    lower_bounds,
)
from replay.engine.builder import GraphBuilder
from replay.engine.critical_path import CriticalPath, critical_path
from replay.engine.engine import schedule
from replay.engine.errors import EngineError, GraphError, UserError
from replay.engine.taskgraph import NULL_RESOURCE, TaskGraph
from replay.engine.timeline import Span, Timeline, Touched, difference_length, union_length

__all__ = [
    "NULL_RESOURCE",
    "Bounds",
    "CriticalPath",
    "EngineError",
    "GraphBuilder",
    "GraphError",
    "Span",
    "TaskGraph",
    "Timeline",
    "Touched",
    "UserError",
    "busiest_ps",
    "critical_path",
    "difference_length",
    "least_work_ps",
    "longest_chain_ps",
    "lower_bounds",
    "schedule",
    "union_length",
]
