"""A schedule, and what made it: what observers of a replay are given."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.engine.timeline import Timeline

if TYPE_CHECKING:
    from replay.model.machine.machine import Machine


@dataclass(frozen=True, eq=False)
class ReplayedSchedule(Timeline):
    """The schedule of a replay.

    Attributes
    ----------
    machine
        The machine that made the graph; it remembers the tasks of each token.
    layers
        Names of the layers, in the order in which they were added; empty where nobody asks.
    layer
        (task,): the layer of each, -1 for none.
    travels
        (token,): whether each has a way to go, in one layer by itself; None if all tokens that were
        followed have.
    """

    machine: Machine
    layers: tuple[str, ...]
    layer: npt.NDArray[np.int32]
    travels: npt.NDArray[np.bool_] | None

    @classmethod
    def of(
        cls,
        timeline: Timeline,
        machine: Machine,
        layers: tuple[str, ...] = (),
        layer: npt.NDArray[np.int32] | None = None,
        travels: npt.NDArray[np.bool_] | None = None,
    ) -> ReplayedSchedule:
        """Add to a schedule what made it; tasks of no layer if nothing is said of them."""
        values = {one.name: getattr(timeline, one.name) for one in dataclasses.fields(Timeline)}
        none = np.full(timeline.graph.num_tasks, -1, np.int32)
        return cls(
            **values,
            machine=machine,
            layers=layers,
            layer=none if layer is None else layer,
            travels=travels,
        )
