"""Schedules of a pipeline in which each stage holds one chunk, in order."""

from __future__ import annotations

from replay.experiments.train.schedules.base import Schedule, Shape


class Straight(Schedule):
    """One chunk a stage."""

    def stage_of(self, shape: Shape, chunk: int, micro_batch: int) -> int:
        """Chunk after chunk."""
        del shape, micro_batch
        return chunk

    def refuses(self, shape: Shape) -> str:
        """Several chunks a stage are another schedule."""
        if shape.chunks == 1:
            return ""
        return (
            f"{self.name} has one chunk per stage, not {shape.chunks} (vpp); interleaved has more"
        )
