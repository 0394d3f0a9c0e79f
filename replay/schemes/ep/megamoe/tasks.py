"""Tiles of MegaMoE: their height, and the order in which the kernel's blocks take them.

Source: deepseek-ai/DeepGEMM 0274ad7, ``csrc/jit_kernels/heuristics/mega_moe.hpp`` and
``deep_gemm/include/deep_gemm/scheduler/mega_moe.cuh``. Two neighbouring tiles of 128 columns go to
two blocks of a cluster. Clusters draw tasks from two counters, one for each GEMM, row tile after
row tile. First each draws so many of GEMM-1 that no task of GEMM-2 can wait for one that nobody has
drawn; then they draw from both in turn.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from replay.model.arrays import Ints

TILE_COLUMNS, CLUSTER = 128, 2
HEIGHTS = (64, 128, 192, 240)  # beside 16 and 32 for few rows
MOST_ROWS, ONE_TILE_ROWS, MANY_EXPERTS = 240, 192, 14


def tile_rows(expected: float, experts_per_rank: int) -> int:
    """Height of a tile for the rows that an expert is expected to have.

    The fewest tiles that hold them and one standard deviation more, and then the lowest.
    """
    if expected <= 24:
        return 16 if expected <= 10 else 32
    covered = expected + math.sqrt(expected)
    count = math.ceil(covered / MOST_ROWS)
    if count == 1 and covered > ONE_TILE_ROWS and experts_per_rank < MANY_EXPERTS:
        count = 2
    return next((height for height in HEIGHTS if count * height >= covered), HEIGHTS[-1])


def warm_up(num_tiles: int, clusters: int, first: int, second: int) -> int:
    """Tasks of GEMM-1 that each cluster draws before it draws any of GEMM-2.

    Parameters
    ----------
    num_tiles
        Row tiles of the GPU.
    clusters
        Clusters that draw.
    first, second
        Tasks of a row tile in either GEMM.
    """
    more = max(first - second, 0)
    of_first_wave = -(-(-(-clusters // second) * first) // clusters)
    of_the_last_tile = -(-(first + (num_tiles - 1) * more) // clusters) + 1
    return min(max(of_first_wave, of_the_last_tile), -(-num_tiles * first // clusters))


def turns(num_tiles: int, clusters: int, first: int, second: int) -> tuple[Ints, Ints]:
    """Turn at which each task of GEMM-1 and of GEMM-2 is drawn: (tile, task) of either.

    The warm-up sees to it that no task of GEMM-2 comes before all of GEMM-1 of its row tile.
    """
    warm = warm_up(num_tiles, clusters, first, second) * clusters if num_tiles else 0
    of_first, of_second = np.arange(num_tiles * first), np.arange(num_tiles * second)
    # Behind the warm-up a wave of GEMM-2, a wave of GEMM-1, and so on.
    later = (of_first - warm) // clusters * 2 + 1
    one = np.where(of_first < warm, -1, later).reshape(num_tiles, first)
    two = (of_second // clusters * 2).reshape(num_tiles, second)
    return one, two


def ring_tiles(num_tiles: int, clusters: int, first: int, second: int) -> int:
    """Row tiles that the buffer of received rows has room for."""
    warm = min(warm_up(num_tiles, clusters, first, second) * clusters, num_tiles * first)
    growth = -(-num_tiles * (second - first) // second) if second > first else 0
    live = -(-warm // first) + growth + -(-clusters // min(first, second))
    return max(min(num_tiles, live), 1)
