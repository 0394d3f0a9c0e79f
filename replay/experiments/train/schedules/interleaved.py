"""Interleaved 1F1B: each stage holds several chunks, so that a pipeline fills in less time."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Op, Schedule, Shape, Slot


class Interleaved(Schedule):
    """1F1B in which a stage makes a group of micro-batches over a chunk, then over its next chunk.

    A stage's *turns* are its pairs of chunk and micro-batch in the order of forward passes. Its
    backward passes take the same order, with the chunks reversed.
    """

    name = "interleaved"
    summary = "1F1B over several chunks a stage"
    source = "arXiv 2104.04473, as in Megatron-LM's pipeline_parallel/schedules.py"

    def stage_of(self, shape: Shape, chunk: int, micro_batch: int) -> int:
        """Chunks go around the stages."""
        del micro_batch
        return chunk % shape.stages

    def refuses(self, shape: Shape) -> str:
        """What Megatron-LM refuses."""
        if shape.chunks < 2 or shape.stages < 2:
            return (
                f"{self.name} has at least 2 stages (pp) with at least 2 chunks each (vpp), not "
                f"{shape.stages} with {shape.chunks}; 1f1b has one chunk per stage"
            )
        return self._refuses_groups(shape)

    def order(self, shape: Shape) -> list[list[Slot]]:
        """Warm-up, turns of a forward and a backward pass, and the rest of the backward passes."""
        orders = []
        turns = _turns(shape)
        for stage in range(shape.stages):
            ahead = [Op("F", k * shape.stages + stage, m) for k, m in turns]
            back = [Op("B", (shape.chunks - 1 - k) * shape.stages + stage, m) for k, m in turns]
            first = min(self._warm_up(shape, stage), len(turns))
            slots: list[Slot] = [(op,) for op in ahead[:first]]
            for forward, backward in zip(ahead[first:], back, strict=False):
                slots.extend(self._turn(forward, backward))
            slots.extend((op,) for op in back[len(turns) - first :])
            orders.append(slots)
        return orders

    def _warm_up(self, shape: Shape, stage: int) -> int:
        """Forward passes of a stage before its first backward pass has a forward pass before it.

        All but the last chunk of the first group; and two for each stage that follows, as the
        first micro-batch needs one turn to go there and one to come back.
        """
        return (shape.chunks - 1) * _group(shape) + 2 * (shape.stages - 1 - stage)

    def _turn(self, forward: Op, backward: Op) -> list[Slot]:
        return [(forward,), (backward,)]

    def _refuses_groups(self, shape: Shape) -> str:
        group, least = _group(shape), shape.stages
        if not least <= group <= shape.micro_batches:
            return (
                f"{self.name} makes at least {least} (pp) micro-batches in a row over a chunk, and "
                f"at most all {shape.micro_batches} of a step, not {group}"
            )
        left = shape.micro_batches % group
        if 0 < left < least:
            return (
                f"{self.name}: {shape.micro_batches} micro-batches in groups of {group} leave "
                f"{left}, fewer than the {least} stages; possible are multiples of {group}"
            )
        return ""


def _group(shape: Shape) -> int:
    return shape.group or shape.stages


def _turns(shape: Shape) -> list[tuple[int, int]]:
    """Pairs of chunk (of the stage's own) and micro-batch, in order of forward passes."""
    group, total = _group(shape), shape.micro_batches
    return [
        (chunk, m)
        for first in range(0, total, group)
        for chunk in range(shape.chunks)
        for m in range(first, min(first + group, total))
    ]
