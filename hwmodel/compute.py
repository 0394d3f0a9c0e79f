"""Grouped matrix multiplication as tiles on SMs.

A tile is ``block_m`` rows by ``block_n`` columns of the result, over the whole
inner dimension. One SM works on one tile at a time, limited by its tensor cores
or by how fast operands reach it; beside that, device memory must deliver the
weights, which is a shared server and therefore a separate number
(:meth:`Compute.weight_bytes`). Wave quantisation and the floor of weight streaming
follow from the two; they are not terms of their own.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from hwmodel.errors import UserError, unknown
from hwmodel.memory import Hbm
from hwmodel.specs import ComputeSpec, GpuSpec
from hwmodel.units import IntArray, Rate, Whole, ceil_div, exact, ps_from_ns, whole

# Operand types, and what results leave as: BF16, or FP32 where the operands are. FP8 has one
# 4-byte scale for each block of values. FP32 values are multiplied as TF32 on the tensor cores,
# as kernels for FP32 tensors do where they are allowed to round the operands.
_VALUE_BYTES: dict[str, int] = {"bf16": 2, "fp8": 1, "fp32": 4}
_RESULT_BYTES: dict[str, int] = {"bf16": 2, "fp8": 2, "fp32": 4}
_SCALE_BYTES = 4

# Loads of tiles (TMA boxes): bytes of a row, and heights that kernels have beside that of the tile,
# for a matrix with no more rows (deepseek-ai/DeepGEMM, csrc/jit_kernels/heuristics/sm90.hpp:
# "smaller block M can avoid TMA L2 OOB bound").
_LOAD_BYTES = 128
_LOW_LOADS = (16, 32, 64)


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
    """

    block_m: int
    block_n: int
    rows: IntArray
    row_tiles: IntArray
    columns: int

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
    def row_tile_group(self) -> IntArray:
        """Group of each row tile, (row_tile,), groups in order."""
        return np.repeat(np.arange(len(self.rows), dtype=np.int64), self.row_tiles)

    @property
    def rows_in_tile(self) -> IntArray:
        """Rows of each row tile, (row_tile,); the last one of a group may be partial."""
        first = np.cumsum(self.row_tiles) - self.row_tiles
        index = np.arange(self.num_row_tiles, dtype=np.int64) - np.repeat(first, self.row_tiles)
        rows: IntArray = np.repeat(self.rows, self.row_tiles) - index * self.block_m
        np.minimum(rows, self.block_m, out=rows)
        return rows

    @property
    def columns_in_tile(self) -> IntArray:
        """Columns of each column tile, (column_tile,); the last one may be partial."""
        first = np.arange(self.column_tiles, dtype=np.int64) * self.block_n
        return np.minimum(self.columns - first, self.block_n)


@dataclass(frozen=True, slots=True)
class _Precision:
    """Speed and tile shapes of one operand type."""

    sm_rate: Rate
    blocks: tuple[tuple[int, int], ...]
    value_bytes: int


