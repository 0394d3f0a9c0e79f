"""ZB-V: two chunks a stage in the shape of a V, and gradients of weights in idle time."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Schedule, ScheduleShape, Slot
from replay.experiments.train.schedules.line import StageLine


class ZeroBubbleV(Schedule):
    """A pipeline that turns around at its last stage, so that the first stage has the loss.

    The order is the one made by hand for passes of equal length (F = I = W).
    """

    name = "zb-v"
    source = "arXiv 2401.10241, section 6; order as in torch.distributed.pipelining"
    splits_backward = True

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        """Stage of a chunk, there and back."""
        del micro_batch
        return min(chunk, 2 * shape.stages - 1 - chunk)

    def refuses(self, shape: ScheduleShape) -> str:
        """Other than two chunks a stage, or too few micro-batches to fill the pipeline."""
        if shape.chunks != 2:
            return f"zb-v has two chunks per stage, not {shape.chunks} (vpp)"
        least = 2 * shape.stages - 1
        if shape.micro_batches < least:
            return f"zb-v has at least {least} micro-batches for {shape.stages} stages (pp), not {shape.micro_batches}"
        return ""

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        """Fill, turns over both chunks, and gradients of weights at the end."""
        there, back = stage, 2 * shape.stages - 1 - stage
        after = shape.stages - 1 - stage
        total = shape.micro_batches
        line = StageLine({there: range(total), back: range(total)})

        for _ in range(2 * after + 1):  # until the first micro-batch has come back
            line.forward(there)
        for _ in range(stage):
            line.forward(back)
            line.forward(there)
        for _ in range(after + 1):  # until its gradients have come, too
            line.forward(back)
            line.inputs(back)
            line.weights()
        entered = 2 * shape.stages - 1 - stage
        for turn in range(total - shape.stages):
            if entered + turn < total:
                line.forward(there)
            line.inputs(there)
            line.weights()
            line.forward(back)
            line.inputs(back)
            line.weights()
        for _ in range(stage):
            line.inputs(there)
            line.inputs(back)
        for _ in range(after + 1):
            line.inputs(there)
            line.weights()
        line.rest()
        return line.slots
