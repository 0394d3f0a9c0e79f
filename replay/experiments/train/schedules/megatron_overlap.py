"""Megatron-LM's overlap of exchanges: the turns of interleaved 1F1B become pairs of passes."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Op, Shape, Slot
from replay.experiments.train.schedules.interleaved import Interleaved


class MegatronOverlap(Interleaved):
    """Interleaved 1F1B whose turns make a forward beside a backward pass.

    So that exchanges of one run beside computation of the other. Both must be there at once, so
    each stage is one more forward pass ahead. A pipeline of one stage does the same with its only
    chunk.
    """

    name = "megatron-overlap"
    summary = "interleaved 1F1B with a forward beside each backward pass"
    source = "Megatron-LM, --overlap-moe-expert-parallel-comm (pipeline_parallel/combined_1f1b.py)"
    beside = "megatron"

    def refuses(self, shape: Shape) -> str:
        """What Megatron-LM refuses: several stages with one chunk each."""
        if shape.stages == 1:
            if shape.chunks == 1:
                return ""
            return f"megatron-overlap has one chunk (vpp) if it has one stage, not {shape.chunks}"
        return super().refuses(shape)

    def _warm_up(self, shape: Shape, stage: int) -> int:
        return super()._warm_up(shape, stage) + 1

    def _turn(self, forward: Op, backward: Op) -> list[Slot]:
        return [(forward, backward)]
