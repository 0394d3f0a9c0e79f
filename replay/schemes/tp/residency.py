"""The option that schemes have whose blocks wait on SMs."""

from __future__ import annotations

from typing import Any

from replay.schemes.options import option

MOST = 32  # on an SM of the GPUs that there are, however small


def resident_blocks() -> Any:
    """Declare the option `resident_blocks`."""
    return option(
        0,
        "Thread blocks that are on an SM at a time; while one waits, others multiply. 0 is as many "
        "as registers and shared memory for the product's tiles leave room for.",
        "assumed: tiles as those of CUTLASS's kernels with mma.sync: one block of 128 x 256 or "
        "128 x 192, two of 128 x 128 on A100, H100 and B200. Kernels for Hopper (wgmma, TMA) have "
        "one, whatever their tile",
        most=MOST,
    )
