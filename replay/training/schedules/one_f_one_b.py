"""1F1B: after a warm-up a stage makes a forward and a backward pass in turns."""

from __future__ import annotations

from replay.training.schedules.base import Op, Schedule, Shape, Slot


class OneFOneB(Schedule):
    """Each stage makes as many forward passes as stages follow it, then one of each in turns."""

    name = "1f1b"
    summary = "a forward and a backward pass in turns, after a warm-up"
    source = "PipeDream-Flush (arXiv 2006.09503), as in Megatron-LM (arXiv 2104.04473)"

    def stage_of(self, shape: Shape, chunk: int, micro_batch: int) -> int:
        """One chunk a stage."""
        del shape, micro_batch
        return chunk

    def refuses(self, shape: Shape) -> str:
        """Several chunks a stage are another schedule."""
        if shape.chunks > 1:
            return f"1f1b has one chunk per stage, not {shape.chunks} (vpp); interleaved has more"
        return ""

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

    def in_flight(self, shape: Shape, stage: int) -> float:
        """One for each stage that follows, and its own."""
        return min(shape.stages - stage, shape.micro_batches)
