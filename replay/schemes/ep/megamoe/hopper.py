"""MegaMoE's kernel for Hopper, whose sums lie in registers, in two versions.

Source: sgl-project/DeepGEMM, pull request 36 (3f9268b), ``impls/sm90_fp8_mega_moe.cuh``,
``scheduler/mega_moe.cuh``, ``heuristics/sm90_mega_moe.hpp``, whose order of tiles is in waves; and
pull request 88 (its commit a21e2e5, and the description of c724f5e), whose order lets GEMM-2 lag
behind GEMM-1, and whose warps do less. What both differ in from Blackwell's kernel:

- The warps that multiply activate, quantise, cast and store by themselves, and the tensor cores
  wait for them. They also scale sums beside the products of each step, so that these are added to
  in registers. Rows of a tile that are not there are multiplied and scaled like others.
- High tiles have 128 rows and 256 columns, where an expert can expect 64 rows. Two warps of an SM
  pull rows.
- Tasks are one list. Block b of the grid takes every task whose place is b modulo the number of
  blocks, and waits for it. Its threads' registers and its stages leave no room for a second on an SM.

===============================  =================================  =================================
step                             ``waves``, pull request 36         ``lag``, pull request 88
===============================  =================================  =================================
order                            GEMM-1 of all row tiles, then      units of up to 8 row tiles in
                                 GEMM-2 of all                      groups of four, GEMM-2 0.45 of all
                                                                    units later; waves below 1024
                                                                    tokens per GPU
multiplications per 128 values   2, in GEMM-2 4; from a hidden      1 from a hidden width of 4096 on,
                                 width of 7168 on 1 and 2           2 below
scales of GEMM-2's rows          2 for 128 values                   1 for 128 values
reciprocals of scales            one for 16 sums                    one for 32 sums
results into shared memory       eight rows in a bank               matrices, half of which nobody
                                 (GEMM-1: four)                     reads
owners of rows                   two at a time                      all at once
loads of weights                 each block its own                 pairs of blocks once
low tiles                        64 x 128                           64 x 256
===============================  =================================  =================================

Where a width is no multiple of 512, ``lag`` has two scales, no pairs and low tiles as the other.
What waves take longer is for the greater part what their warps do, not the order: the kernel on one
GPU with all experts, where no row travels, takes nearly as long (``fused_kernel`` of MEASURED.md).
Where GEMM-2 follows closely, rows are pulled for longer, since its stores delay the pull's small
loads in the ports and its ring has room for fewer tiles. Not modelled: operands swapped for up to 128
tokens (waves); GEMM-2's last units drawn from a counter, and tokens added up while others are still
on their way (lag).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.footprints import staged_block
from replay.model.compute.tile_order import numbers_on_rank
from replay.model.compute.warp_work import WarpWork
from replay.model.machine.buffers import OUTBOX
from replay.model.work.ragged import places
from replay.schemes.ep.megamoe.kernel import MegaKernel

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.compute.footprints import BlockFootprint
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.schemes.ep.megamoe.kernel import TileMessages

HIGH = (128, 256)  # tile
HIGH_ROWS = 64  # that an expert can expect, for the high tiles
UNIT_TILES, GROUP_UNITS = 8, 4
LAG_SHARE, LEAST_LAG, MOST_LAG = 0.45, 8, 64
SPARE_TILES = 4
LAG_TOKENS = 1024  # of the GPU that has most, from which on GEMM-2 lags behind

PAIR = 2  # blocks that share loads of weights
PULLING_WARPS, RESULT_BYTES = 2, 2
# Of a block, and registers of each: what `__launch_bounds__(threads, 1)` leaves it, in eights.
THREADS = (384, 168)
# GEMM-1 reads a row's gate weight, and waits for its store to be done.
FIRST_LOADS = 2
# Two rows of a scale and two of the weights' scales meet in the sums of a thread.
THREAD_RECIPROCALS = 4


@dataclass(frozen=True)
class Version:
    """Properties of one version of the kernel.

    Attributes
    ----------
    low
        Rows and columns of a low tile.
    high_threads
        Threads of a block with high tiles, and registers of each.
    high_passes
        Parts of a high tile's results that pass shared memory one after the other.
    second_scales
        Scales of a row of GEMM-2's operands for 128 values of the inner dimension.
    carries_from
        Hidden width from which on sums of high tiles keep the last step's scale, and one
        multiplication brings them to the next one's. Below it, sums are brought to a step's scale
        before its products and back behind them.
    thread_sums
        Sums of high tiles that a thread has in its registers.
    low_staged, high_staged
        Bytes of shared memory's rate that either GEMM takes for each value of a tile's sums, beyond
        those of a pass that fills all banks.
    owner_loads
        Look-ups of the owners of rows, one behind the other, by each warp of GEMM-2's high tiles.
    shares_weights
        Whether pairs of blocks load the weights of high tiles once.
    """

    low: tuple[int, int]
    high_threads: tuple[int, int]
    high_passes: int
    second_scales: int
    carries_from: int
    thread_sums: int
    low_staged: tuple[int, int]
    high_staged: tuple[int, int]
    owner_loads: int
    shares_weights: bool

    def block(self, is_high: bool, row_bytes: int) -> BlockFootprint:
        """Footprint of a block: stages, results, and the rows that its warps pull."""
        rows, columns = HIGH if is_high else self.low
        threads, registers = self.high_threads if is_high else THREADS
        results = rows * columns * RESULT_BYTES // (self.high_passes if is_high else 1)
        return staged_block(threads, registers, rows + columns, results + PULLING_WARPS * row_bytes)

    def warp_work(self, is_high: bool, hidden: int) -> tuple[WarpWork, WarpWork]:
        """Work of the multiplying warps besides products, in either GEMM.

        Low tiles have a second set of registers for what they add up, which needs no multiplication
        beyond the one of plain kernels; the sums of high tiles are scaled where they lie.
        """
        if not is_high:
            of_first, of_second = self.low_staged
            return (
                WarpWork(staged_bytes=of_first, loads=FIRST_LOADS),
                WarpWork(self.second_scales - 1, staged_bytes=of_second, loads=PAIRS_OF_ROWS),
            )
        times = 1 if hidden >= self.carries_from else 2
        shared = self.thread_sums // THREAD_RECIPROCALS
        of_first, of_second = self.high_staged
        return (
            WarpWork(times - 1, shared, staged_bytes=of_first, loads=FIRST_LOADS),
            WarpWork(
                self.second_scales * times - 1,
                shared,
                staged_bytes=of_second,
                loads=self.owner_loads,
            ),
        )


# Of sixteen rows a warp stores two at a time, and looks their owners up before that.
PAIRS_OF_ROWS = 16 // 2
# A warp puts results into shared memory eight rows at once. GEMM-2's are words of four bytes in
# rows of 128 or 256, which all begin in the same bank: eight passes for one. Results of GEMM-1,
# which are half as many as its sums, are words of two bytes in rows of 64: four passes for one.
WORDS_STAGED, HALVES_STAGED = 2 * (8 - 1), 4 - 1
# In rows of 128 bytes they take eight passes.
LONG_HALVES_STAGED = 8 - 1
# Stores of matrices pass all banks at once. Four of the eight rows of each go to where nobody reads
# them, because the buffer has room for four: as many bytes again.
MATRICES_STAGED = 2

WAVES = Version(
    low=(64, 128),
    high_threads=(640, 96),
    high_passes=1,
    second_scales=2,
    carries_from=7168,
    thread_sums=64,
    low_staged=(HALVES_STAGED, WORDS_STAGED),
    high_staged=(HALVES_STAGED, WORDS_STAGED),
    owner_loads=PAIRS_OF_ROWS,
    shares_weights=False,
)
# One scale of GEMM-2's rows for 128 values is what the description measures: its buffers of 287 and
# 857 MiB (2048 and 8192 tokens) have room for one, and would be 289 and 861 with two.
LAGS = Version(
    low=(64, 256),
    high_threads=THREADS,
    high_passes=4,
    second_scales=1,
    carries_from=4096,
    thread_sums=128,
    low_staged=(LONG_HALVES_STAGED, WORDS_STAGED),
    high_staged=(0, MATRICES_STAGED),
    owner_loads=1,
    shares_weights=True,
)


# Widths that are no multiples of 512 have no pairs of tiles of 256 columns, and need two scales.
NARROW = replace(LAGS, low=WAVES.low, low_staged=WAVES.low_staged, second_scales=2, shares_weights=False)
WIDE_COLUMNS = 512


def version_of(order: str, hidden: int, columns: int) -> Version:
    """Version of the kernel by its order, and by the columns of GEMM-2 and of GEMM-1."""
    if order == "waves":
        return WAVES
    return NARROW if hidden % WIDE_COLUMNS or columns % WIDE_COLUMNS else LAGS


def tile_shape(expected_rows: float, version: Version) -> tuple[int, int]:
    """Rows and columns of a tile, for the rows that an expert is expected to have."""
    return HIGH if expected_rows >= HIGH_ROWS else version.low


def lag_of(units: int) -> int:
    """Units by which GEMM-2 is behind GEMM-1, for the units that a GPU is expected to have."""
    return min(max(round(LAG_SHARE * units), LEAST_LAG), MOST_LAG)


def ring_of(lag: int) -> int:
    """Row tiles of the ring: as many as can be between GEMM-1 and GEMM-2, and some more."""
    return UNIT_TILES * (lag + GROUP_UNITS) + SPARE_TILES


@dataclass(frozen=True)
class TaskOrder:
    """The order of tasks: in waves, or GEMM-2 behind GEMM-1.

    Attributes
    ----------
    lag
        Units by which GEMM-2 is behind; 0 for one wave: GEMM-1 of all row tiles, one after the
        other, then GEMM-2 of them.
    by_columns
        Whether a wave goes column by column through the row tiles of an expert.
    """

    lag: int
    by_columns: bool = False

    def keys(self, tiles: RowTiles, tile: Ints, column: Ints, gemm: int) -> tuple[Ints, ...]:
        """Keys by which tasks of a GEMM (task,) are sorted on each GPU, the last key first."""
        if not self.lag:
            gemms = np.full_like(tile, gemm)
            if self.by_columns:
                return tile, column, tiles.expert[tile], gemms
            return column, tile, gemms
        unit, _ = numbers_on_rank(tiles, UNIT_TILES)
        # A group of GEMM-1 is followed by the group of GEMM-2 that is so many units before it.
        place = (unit[tile] + self.lag * gemm) // GROUP_UNITS
        return tile, column, unit[tile], np.full_like(tile, gemm), place


def pairs(tiles: RowTiles) -> Ints:
    """(tile,): number of the pair of neighbouring row tiles of an expert that two blocks share."""
    within = np.arange(len(tiles)) - tiles.first_of_expert[tiles.expert]
    return np.cumsum(within % PAIR == 0) - 1


@dataclass(frozen=True)
class HopperKernel(MegaKernel):
    """Blocks that take the tasks of one list in turn.

    Attributes
    ----------
    pads
        Whether high tiles multiply rows that are not there.
    """

    version: Version
    stream: TaskOrder
    pads: bool

    warps = PULLING_WARPS
    cluster = 1
    stores_beside = False

    @property
    def _is_high(self) -> bool:
        return bool(self.tiles.block_m[0] == HIGH[0])

    @property
    def shares_loads(self) -> bool:
        """Tell whether pairs of blocks share loads of weights."""
        return self.version.shares_weights and self._is_high

    def warp_work(self) -> tuple[WarpWork, WarpWork]:
        """Work as the version has it for tiles of this height."""
        first, second = self.version.warp_work(self._is_high, self.work.shape.hidden)
        whole = self.pads and self._is_high
        return replace(first, whole_tiles=whole), replace(second, whole_tiles=whole)

    def _begins(self, ready: Tasks) -> Ints:
        """Let blocks that share loads begin together, when the rows of both are there."""
        if not self.shares_loads:
            return ready
        pair = pairs(self.tiles)
        first = np.flatnonzero(np.diff(pair, prepend=-1))
        return self.machine.join(ready, pair, self.tiles.rank[first])[pair]

    def _assign(self, first: TileTasks, second: TileTasks, met: Ints, sent: TileMessages) -> None:
        tiles, blocks = self.tiles, self.num_blocks
        both = [
            (tasks, self.stream.keys(tiles, tasks.column_tile, tasks.column_index, gemm))
            for gemm, tasks in enumerate((first, second))
        ]
        rank = np.concatenate([tiles.rank[tasks.column_tile] for tasks, _ in both])
        begins = np.concatenate([tasks.begins for tasks, _ in both])
        ends = np.concatenate([tasks.columns for tasks, _ in both])
        keys = [np.concatenate(each) for each in zip(*(keys for _, keys in both), strict=True)]
        order = np.lexsort((*keys, rank))
        follows = np.flatnonzero(places(np.bincount(rank, minlength=self.work.num_ranks)) >= blocks)
        before, next_one = ends[order[follows - blocks]], begins[order[follows]]
        self.machine.order(before, next_one)
        if self.machine.transfers.holds_back:
            self._hold_on(before, next_one, sent)

    def _hold_on(self, before: Ints, next_one: Ints, sent: TileMessages) -> None:
        """Let blocks store a tile before they go on: (task,) tasks of blocks, and their next.

        The warps that multiply store the tile themselves. They have issued its last message when no
        more are on their way to the switch than an SM has room for.
        """
        by_task = np.argsort(sent.made, kind="stable")
        made, counts = np.unique(sent.made, return_counts=True)
        waits = counts > OUTBOX
        left = sent.left[by_task[(np.cumsum(counts) - 1 - OUTBOX)[waits]]]
        _, of, which = np.intersect1d(before, made[waits], return_indices=True)
        self.machine.order(left[which], next_one[of])
