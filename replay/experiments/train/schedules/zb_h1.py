"""ZB-H1: 1F1B whose last stages put gradients of weights off, into the end of the step."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Shape, Slot
from replay.experiments.train.schedules.line import Line
from replay.experiments.train.schedules.straight import Straight


class ZeroBubbleH1(Straight):
    """1F1B that makes gradients of inputs first wherever the stage before waits for them.

    Stage r has r forward passes fewer ahead than the first stage, so it may put the gradients of
    weights of r micro-batches off and keep no more than the first. They fill its idle time at the
    end.
    """

    name = "zb-h1"
    summary = "1F1B with gradients of weights put off into idle time, no more memory"
    source = "arXiv 2401.10241, section 2.1; order of its authors' patch of Megatron-LM"
    splits_backward = True

    def order(self, shape: Shape) -> list[list[Slot]]:
        """Turns as of 1F1B, with weights put off by as many micro-batches as stages precede."""
        orders = []
        for stage in range(shape.stages):
            line = Line({stage: range(shape.micro_batches)})
            ahead = min(shape.stages - 1 - stage, shape.micro_batches)
            for _ in range(ahead):
                line.forward(stage)
            for m in range(shape.micro_batches):
                if m + ahead < shape.micro_batches:
                    line.forward(stage)
                line.inputs(stage)
                if m >= stage:
                    line.weights()
            line.rest()
            orders.append(line.slots)
        return orders
