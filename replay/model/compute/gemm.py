"""The shape of each GEMM of a layer's experts, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.model.machine.kinds import Kind

if TYPE_CHECKING:
    from replay.model.work.layer import LayerWork


@dataclass(frozen=True)
class Gemm:
    """One GEMM of the layer: (rows, k) x (k, n) for every expert.

    A pass has two of them in sequence. Forward: up (and gate) projection, then down projection.
    Backward: the input gradients of the down projection, then those of the up projection.

    Attributes
    ----------
    n, k
        Columns of the result, and inner dimension.
    kind
        Kind of its tiles' tasks.
    out_bytes
        Bytes of a row of the result in HBM.
    activated
        Values of a row of the result whose activation its tiles' SMs compute.
    """

    n: int
    k: int
    kind: Kind
    out_bytes: int
    activated: int = 0

    @classmethod
    def first(cls, work: LayerWork, fused_activation: bool) -> Gemm:
        """Make the GEMM that reads dispatched rows; a fused activation writes only its result."""
        shape, types = work.shape, work.precision
        if work.is_backward:
            n, activated, kind = shape.intermediate, shape.gemm1_columns, Kind.GEMM2
        else:
            n, activated, kind = shape.gemm1_columns, shape.intermediate, Kind.GEMM1
        out = types.operand_row_bytes(activated) if fused_activation else types.token_row_bytes(n)
        return cls(n, shape.hidden, kind, out, shape.intermediate if fused_activation else 0)

    @classmethod
    def of_matrices(cls, work: LayerWork) -> tuple[Gemm, Gemm]:
        """Make both, one for each matrix of an expert's weights."""
        return cls.first(work, fused_activation=False), cls.second(work)

    @classmethod
    def second(cls, work: LayerWork) -> Gemm:
        """Make the GEMM whose output is combined."""
        shape, out = work.shape, work.result_row_bytes
        if work.is_backward:
            return cls(shape.hidden, shape.gemm1_columns, Kind.GEMM1, out)
        return cls(shape.hidden, shape.intermediate, Kind.GEMM2, out)
