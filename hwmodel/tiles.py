"""Tiles of a grouped multiplication, and slices of their inner dimension."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hwmodel.units import IntArray, ceil_div

MAIN_LOOP_VALUES = 64  # of the inner dimension that a step multiplies: 128 bytes of BF16
_SUM_BYTES = 4  # partial sums are FP32


@dataclass(frozen=True)
class TileGrid:
    """Tiles of a grouped multiplication.

    Attributes
    ----------
    block_m, block_n
        Rows and columns of a full tile.
    rows
        Rows of each group, (group,).
    row_tiles
        Tiles along the rows of each group, (group,).
    columns
        Columns of the result, ``n``.
    slices
        Parts of the inner dimension that different SMs multiply; above 1 their
        sums are added by a second kernel.
    """

    block_m: int
    block_n: int
    rows: IntArray
    row_tiles: IntArray
    columns: int
    slices: int = 1

    @property
    def column_tiles(self) -> int:
        """Tiles along the columns, the same for every group."""
        return -(-self.columns // self.block_n)

    @property
    def num_row_tiles(self) -> int:
        """Row tiles of all groups together."""
        return int(self.row_tiles.sum())

    @property
    def num_tiles(self) -> int:
        """Tiles of all groups together."""
        return self.num_row_tiles * self.column_tiles

    @property
    def rows_in_tile(self) -> IntArray:
        """Rows of each row tile, (row_tile,); the last one of a group may be partial."""
        first = self.row_tiles.cumsum() - self.row_tiles
        index = np.arange(self.num_row_tiles, dtype=np.int64) - first.repeat(self.row_tiles)
        rows: IntArray = self.rows.repeat(self.row_tiles) - index * self.block_m
        np.minimum(rows, self.block_m, out=rows)
        return rows

    @property
    def columns_in_tile(self) -> IntArray:
        """Columns of each column tile, (column_tile,); the last one may be partial."""
        first = np.arange(self.column_tiles, dtype=np.int64) * self.block_n
        return np.minimum(self.columns - first, self.block_n)

    def slice_inner(self, k: int) -> int:
        """Inner dimension of a slice, in whole steps of the main loop; the last may have less."""
        if self.slices == 1:
            return k
        return ceil_div(ceil_div(k, MAIN_LOOP_VALUES), self.slices) * MAIN_LOOP_VALUES

    def partial_bytes(self) -> int:
        """Bytes of all slices' sums, FP32 values; none if there is one slice."""
        return _SUM_BYTES * self.slices * int(self.rows.sum()) * self.columns * (self.slices > 1)
