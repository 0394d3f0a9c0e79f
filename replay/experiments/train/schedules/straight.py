"""Schedules of a pipeline in which each stage holds one chunk, in order: GPipe, 1F1B and ZB-H1."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Op, Schedule, ScheduleShape, Slot
from replay.experiments.train.schedules.line import StageLine


class Straight(Schedule):
    """One chunk a stage."""

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        """The stage with the chunk's number."""
        del shape, micro_batch
        return chunk

    def refuses(self, shape: ScheduleShape) -> str:
        """Reason against several chunks a stage; empty for one."""
        if shape.chunks == 1:
            return ""
        return f"{self.name} has one chunk per stage, not {shape.chunks} (vpp); interleaved has more"


class GPipe(Straight):
    """The plainest order; 1F1B takes the same time with less memory."""

    name = "gpipe"
    source = "GPipe (arXiv 1811.06965)"

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        """Forward passes of all micro-batches, then backward passes in the same order."""
        return [(Op(kind, stage, m),) for kind in ("F", "B") for m in range(shape.micro_batches)]


class OneFOneB(Straight):
    """Each stage makes as many forward passes as stages follow it, then one of each in turns."""

    name = "1f1b"
    source = "PipeDream-Flush (arXiv 2006.09503), as in Megatron-LM (arXiv 2104.04473)"

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        """Warm-up, turns, and what is left of the backward passes."""
        line = StageLine({stage: range(shape.micro_batches)})
        ahead = min(shape.stages - 1 - stage, shape.micro_batches)
        for _ in range(ahead):
            line.forward(stage)
        for m in range(shape.micro_batches):
            if m + ahead < shape.micro_batches:
                line.forward(stage)
            self._back(line, stage, m)
        line.rest()
        return line.slots

    def _back(self, line: StageLine, stage: int, micro_batch: int) -> None:
        del micro_batch
        line.backward(stage)


class ZeroBubbleH1(OneFOneB):
    """1F1B that makes gradients of inputs first wherever the stage before waits for them.

    Stage r has r forward passes fewer ahead than the first stage, so it may put the gradients of
    weights of r micro-batches off and keep no more than the first. They fill its idle time at the
    end.
    """

    name = "zb-h1"
    source = "arXiv 2401.10241, section 2.1; order of its authors' patch of Megatron-LM"
    splits_backward = True

    def _back(self, line: StageLine, stage: int, micro_batch: int) -> None:
        """Put weights off by as many micro-batches as stages precede."""
        line.inputs(stage)
        if micro_batch >= stage:
            line.weights()
