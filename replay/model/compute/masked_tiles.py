"""Tile of a masked kernel on Hopper, as DeepGEMM chooses it for the rows that an expert can expect.

It is the tile whose loads take the fewest clocks of the L2 cache or of the SMs, whichever is more,
over the share of SMs that whole waves leave busy. DeepGEMM counts tiles as if every expert had the
expected rows; what there is to multiply is less even.

Source: deepseek-ai/DeepGEMM 54e2261, ``csrc/jit_kernels/heuristics/sm90.hpp``
(``get_layout_candidates``, ``get_pipeline_config``, ``get_layout_info``), also for the numbers.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

MASKED_ROWS = (64, 128)  # heights: one warp group or two
COLUMN_STEP = 16
MOST_COLUMNS = {1: 192, 2: 256}  # by bytes of an operand; FP8 kernels have a second set of sums
STEP_BYTES = 128  # of the inner dimension, of a row of either operand
SCALE_COLUMNS = 128  # of weights that have a scale together
RESULT_BYTES, SCALE_BYTES, BARRIER_BYTES = 2, 4, 16 * 8 * 2
SHARED_BYTES = 232_448
LEAST_STAGES, STAGES_OF_SMALL, SMALL_TILE = 3, 4, 128 * 192
L2_BYTES_PER_CLOCK, L2_BYTES_OF_SM, SM_BYTES_PER_CLOCK = 8e6 / 1.3e3, 64, 128


class MaskedTile(NamedTuple):
    """Rows and columns of a tile, and how many neighbours load what they share once.

    Attributes
    ----------
    rows, columns
        Of the tile.
    below, beside
        Tiles of a cluster in either direction; one of them is 1. They rank tiles; loads are shared as the
        machine says (`compute.cluster_tiles`).
    """

    rows: int
    columns: int
    below: int
    beside: int


@lru_cache(maxsize=4096)
def masked_tile(expected: int, n: int, k: int, num_experts: int, value_bytes: int, num_sms: int) -> MaskedTile:
    """Choose the tile of a kernel that multiplies `expected` rows of each expert.

    Parameters
    ----------
    n, k
        Columns of the result and inner dimension.
    num_experts
        Matrices that the kernel has.
    value_bytes
        Bytes of an operand, 1 or 2.
    num_sms
        SMs that it is launched on.
    """
    clusters = [(1, 1), *(pair for pair in ((1, 2), (2, 1)) if num_sms % 2 == 0)]
    tiles = [
        tile
        for below, beside in clusters
        for rows in MASKED_ROWS
        for columns in range(COLUMN_STEP, MOST_COLUMNS[value_bytes] + 1, COLUMN_STEP)
        if _may_run(tile := MaskedTile(rows, columns, below, beside), n, k, value_bytes)
    ]
    return min(tiles, key=lambda tile: _clocks(tile, max(expected, 1), n, k, max(num_experts, 1), value_bytes, num_sms))


def _may_run(tile: MaskedTile, n: int, k: int, value_bytes: int) -> bool:
    """Tell whether a kernel has such a tile: scales as it can address them, and stages enough."""
    has_scales, beyond = value_bytes == 1, tile.columns - SCALE_COLUMNS
    if has_scales and beyond > 0 and tile.columns % beyond and SCALE_COLUMNS % beyond:
        return False
    if -(-n // tile.columns) % (tile.below * tile.beside):
        return False
    fixed = tile.rows * tile.columns * RESULT_BYTES + BARRIER_BYTES
    stage = (tile.rows + tile.columns) * STEP_BYTES
    if has_scales:
        of_weights = 1 if SCALE_COLUMNS % tile.columns == 0 else 2
        fixed += _up(of_weights * -(-k // STEP_BYTES) * SCALE_BYTES, 8)
        stage += _up(tile.rows * SCALE_BYTES, 128)
    stages = (SHARED_BYTES - fixed) // stage
    return stages >= (STAGES_OF_SMALL if tile.rows * tile.columns < SMALL_TILE else LEAST_STAGES)


def _clocks(tile: MaskedTile, expected: int, n: int, k: int, num_experts: int, value_bytes: int, num_sms: int) -> float:
    """Clocks of a tile's kernel, as its library estimates them."""
    blocks = -(-expected // tile.rows) * -(-n // tile.columns) * num_experts
    waves = -(-blocks // num_sms)
    if waves <= 1 and tile.below * tile.beside > 1:
        return math.inf
    row = k * value_bytes
    results = tile.rows * tile.columns * RESULT_BYTES
    shared = row * (tile.rows // tile.beside + tile.columns // tile.below)
    loads = row * (tile.rows + tile.columns)
    from_l2 = (shared + results) * blocks // int(min(L2_BYTES_OF_SM * num_sms, L2_BYTES_PER_CLOCK))
    # Operands come into shared memory and go out of it again, as results do.
    in_sms = 2 * (loads + results) * blocks // (SM_BYTES_PER_CLOCK * num_sms)
    return max(from_l2, in_sms) * waves * num_sms // blocks


def _up(nbytes: int, to: int) -> int:
    return -(-nbytes // to) * to
