"""1F1B: after a warm-up a stage makes a forward and a backward pass in turns."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Op, Shape, Slot
from replay.experiments.train.schedules.straight import Straight


class OneFOneB(Straight):
    """Each stage makes as many forward passes as stages follow it, then one of each in turns."""

    name = "1f1b"
    summary = "a forward and a backward pass in turns, after a warm-up"
    source = "PipeDream-Flush (arXiv 2006.09503), as in Megatron-LM (arXiv 2104.04473)"

    def order(self, shape: Shape) -> list[list[Slot]]:
        """Warm-up, turns, and what is left of the backward passes."""
        orders = []
        for stage in range(shape.stages):
            ahead = min(shape.stages - 1 - stage, shape.micro_batches)
            slots: list[Slot] = [(Op("F", stage, m),) for m in range(ahead)]
            for m in range(shape.micro_batches):
                if m + ahead < shape.micro_batches:
                    slots.append((Op("F", stage, m + ahead),))
                slots.append((Op("B", stage, m),))
            orders.append(slots)
        return orders
