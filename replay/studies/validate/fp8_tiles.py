"""Tiles that libraries of block-scaled FP8 products take for one matrix on Hopper.

Both try shapes in turn and keep the one with the fewest waves of tiles over the SMs, then the one with the
fullest last wave. Which shapes they have, and when two blocks share a load, differs. Neither asks how fast a
shape is.
"""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING, Any, NamedTuple

from hwmodel.units import PS_PER_NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from hwmodel.compute import Compute

SCALED = 128  # values of the inner dimension, and columns of weights, with one scale
WARPGROUP_ROWS = 64  # of a tile


class LibraryTile(NamedTuple):
    """A tile and how it is loaded.

    Attributes
    ----------
    rows, columns
        Its sides, of tokens and of weights.
    shared
        Blocks that load what they share once.
    exchanged
        Whether weights are the side that the tensor cores take 64 rows of.
    """

    rows: int
    columns: int
    shared: int
    exchanged: bool = False


def deepgemm_tile(m: int, n: int, num_sms: int) -> LibraryTile:
    """Tile of DeepGEMM, 2025-08 to 2026-03.

    ``get_best_config`` in csrc/jit_kernels/heuristics/common.hpp, with sm90.hpp's candidates (deepseek-ai/DeepGEMM at
    38f8ef7): up to 256 rows, whole tiles, loads shared from 512 rows on.
    """
    heights = [64, 128, 256] + [low for low in (16, 32) if m <= low]
    best: tuple[int, int, int, int] | None = None
    for height in heights:
        for width in (*range(16, SCALED + 1, 16), 144, 160, 192):
            if height > SCALED and width > SCALED:
                continue
            waves, last = _waves(m, n, height, width, num_sms)
            if best is None or _is_better(best, (height, width, waves, last), m, n):
                best = height, width, waves, last
    assert best is not None
    return LibraryTile(best[0], best[1], 2 if m >= 512 else 1)


def _is_better(best: tuple[int, int, int, int], new: tuple[int, int, int, int], m: int, n: int) -> bool:
    (height, width, waves, last), (new_height, new_width, new_waves, new_last) = best, new
    if (new_waves, -new_last) != (waves, -last):
        return (new_waves, -new_last) < (waves, -last)
    if new_height == height:
        return new_width < width
    if new_width == width and new_height < height:
        return True
    return new_width > width and new_width <= n and new_height <= m


def tensorrt_tile(m: int, n: int, num_sms: int) -> LibraryTile:
    """Tile of TensorRT-LLM, whose kernels descend from DeepGEMM's first.

    ``get_best_gemm_config`` in cpp/include/tensorrt_llm/deep_gemm/compiler.cuh, called by ``gemm_dispatch`` in
    fp8_blockscale_gemm_kernel.cuh (NVIDIA/TensorRT-LLM at 89fd9b7 and 0249976): below 32 rows the operands are
    exchanged.
    """
    exchanged = m < 32
    long, short = (n, m) if exchanged else (m, n)
    height = 64 if long <= 64 else SCALED

    def rank(width: int) -> tuple[int, int]:
        waves, last = _waves(long, short, height, width, num_sms)
        return waves, -last

    width = min(range(16, SCALED + 1, 8), key=rank)
    if exchanged:
        return LibraryTile(width, height, 1, exchanged=True)
    return LibraryTile(height, width, 2 if m >= 1024 and n % (2 * width) == 0 else 1)


def _waves(m: int, n: int, height: int, width: int, num_sms: int) -> tuple[int, int]:
    """Waves of tiles over the SMs, and tiles of the last one."""
    tiles = -(-m // height) * -(-n // width)
    return -(-tiles // num_sms), (tiles - 1) % num_sms + 1


class LibraryKernels(NamedTuple):
    """Kernels of a library for FP8 products of one matrix.

    Attributes
    ----------
    tile
        Its choice, by rows, columns and SMs.
    values
        Hardware values that stand for its kernels, in place of the preset's.
    uneven_efficiency
        Share of the FP8 peak where scales of weights change within a tile and the compiler cannot know where: widths of
        which 128 has more than four remainders (``kShouldOptimize`` in DeepGEMM's sm90_fp8_gemm_1d2d.cuh). A warpgroup
        then takes one more instruction for each of its sums in a step, to choose the scale (``predicate`` there).
    quantising
        Time of the kernel that converts rows to FP8 before it, over the time that its bytes need.
    """

    tile: Callable[[int, int, int], LibraryTile]
    values: dict[str, Any]
    uneven_efficiency: float
    quantising: float = 1.0

    def settings(self, m: int, n: int, compute: Compute) -> dict[str, Any]:
        """Hardware values for one product on these tensor cores."""
        tile = self.tile(m, n, compute.num_sms)
        found = self.values | {
            "compute__fp8_matrix_blocks": [[tile.rows, tile.columns]],
            "compute__cluster_tiles": tile.shared,
            "compute__mma_rows": tile.rows if tile.exchanged else max(tile.rows, 64),
        }
        if not tile.exchanged and SCALED % tile.columns and SCALED // gcd(SCALED, tile.columns) > 4:
            found["compute__fp8_efficiency"] = self.uneven_efficiency
            choices_ps = compute.multiplication_rate.duration_ps(WARPGROUP_ROWS * tile.columns)
            found["compute__fp8_step_ns"] = (compute.fp8_step_ps + choices_ps) / PS_PER_NS
        return found
