"""A machine without a scheme, and what its tasks put on ports."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import hwmodel
from replay.engine import GraphBuilder, TaskGraph
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine


def machine_of(system: hwmodel.System, num_ranks: int) -> Machine:
    return Machine(system, GraphBuilder(KIND_NAMES), num_ranks)


def ints(*values: int) -> npt.NDArray[np.int64]:
    return np.array(values, np.int64)


def carried(graph: TaskGraph, what: str = "wire_bytes") -> dict[tuple[str, int], int]:
    """Bytes by (group of resources, GPU), ports without any left out."""
    found: dict[tuple[str, int], int] = {}
    for resource, nbytes in zip(graph.resource.tolist(), getattr(graph, what).tolist(), strict=True):
        if resource >= 0 and nbytes:
            port = graph.resources.groups[resource], int(graph.resources.owner[resource])
            found[port] = found.get(port, 0) + nbytes
    return found
