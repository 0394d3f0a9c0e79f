"""GPipe: all forward passes, then all backward passes."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Op, Shape, Slot
from replay.experiments.train.schedules.straight import Straight


class GPipe(Straight):
    """The plainest order; 1F1B takes the same time with less memory."""

    name = "gpipe"
    summary = "all forward passes, then all backward passes"
    source = "GPipe (arXiv 1811.06965)"

    def order(self, shape: Shape) -> list[list[Slot]]:
        """Micro-batches go back in the order in which they came."""
        return [
            [(Op(kind, stage, m),) for kind in ("F", "B") for m in range(shape.micro_batches)]
            for stage in range(shape.stages)
        ]
