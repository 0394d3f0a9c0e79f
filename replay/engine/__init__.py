"""Task graphs and their discrete-event schedule; knows nothing of experts or tokens."""

from __future__ import annotations

from replay.engine.bounds import least_work_ps, longest_chain_ps
from replay.engine.builder import GraphBuilder
from replay.engine.critical_path import CriticalPath, critical_path
from replay.engine.engine import schedule
from replay.engine.errors import EngineError, GraphError, UserError
from replay.engine.taskgraph import NULL_RESOURCE, TaskGraph
from replay.engine.timeline import Timeline, TouchOutcome

__all__ = [
    "NULL_RESOURCE",
    "CriticalPath",
    "EngineError",
    "GraphBuilder",
    "GraphError",
    "TaskGraph",
    "Timeline",
    "TouchOutcome",
    "UserError",
    "critical_path",
    "least_work_ps",
    "longest_chain_ps",
    "schedule",
]
