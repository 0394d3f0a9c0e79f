"""Tasks of a schedule by kind and GPU, and when they begin and end."""

from __future__ import annotations

import numpy as np

from replay.engine import Timeline
from replay.model.machine.kinds import Kind


def tasks(timeline: Timeline, kind: Kind, rank: int | None = None) -> np.ndarray:
    """Numbers of the tasks of a kind, of one GPU or of all."""
    graph = timeline.graph
    return np.flatnonzero((graph.kind == kind) & ((graph.rank == rank) | (rank is None)))


def begin(timeline: Timeline, kind: Kind, rank: int | None = None) -> int:
    """Start of the first task of a kind."""
    return int(timeline.start_ps[tasks(timeline, kind, rank)].min())


def finish(timeline: Timeline, kind: Kind, rank: int | None = None) -> int:
    """When the last task of a kind is visible."""
    return int(timeline.visible_ps[tasks(timeline, kind, rank)].max())
