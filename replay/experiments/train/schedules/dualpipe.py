"""DualPipe: micro-batches enter at both ends, so each stage has two passes to overlap."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Schedule, ScheduleShape, Slot
from replay.experiments.train.schedules.line import StageLine


class DualPipe(Schedule):
    """A bidirectional pipeline with the eight steps of its published code.

    The first half of the micro-batches runs from the first stage to the last, the second half the
    other way. So each stage holds two chunks, and each chunk lies on two stages. Below, *near* is
    the chunk of the direction that enters at the nearer end of the pipeline, *far* that of the
    other.
    """

    name = "dualpipe"
    source = "arXiv 2412.19437, section 3.2.1; order of github.com/deepseek-ai/DualPipe"
    beside = "dualpipe"
    splits_backward = True
    copies = 2

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        """Chunks in order, or in reverse for micro-batches of the second half."""
        return chunk if micro_batch < shape.micro_batches // 2 else shape.stages - 1 - chunk

    def refuses(self, shape: ScheduleShape) -> str:
        """An odd number of stages or micro-batches, or too few of these to fill the pipeline."""
        if shape.chunks > 1:
            return f"dualpipe has one chunk per stage and direction, not {shape.chunks} (vpp)"
        if shape.stages % 2:
            return f"dualpipe has an even number of stages (pp), not {shape.stages}"
        if shape.micro_batches % 2 or shape.micro_batches < 2 * shape.stages:
            return (
                f"dualpipe has an even number of micro-batches, at least {2 * shape.stages} for "
                f"{shape.stages} stages (pp), not {shape.micro_batches}"
            )
        return ""

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        """The eight steps, mirrored in the second half of the stages."""
        half = shape.micro_batches // 2
        opposite = shape.stages - 1 - stage
        depth = min(stage, opposite)  # stages between this one and the nearer end
        inner = shape.stages // 2 - 1 - depth  # stages between this one and the middle
        mirrored = stage >= shape.stages // 2
        directions = (range(half), range(half, 2 * half))
        near, far = (opposite, stage) if mirrored else (stage, opposite)
        line = StageLine({near: directions[mirrored], far: directions[not mirrored]})

        for _ in range(2 * inner):  # 1: fill
            line.forward(near)
        for _ in range(depth + 1):  # 2: the other direction arrives
            line.forward(near)
            line.forward(far)
        for _ in range(inner):  # 3: the first of it come back
            line.inputs(far)
            line.weights()
            line.forward(far)
        for turn in range(half - shape.stages + depth + 1):  # 4: full
            if turn == 0 and inner == 0:  # in the middle a backward pass waits for nothing: go on
                line.forward(near)
                line.backward(far)
            else:
                line.beside(near, far)
            line.beside(far, near)
        for _ in range(inner):  # 5: nothing enters any more
            line.backward(far)
            line.beside(far, near)
        for each in range(2 * (depth + 1)):  # 6: only backward passes; the latter half in two
            chunk = near if each % 2 else far
            if each > depth:
                line.inputs(chunk)
            else:
                line.backward(chunk)
        for _ in range(inner):  # 7: gradients of weights while those of inputs are on their way
            line.weights()
            line.inputs(near)
        line.rest()  # 8
        return line.slots
