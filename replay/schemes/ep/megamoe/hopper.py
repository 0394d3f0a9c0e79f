"""MegaMoE's kernel for Hopper, whose sums lie in registers.

Source: sgl-project/DeepGEMM, pull request 36 (3f9268b), ``impls/sm90_fp8_mega_moe.cuh``,
``scheduler/mega_moe.cuh``, ``heuristics/sm90_mega_moe.hpp``, and the description of pull request 88
(c724f5e), which changes the order of tiles. What differs from Blackwell's kernel:

- The warps that multiply activate, quantise, cast and store by themselves, and the tensor cores
  wait for them. They also scale sums before and behind the products of each step, so that these are
  added to in registers: twice for every 128 values of the inner dimension in GEMM-1, and four times
  in GEMM-2, whose operands have a scale for every 64 values.
- Tiles have 128 rows and 256 columns where an expert can expect 64 rows, else 64 and 128. Blocks
  share no operands. Two warps of an SM pull rows.
- Tasks are one list. Block b of the grid takes every task whose place is b modulo the number of
  SMs, and waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.warp_work import WarpWork
from replay.model.work.ragged import places
from replay.schemes.ep.megamoe.kernel import MegaKernel

if TYPE_CHECKING:
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.machine import Ints

HIGH, LOW = (128, 256), (64, 128)  # tiles
HIGH_ROWS = 64  # that an expert can expect, for the high tiles
UNIT_TILES, GROUP_UNITS = 8, 4
LAG_SHARE, LEAST_LAG, MOST_LAG = 0.45, 8, 64
SPARE_TILES = 4

ROWS_OF_A_WARP = 16  # of a tile, which it stores two at a time
# GEMM-1 reads a row's gate weight, and waits for its store to be done.
FIRST_LOADS = 2
# GEMM-2 looks up the owner of each pair of rows before it stores them.
SECOND_LOADS = ROWS_OF_A_WARP // 2
# Results of two bytes are put into shared memory in words of four, eight rows of 256 bytes at once,
# which all begin in the same bank: eight passes for one.
STAGED_BYTES = 2 * (8 - 1)

# Beyond the one multiplication of each step that plain kernels have: high tiles reuse the registers
# of the sums, low ones have a second set.
OF_HIGH = (
    WarpWork(scalings=1, loads=FIRST_LOADS),
    WarpWork(scalings=3, staged_bytes=STAGED_BYTES, loads=SECOND_LOADS),
)
OF_LOW = (
    WarpWork(loads=FIRST_LOADS),
    WarpWork(scalings=1, staged_bytes=STAGED_BYTES, loads=SECOND_LOADS),
)


def tile_shape(expected_rows: float) -> tuple[int, int]:
    """Rows and columns of a tile, for the rows that an expert is expected to have."""
    return HIGH if expected_rows >= HIGH_ROWS else LOW


def lag_of(units: int) -> int:
    """Units by which GEMM-2 is behind GEMM-1, for the units that a GPU is expected to have."""
    return min(max(round(LAG_SHARE * units), LEAST_LAG), MOST_LAG)


def ring_of(lag: int) -> int:
    """Row tiles of the ring: as many as can be between GEMM-1 and GEMM-2, and some more."""
    return UNIT_TILES * (lag + GROUP_UNITS) + SPARE_TILES


@dataclass(frozen=True)
class Stream:
    """The order of tasks: in waves, or GEMM-2 behind GEMM-1.

    Attributes
    ----------
    lag
        Units by which GEMM-2 is behind; 0 for one wave: GEMM-1 of all row tiles, one after the
        other, then GEMM-2 of them.
    """

    lag: int

    def keys(self, tiles: RowTiles, tile: Ints, column: Ints, gemm: int) -> tuple[Ints, ...]:
        """What tasks of a GEMM (task,) are sorted by on each GPU, the last key first."""
        if not self.lag:
            return column, tile, np.full_like(tile, gemm)
        unit = units(tiles)
        # A group of GEMM-1 is followed by the group of GEMM-2 that is so many units before it.
        place = (unit[tile] + self.lag * gemm) // GROUP_UNITS
        return tile, column, unit[tile], np.full_like(tile, gemm), place


def units(tiles: RowTiles) -> Ints:
    """(tile,): number of its unit on its GPU; a unit is up to 8 row tiles of one expert."""
    within = np.arange(len(tiles)) - tiles.first_of_expert[tiles.expert]
    begins = within % UNIT_TILES == 0
    number = np.empty(len(tiles), np.int64)
    for rank in np.unique(tiles.rank):
        of_rank = np.flatnonzero(tiles.rank == rank)
        number[of_rank] = np.cumsum(begins[of_rank]) - 1
    return number


@dataclass(frozen=True)
class HopperKernel(MegaKernel):
    """Blocks that take every so manieth task of one list."""

    stream: Stream

    warps = 2
    cluster = 1

    def warp_work(self) -> tuple[WarpWork, WarpWork]:
        """As the tiles are high or low."""
        return OF_HIGH if self.tiles.block_m[0] == HIGH[0] else OF_LOW

    def _assign(self, first: TileTasks, second: TileTasks, met: Ints) -> None:
        tiles, sms = self.tiles, self.machine.sms.count
        both = [
            (tasks, self.stream.keys(tiles, tasks.column_tile, tasks.column_index, gemm))
            for gemm, tasks in enumerate((first, second))
        ]
        rank = np.concatenate([tiles.rank[tasks.column_tile] for tasks, _ in both])
        begins = np.concatenate([tasks.begins for tasks, _ in both])
        ends = np.concatenate([tasks.columns for tasks, _ in both])
        keys = [np.concatenate(each) for each in zip(*(keys for _, keys in both), strict=True)]
        order = np.lexsort((*keys, rank))
        follows = np.flatnonzero(places(np.bincount(rank, minlength=self.work.num_ranks)) >= sms)
        self.machine.order(ends[order[follows - sms]], begins[order[follows]])
