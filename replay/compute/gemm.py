"""The shape of each GEMM of a layer's experts, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.compute.weight_gradients import element_bytes
from replay.machine.kinds import Kind

if TYPE_CHECKING:
    from replay.work.layer import LayerWork


@dataclass(frozen=True)
class Gemm:
    """One GEMM of the layer: (rows, k) x (k, n) for every expert.

    A pass has two of them in sequence. Forward: up (and gate) projection, then down projection.
    Backward: the input gradients of the down projection, then those of the up projection.
    """

    n: int
    k: int
    kind: Kind
    out_bytes: int  # of one output row in HBM

    @classmethod
    def first(cls, work: LayerWork, fused_activation: bool) -> Gemm:
        """Make the GEMM that reads dispatched rows; a fused activation writes only its result."""
        shape, element, result = work.shape, element_bytes(work), work.precision.result_bytes
        if work.is_backward:
            out = shape.gemm1_columns * element if fused_activation else shape.intermediate * result
            return cls(shape.intermediate, shape.hidden, Kind.GEMM2, out)
        out = shape.intermediate * element if fused_activation else shape.gemm1_columns * result
        return cls(shape.gemm1_columns, shape.hidden, Kind.GEMM1, out)

    @classmethod
    def second(cls, work: LayerWork) -> Gemm:
        """Make the GEMM whose output is combined."""
        shape, out = work.shape, work.result_row_bytes
        if work.is_backward:
            return cls(shape.hidden, shape.gemm1_columns, Kind.GEMM1, out)
        return cls(shape.hidden, shape.intermediate, Kind.GEMM2, out)
