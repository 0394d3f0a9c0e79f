"""Values of four bits (E2M1) and their scales of eight: MXFP4 and NVFP4.

MXFP4 has a scale without mantissa (E8M0) for 32 values, NVFP4 one of E4M3 for 16 (OCP
Microscaling Formats 1.0, section 5.3; NVIDIA PTX ISA, tcgen05.mma ``.scale_vec``). NVFP4's further
scale, four bytes for a whole tensor, is left out.
"""

from __future__ import annotations

from typing import overload

from hwmodel.units import IntArray, Whole

SCALED_VALUES = {"mxfp4": 32, "nvfp4": 16}
"""Values of a row that share a scale."""

BITS = 4


@overload
def fp4_bytes(values: int, fp4_type: str) -> int: ...
@overload
def fp4_bytes(values: IntArray, fp4_type: str) -> IntArray: ...
def fp4_bytes(values: Whole, fp4_type: str) -> Whole:
    """Bytes of a row of values, two in each, and of its scales, of one byte each.

    Parameters
    ----------
    values
        Number of values in the row.
    fp4_type
        A key of `SCALED_VALUES`.

    Examples
    --------
    >>> fp4_bytes(64, "mxfp4"), fp4_bytes(64, "nvfp4")
    (34, 36)
    """
    return -(-values * BITS // 8) - (-values // SCALED_VALUES[fp4_type])