@dataclass(frozen=True)
class Compute:
    """Tensor cores of one GPU.

    Attributes
    ----------
    num_sms
        SMs of the GPU.
    mma_rows
        Rows of a tile are rounded up to a multiple of this.
    tile_overhead_ps
        Filling the pipeline of a tile and storing its result.
    fp8_absent_row_ps
        For each row of an FP8 tile's loads beyond the end of the matrix, and each 128 bytes of the
        inner dimension.
    operand_rate
        Bytes per second into one SM.
    """

    num_sms: int
    mma_rows: int
    tile_overhead_ps: int
    fp8_absent_row_ps: int
    operand_rate: Rate
    _scale_block: int
    _precisions: dict[str, _Precision]
    _hbm: Hbm

    @classmethod
    def from_spec(cls, spec: ComputeSpec, gpu: GpuSpec, hbm: Hbm) -> Compute:
        """Build from a preset's ``[compute]`` and ``[gpu]`` tables."""
        sms = gpu.num_sms.value

        def precision(
            dtype: str, peak_tflop: float, efficiency: float, blocks: list[list[int]]
        ) -> _Precision:
            per_sm = exact(peak_tflop) * 10**12 * exact(efficiency) / sms
            shapes = tuple((block[0], block[1]) for block in blocks)
            return _Precision(Rate.per_second(per_sm), shapes, _VALUE_BYTES[dtype])

        clock_hz = exact(gpu.clock_GHz.value) * 10**9
        return cls(
            num_sms=sms,
            mma_rows=spec.mma_rows.value,
            tile_overhead_ps=ps_from_ns(spec.tile_overhead_ns.value),
            fp8_absent_row_ps=ps_from_ns(spec.fp8_absent_row_ns.value),
            operand_rate=Rate.per_second(exact(spec.operand_bytes_per_clock.value) * clock_hz),
            _scale_block=spec.fp8_scale_block.value,
            _precisions={
                "bf16": precision(
                    "bf16",
                    spec.bf16_peak_TFLOP_per_s.value,
                    spec.bf16_efficiency.value,
                    spec.bf16_blocks.value,
                ),
                "fp8": precision(
                    "fp8",
                    spec.fp8_peak_TFLOP_per_s.value,
                    spec.fp8_efficiency.value,
                    spec.fp8_blocks.value,
                ),
                "fp32": precision(
                    "fp32",
                    spec.fp32_peak_TFLOP_per_s.value,
                    spec.fp32_efficiency.value,
                    spec.fp32_blocks.value,
                ),
            },
            _hbm=hbm,
        )

    # ---- bytes -----------------------------------------------------------------------

    def weight_bytes(self, n: Whole, k: Whole, dtype: str) -> Whole:
        """Bytes of an (n, k) weight matrix in memory, block scales included.

        Parameters
        ----------
        n, k
            Output and inner dimension.
        dtype
            FP8 weights have one scale for each square block of values.
        """
        rows: Whole = whole(n, "n")
        inner: Whole = whole(k, "k")
        values = rows * inner * self._precision(dtype).value_bytes
        if dtype != "fp8":
            return values
        scales = ceil_div(rows, self._scale_block) * ceil_div(inner, self._scale_block)
        return values + scales * _SCALE_BYTES

    def activation_bytes(self, rows: Whole, k: int, dtype: str) -> Whole:
        """Bytes of (rows, k) activations; FP8 rows have one scale for each block of a row."""
        checked: Whole = whole(rows, "rows")
        scales = -(-k // self._scale_block) * _SCALE_BYTES if dtype == "fp8" else 0
        return checked * (k * self._precision(dtype).value_bytes + scales)

    # ---- tiles ------------------------------------------------------------------------

    def gemm_tiles(
        self,
        rows: IntArray,
        n: int,
        k: int,
        dtype: str,
        *,
        block_m: int | None = None,
        block_n: int | None = None,
        num_sms: int | None = None,
    ) -> TileGrid:
        """Cut a grouped multiplication into tiles.

        Parameters
        ----------
        rows
            Rows of each group, (group,); groups without rows have no tiles.
        n, k
            Columns of the result and inner dimension, the same for all groups.
        dtype
            Type of the operands.
        block_m, block_n
            Fix one or both sides of the tile, where a kernel prescribes them.
        num_sms
            SMs that will work on it; all by default.

        Returns
        -------
        The grid of the tile shape, among those that kernels of this type come in,
        with the smallest estimate ``waves x time of a full tile``; the first such
        in the preset's order.

        Raises
        ------
        UserError
            If a fixed side is not positive.
        """
        counts: IntArray = np.atleast_1d(whole(rows, "rows"))
        whole(n, "n")
        known = self._precision(dtype).blocks
        for side, value in (("block_m", block_m), ("block_n", block_n)):
            if value is not None and value < 1:
                message = f"{side} must be positive; got {value}"
                raise UserError(message)
        shapes = list(dict.fromkeys((block_m or m, block_n or columns) for m, columns in known))
        sms = num_sms or self.num_sms
        grids = [TileGrid(m, c, counts, ceil_div(counts, m), n) for m, c in shapes]

        def estimate_ps(grid: TileGrid) -> int:
            tallest = min(grid.block_m, int(counts.max(initial=0)))
            tile = self.tile_ps(tallest, min(grid.block_n, n), k, dtype)
            return -(-grid.num_tiles // sms) * tile

        return min(grids, key=estimate_ps)

    def absent_rows(self, rows_in_tile: IntArray, block_m: int) -> IntArray:
        """Rows that loads ask for beyond the end of a matrix of its own.

        Where groups lie in one buffer, a tile's loads find rows of the next group or padding.

        Parameters
        ----------
        rows_in_tile
            Rows of each row tile of the matrix, (row_tile,); the last one may be partial.
        block_m
            Rows of a full tile.

        Returns
        -------
        (row_tile,): up to `block_m`, or to 16, 32 or 64 where the matrix has no more rows.
        """
        height = block_m
        if len(rows_in_tile) == 1:
            lower = [low for low in _LOW_LOADS if low >= rows_in_tile[0]]
            height = min([block_m, *lower])
        absent: IntArray = height - rows_in_tile
        return absent

    def tile_ps(
        self, rows_in_tile: Whole, columns: int, k: int, dtype: str, absent_rows: int | IntArray = 0
    ) -> Whole:
        """Time of a tile on one SM whose operands are in reach (L2).

        Parameters
        ----------
        rows_in_tile
            Rows that are there, a number or one for each tile; none takes no time.
        columns
            Columns of the tile.
        k
            Inner dimension.
        dtype
            Type of the operands.
        absent_rows
            Rows of the tile's loads beyond the end of the matrix (:meth:`absent_rows`).

        Returns
        -------
        Picoseconds: the slower of the tensor cores, on rows rounded up to
        ``mma_rows``, and of the operands' way into the SM; and the tile overhead;
        and what FP8 kernels lose to loads of rows that are not there.

        Examples
        --------
        >>> import hwmodel
        >>> compute = hwmodel.load("dgx-h100").compute
        >>> compute.tile_ps(1, 128, 2048, "bf16") <= compute.tile_ps(128, 128, 2048, "bf16")
        True
        """
        rows: Whole = whole(rows_in_tile, "rows_in_tile")
        padded = ceil_div(rows, self.mma_rows) * self.mma_rows
        precision = self._precision(dtype)
        multiply = precision.sm_rate.duration_ps(padded * (2 * columns * k))
        load = self.operand_rate.duration_ps((rows + columns) * (k * precision.value_bytes))
        loads = -(-k * precision.value_bytes // _LOAD_BYTES)
        absent = absent_rows * (loads * self.fp8_absent_row_ps if dtype == "fp8" else 0)
        if isinstance(rows, np.ndarray):
            busy = np.maximum(multiply, load) + self.tile_overhead_ps + absent
            return np.where(rows > 0, busy, 0)
        return max(multiply, load) + self.tile_overhead_ps + int(absent) if rows else 0

    # ---- for checks ----------------------------------------------------------------------

    def gemm_time_ps(self, rows: IntArray | int, n: int, k: int, dtype: str) -> int:
        """Time of a grouped multiplication alone on an idle GPU, without its launch.

        Tiles go to the SMs in order, each to the first that is free, while memory
        streams all operands and results once; the kernel ends a tile overhead
        after the stream at the earliest. For checking the model against measured
        kernels; a replay schedules the same tiles and bytes among other work.

        Parameters
        ----------
        rows
            Rows of each group.
        n, k, dtype
            As for :meth:`gemm_tiles`.
        """
        counts: IntArray = np.atleast_1d(whole(rows, "rows"))
        grid = self.gemm_tiles(counts, n, k, dtype)
        if not grid.num_tiles:
            return 0
        free = [0] * min(self.num_sms, grid.num_tiles)
        is_matrix = len(counts) == 1
        absent = self.absent_rows(grid.rows_in_tile, grid.block_m) if is_matrix else 0
        tiles = [
            self.tile_ps(grid.rows_in_tile, int(columns), k, dtype, absent)
            for columns in grid.columns_in_tile
        ]
        for duration in np.stack(tiles, axis=1).ravel().tolist():
            heapq.heappushpop(free, free[0] + duration)
        return max(*free, self._stream_ps(counts, n, k, dtype) + self.tile_overhead_ps)

    def _stream_ps(self, counts: IntArray, n: int, k: int, dtype: str) -> int:
        weights = int((counts > 0).sum()) * self.weight_bytes(n, k, dtype)
        activations = int(self.activation_bytes(counts, k, dtype).sum())
        results = int(counts.sum()) * n * _RESULT_BYTES[dtype]
        return self._hbm.stream_ps(weights + activations + results)

    def peak_flop_per_s(self, dtype: str) -> float:
        """Operations per second of all SMs inside the main loops of full tiles."""
        return self._precision(dtype).sm_rate.times(Fraction(self.num_sms)).units_per_second

    def _precision(self, dtype: str) -> _Precision:
        if dtype not in self._precisions:
            raise unknown("dtype", dtype, self._precisions)
        return self._precisions[dtype]
