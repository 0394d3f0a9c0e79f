"""Interleaved 1F1B: each stage holds several chunks, so that a pipeline fills in less time."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Op, Schedule, ScheduleShape, Slot


class InterleavedSchedule(Schedule):
    """1F1B in which as many micro-batches as stages pass a chunk in a row, then the next chunk.

    A stage's *turns* are its pairs of chunk and micro-batch in the order of forward passes. Its
    backward passes take the same order, with the chunks reversed.
    """

    name = "interleaved"
    source = "arXiv 2104.04473, as in Megatron-LM's pipeline_parallel/schedules.py"

    def stage_of(self, shape: ScheduleShape, chunk: int, micro_batch: int) -> int:
        """Stage of a chunk, around the stages."""
        del micro_batch
        return chunk % shape.stages

    def refuses(self, shape: ScheduleShape) -> str:
        """Reason why Megatron-LM refuses the sizes; empty where it does not."""
        if shape.chunks < 2 or shape.stages < 2:
            return (
                f"{self.name} has at least 2 stages (pp) with at least 2 chunks each (vpp), not "
                f"{shape.stages} with {shape.chunks}; 1f1b has one chunk per stage"
            )
        if shape.micro_batches % shape.stages or not shape.micro_batches:
            return (
                f"{self.name} makes {shape.stages} (pp) micro-batches in a row over a chunk; "
                f"possible are multiples of that, not {shape.micro_batches}"
            )
        return ""

    def slots(self, shape: ScheduleShape, stage: int) -> list[Slot]:
        """Warm-up, turns of a forward and a backward pass, and the rest of the backward passes."""
        turns = _turns(shape)
        ahead = [Op("F", k * shape.stages + stage, m) for k, m in turns]
        back = [Op("B", (shape.chunks - 1 - k) * shape.stages + stage, m) for k, m in turns]
        first = min(self._warm_up(shape, stage), len(turns))
        slots: list[Slot] = [(op,) for op in ahead[:first]]
        for forward, backward in zip(ahead[first:], back, strict=False):
            slots.extend(self._turn(forward, backward))
        return [*slots, *((op,) for op in back[len(turns) - first :])]

    def _warm_up(self, shape: ScheduleShape, stage: int) -> int:
        """Forward passes of a stage before its first backward pass has a forward pass before it.

        All but the last chunk of the first group; and two for each stage that follows, as the
        first micro-batch needs one turn to go there and one to come back.
        """
        return (shape.chunks - 1) * shape.stages + 2 * (shape.stages - 1 - stage)

    def _turn(self, forward: Op, backward: Op) -> list[Slot]:
        return [(forward,), (backward,)]


class MegatronOverlap(InterleavedSchedule):
    """Interleaved 1F1B whose turns make a forward beside a backward pass.

    Exchanges of one then run beside computation of the other (Megatron-LM's overlap of exchanges).
    Both must be there at once, so each stage is one more forward pass ahead. A pipeline
    of one stage does the same with its only chunk.
    """

    name = "megatron-overlap"
    source = "Megatron-LM, --overlap-moe-expert-parallel-comm (pipeline_parallel/combined_1f1b.py)"
    beside = "megatron"

    def refuses(self, shape: ScheduleShape) -> str:
        """Reason why Megatron-LM refuses several stages with one chunk each; empty otherwise."""
        if shape.stages == 1:
            if shape.chunks == 1:
                return ""
            return f"megatron-overlap has one chunk (vpp) if it has one stage, not {shape.chunks}"
        return super().refuses(shape)

    def _warm_up(self, shape: ScheduleShape, stage: int) -> int:
        return super()._warm_up(shape, stage) + 1

    def _turn(self, forward: Op, backward: Op) -> list[Slot]:
        return [(forward, backward)]


def _turns(shape: ScheduleShape) -> list[tuple[int, int]]:
    """Pairs of chunk (of the stage's own) and micro-batch, in order of forward passes."""
    return [
        (chunk, m)
        for first in range(0, shape.micro_batches, shape.stages)
        for chunk in range(shape.chunks)
        for m in range(first, first + shape.stages)
    ]
