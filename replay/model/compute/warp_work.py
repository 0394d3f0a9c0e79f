"""Work of warps on their SM for a tile beside its products.

Where a tile's sums lie in registers, the warps that multiply also scale them, activate them, cast
and send them, and the tensor cores wait. Instructions are counted in a kernel's source; their rates
are the machine's. What every kernel does, to fill its pipeline and to store a plain result, is in
``compute.tile_overhead_ns``, and the one multiplication by which DeepGEMM's kernels scale a sum for
each block of the inner dimension is in ``compute.fp8_efficiency``: of 512 clocks of products in a
step of a 128 x 128 tile its 128 are the larger part of what is lost there. Only what a kernel does
beyond that is counted here. Tensor cores and arithmetic take turns at the registers that hold the
sums: neither is hidden behind the other, however many warpgroups share the SM (measured, see
``validate/fused_layers.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints
    from replay.model.compute.gemm import Gemm
    from replay.model.machine.machine import Machine

# An exponential and a reciprocal: x / (1 + exp(-x)). Beside them some 13 other instructions for
# each value run at 128 a clock, while two special functions take 16 a clock an eighth of one.
SPECIAL_FUNCTIONS = 2
SCALED_VALUES = 128  # of the inner dimension that share a scale
WARPGROUP_ROWS = 64  # of a tile; warps scale those that are not there too
SCALE_PRODUCTS = 2  # of a row's scale and the weights', for each reciprocal: one before, one behind


@dataclass(frozen=True)
class WarpWork:
    """Work of one kernel's warps for a tile of one GEMM, beyond what all kernels do.

    Attributes
    ----------
    scalings
        Multiplications of each sum for every 128 values of the inner dimension, where these have
        scales.
    reciprocal_sums
        Sums that share a reciprocal of their scale, taken anew for every 128 values; 0 if none is
        taken.
    whole_tiles
        Whether rows of a tile that are not there are multiplied and scaled as if they were.
    staged_bytes
        Bytes of shared memory's rate that each value of the result takes on its way out, bank
        conflicts counted as the bytes that could pass meanwhile.
    loads
        Loads from the L2 cache that follow one another.
    """

    scalings: int = 0
    reciprocal_sums: int = 0
    whole_tiles: bool = False
    staged_bytes: int = 0
    loads: int = 0

    def multiplied_rows(self, rows: Counts, height: Ints) -> Ints:
        """(tile,): rows that are multiplied, of those that are there and those of a full tile."""
        return np.where(rows > 0, height, 0) if self.whole_tiles else rows

    def ps(
        self,
        machine: Machine,
        gemm: Gemm,
        rows: Counts,
        multiplied: Ints,
        columns: Ints,
        number_type: str,
    ) -> Ints:
        """Time on the SM.

        Parameters
        ----------
        rows, multiplied, columns
            (tile,): rows of each tile that are there, those that are multiplied, and its columns.
        number_type
            Type of the operands.

        Returns
        -------
        (tile,), the activation of a GEMM that has one included.
        """
        compute = machine.system.compute
        time = compute.special_rate.duration_ps(SPECIAL_FUNCTIONS * (rows * columns * gemm.activated // gemm.n))
        if number_type == "fp8":
            sums = -(-multiplied // WARPGROUP_ROWS) * WARPGROUP_ROWS * columns
            sums = sums * -(-gemm.k // SCALED_VALUES)
            scaled = sums * self.scalings
            if self.reciprocal_sums:
                reciprocals = sums // self.reciprocal_sums
                scaled = scaled + SCALE_PRODUCTS * reciprocals
                time = time + compute.special_rate.duration_ps(reciprocals)
            time = time + compute.multiplication_rate.duration_ps(scaled)
        if self.staged_bytes:
            time = time + compute.shared_rate.duration_ps(rows * columns * self.staged_bytes)
        if self.loads:
            time = time + (machine.costs.cache_load() * self.loads).ps
        found: Ints = time
        return found


PLAIN = WarpWork()
