"""The layer alone: all rows and sums are where they are wanted at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.schemes.tp.base import TensorScheme
from replay.schemes.tp.traffic import TensorTraffic

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.schemes.tp.kernels import TensorKernels


class NoCommunication(TensorScheme):
    """Kernels of the layer one after the other, and nothing between GPUs."""

    name = "plain"
    summary = "no communication at all"
    source = "definition"
    traffic = TensorTraffic("none", "none")

    def __init__(self, *, sequence_parallel: bool) -> None:
        self.sequence_parallel = sequence_parallel
        super().__init__()

    def gather(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Leave rows where they are."""
        return after

    def reduce(self, kernels: TensorKernels, after: Tasks) -> Ints:
        """Leave sums as they are."""
        return after
