"""Grouped matrix multiplication as tiles on SMs.

A tile is ``block_m`` rows by ``block_n`` columns of the result, over the whole
inner dimension. One SM works on one tile at a time, limited by its tensor cores
or by how fast operands reach it; beside that, device memory must deliver the
weights, which is a shared server and therefore a separate number
(:meth:`Compute.weight_bytes`). Wave quantisation and the floor of weight streaming
follow from the two; they are not terms of their own.

The module is long because choosing a tile's shape, cutting a matrix into such tiles and timing them
read the same constants of :class:`Compute`.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import cast

import numpy as np

from hwmodel.ai_core import RowReads
from hwmodel.errors import UserError, unknown
from hwmodel.formats import BITS, SCALED_VALUES, fp4_bytes
from hwmodel.memory import Hbm, L2Cache
from hwmodel.operands import WGMMA_TMA, Feed, OperandPath
from hwmodel.tables import AiCoreSpec, ComputeSpec, GpuSpec, OverheadsSpec
from hwmodel.tiles import TileGrid
from hwmodel.units import (
    PS_PER_S,
    IntArray,
    Rate,
    Whole,
    ceil_div,
    exact,
    ps_from_ns,
    ps_from_us,
    whole,
)

# Operand types, and what results leave as: BF16, or FP32 where the operands are. FP8 has one
# 4-byte scale for each block of values. FP32 values are multiplied as TF32 on the tensor cores,
# as kernels for FP32 tensors do where they are allowed to round the operands. In gradients of
# weights both FP8 operands have a scale for each block of a row ("fp8_rows"); results are FP32.
# Where operands have one scale each ("fp8_tensor"), nothing is scaled in between.
_VALUE_BYTES = {"bf16": 2, "fp8": 1, "fp8_rows": 1, "fp8_tensor": 1, "fp32": 4}
_RESULT_BYTES = {"bf16": 2, "fp8": 2, "fp8_rows": 4, "fp8_tensor": 2, "fp32": 4}
_SCALE_BYTES = 4

# FP4 weights and the rows that they are multiplied with. The tensor cores take FP4 beside FP8 at
# FP8's rate, for which the values lie in shared memory a byte each (NVIDIA PTX ISA, tcgen05.mma
# .kind::mxf8f6f4; the copy engine spreads them). Beside BF16 rows kernels convert the weights in
# registers, which is assumed to be hidden. Both leave four bits on the way into the SM.
_BESIDE = ("fp8_mxfp4", "bf16_mxfp4", "bf16_nvfp4")

# Numbers of slices that cuBLAS's kernels are offered with (NVIDIA/CUDALibrarySamples, cuBLASLt,
# LtSgemmCustomFind: splitKSequenceA), and its workspace for their sums on Hopper (cuBLAS
# documentation, cublasSetWorkspace: 32 MiB).
_SLICES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 32)
_WORKSPACE_BYTES = 32 << 20

# Loads of tiles (TMA boxes): bytes of a row, and heights that kernels have beside that of the tile,
# for a matrix with no more rows (deepseek-ai/DeepGEMM, csrc/jit_kernels/heuristics/sm90.hpp:
# "smaller block M can avoid TMA L2 OOB bound").
_LOAD_BYTES = 128
_LOW_LOADS = (16, 32, 64)

# Rows of one product of a warpgroup (NVIDIA PTX ISA, wgmma).
_WARPGROUP_ROWS = 64

_MOST_CHOSEN = 4096  # tile shapes that are remembered


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Speed and tile shapes of the kernels for one operand type."""

    sm_rate: Rate
    blocks: tuple[tuple[int, int], ...]
    value_bits: int
    weight_bits: int
    mma_rows: int | None  # rows of a tile are rounded up to a multiple of this; None: tiles whole
    slices: tuple[int, ...]  # of the inner dimension


@dataclass(frozen=True)
class Compute:
    """Tensor cores of one GPU.

    Attributes
    ----------
    num_sms
        SMs of the GPU.
    tile_overhead_ps
        Filling the pipeline of a tile and storing its result.
    fp8_absent_row_ps
        Time of an FP8 tile for each row that it loads beyond the end of the matrix, per 128 bytes
        of the inner dimension.
    fp8_step_ps
        Time that a warpgroup loses between two steps of 128 values, in an FP8 kernel for one
        matrix.
    operand_rate, register_rate
        Bytes per second into one SM: into its shared memory, and into registers.
    mma_sync_efficiency
        Share of the peak that products by ``mma.sync`` reach.
    shared_rate
        Bytes per second into and out of the shared memory of one SM.
    multiplication_rate, special_rate
        FP32 additions or multiplications per second, and exponentials or reciprocals, of one SM.
    cluster_tiles
        Neighbouring tiles that load what they share from the L2 cache once.
    accumulators
        Tiles whose sums an SM has room for. With two, one tile's result is stored while the next is
        multiplied.
    reduction_ps
        Time of a kernel that adds the sums of slices, beside its bytes; the choice of slices
        assumes it.
    row_reads
        Of AI cores; None for SMs.
    """

    num_sms: int
    tile_overhead_ps: int
    fp8_absent_row_ps: int
    fp8_step_ps: int
    fp8_peak_rate: Rate
    operand_rate: Rate
    register_rate: Rate
    mma_sync_efficiency: Fraction
    shared_rate: Rate
    multiplication_rate: Rate
    special_rate: Rate
    cluster_tiles: int
    accumulators: int
    reduction_ps: int
    row_reads: RowReads | None
    _scale_block: int
    _matrix: dict[str, _Kernels]
    _grouped: dict[str, _Kernels]
    _hbm: Hbm
    _l2: L2Cache
    #: Tile shapes that were chosen, by all that :meth:`gemm_tiles` was asked: schemes that are
    #: compared, and layers of a chain, ask for the same multiplications again and again.
    _chosen: dict[tuple[object, ...], tuple[int, int, int]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def from_spec(
        cls, spec: ComputeSpec, gpu: GpuSpec, hbm: Hbm, overheads: OverheadsSpec, ai_core: AiCoreSpec | None
    ) -> Compute:
        """Build from a preset's ``[compute]``, ``[gpu]``, ``[overheads]`` and, if it has one, ``[ai_core]`` tables."""
        sms = gpu.num_sms.value

        def kernels(
            family: str, *, whole_tiles: bool = False, slices: tuple[int, ...] = (1,), shapes: str = ""
        ) -> _Kernels:
            number_type = family.partition("_")[0]
            peak = exact(getattr(spec, f"{number_type}_peak_TFLOP_per_s").value) * 10**12
            efficiency = exact(getattr(spec, f"{family}_efficiency").value)
            shapes = shapes or ("fp8" if number_type == "fp8" else family)
            blocks = getattr(spec, f"{shapes}_blocks").value
            return _Kernels(
                Rate.per_second(peak * efficiency / sms),
                tuple((block[0], block[1]) for block in blocks),
                8 * _VALUE_BYTES[number_type],
                8 * _VALUE_BYTES[number_type],
                None if whole_tiles else spec.mma_rows.value,
                slices,
            )

        whole_tiles = spec.bf16_grouped_whole_tiles.value
        clock_hz = exact(gpu.clock_GHz.value) * 10**9
        operand_rate = Rate.per_second(exact(spec.operand_bytes_per_clock.value) * clock_hz)
        # BF16 and TF32 are cuBLAS's, FP8 DeepGEMM's, which has no slices.
        matrix = {
            "bf16": kernels("bf16", slices=_SLICES),
            "fp8": kernels("fp8", shapes="fp8_matrix"),
            "fp8_rows": kernels("fp8_rows"),
            "fp8_tensor": kernels("fp8_tensor"),
            "fp32": kernels("fp32", slices=_SLICES),
        }
        grouped = {
            **matrix,
            "bf16": kernels("bf16_grouped", whole_tiles=whole_tiles),
            "fp8": kernels("fp8"),
            "fp32": kernels("fp32"),
        }
        fp4_peak = exact(spec.fp4_peak_TFLOP_per_s.value)
        for of_kind in (matrix, grouped):
            of_kind |= _with_fp4(of_kind, spec.fp4_kinds.value, fp4_peak / exact(spec.fp8_peak_TFLOP_per_s.value))
        return cls(
            num_sms=sms,
            tile_overhead_ps=ps_from_ns(spec.tile_overhead_ns.value),
            fp8_absent_row_ps=ps_from_ns(spec.fp8_absent_row_ns.value),
            fp8_step_ps=ps_from_ns(spec.fp8_step_ns.value),
            fp8_peak_rate=Rate.per_second(exact(spec.fp8_peak_TFLOP_per_s.value) * 10**12 / sms),
            operand_rate=operand_rate,
            register_rate=Rate.per_second(exact(spec.register_bytes_per_clock.value) * clock_hz),
            mma_sync_efficiency=exact(spec.mma_sync_efficiency.value),
            shared_rate=Rate.per_second(exact(spec.shared_bytes_per_clock.value) * clock_hz),
            multiplication_rate=Rate.per_unit(exact(spec.multiplication_clocks.value) * PS_PER_S / clock_hz),
            special_rate=Rate.per_unit(exact(spec.special_function_clocks.value) * PS_PER_S / clock_hz),
            cluster_tiles=spec.cluster_tiles.value,
            accumulators=spec.accumulators.value,
            reduction_ps=ps_from_us(overheads.kernel_gap_graph_us.value + overheads.small_kernel_us.value),
            row_reads=None if ai_core is None else RowReads.from_spec(ai_core, gpu, hbm, operand_rate),
            _scale_block=spec.fp8_scale_block.value,
            _matrix=matrix,
            _grouped=grouped,
            _hbm=hbm,
            _l2=L2Cache.from_spec(gpu),
        )

    # ---- bytes -----------------------------------------------------------------------

    def weight_bytes(self, n: Whole, k: int, number_type: str) -> Whole:
        """Bytes of an (n, k) weight matrix in memory, block scales included.

        Parameters
        ----------
        n, k
            Output and inner dimension.
        number_type
            FP8 weights have one scale for each square block of values, FP4 ones in each row.
        """
        rows: Whole = whole(n, "n")
        inner: int = whole(k, "k")
        kernels = self._kernels(number_type)
        if fp4 := _fp4_weights(number_type):
            return rows * fp4_bytes(inner, fp4)
        values = rows * inner * (kernels.weight_bits // 8)
        if not _has_scales(number_type):
            return values
        scales = ceil_div(rows, self._scale_block) * ceil_div(inner, self._scale_block)
        return values + scales * _SCALE_BYTES

    def activation_bytes(self, rows: Whole, k: int, number_type: str) -> Whole:
        """Bytes of (rows, k) activations; FP8 and FP4 rows have a scale for each block of a row."""
        checked: Whole = whole(rows, "rows")
        kernels = self._kernels(number_type)
        if number_type in SCALED_VALUES:
            return checked * fp4_bytes(k, number_type)
        scales = -(-k // self._scale_block) * _SCALE_BYTES if _has_scales(number_type) else 0
        return checked * (k * (kernels.value_bits // 8) + scales)

    # ---- tiles ------------------------------------------------------------------------

    def gemm_tiles(
        self,
        rows: IntArray,
        n: int,
        k: int,
        number_type: str,
        *,
        block_m: int | None = None,
        block_n: int | None = None,
        num_sms: int | None = None,
        grouped: bool = False,
        split_k: bool = False,
    ) -> TileGrid:
        """Cut a grouped multiplication into tiles.

        Parameters
        ----------
        rows
            Rows of each group, (group,); groups without rows have no tiles.
        n, k
            Columns of the result and inner dimension, the same for all groups.
        number_type
            Type of the operands.
        block_m, block_n
            Fix one or both sides of the tile, where a kernel prescribes them.
        num_sms
            SMs that will work on it; all by default.
        grouped
            Whether a kernel for groups does it, which may be another than that for one matrix.
        split_k
            Whether the inner dimension may be cut, where the library has such kernels.

        Returns
        -------
        The grid of the tile shape, among those that kernels of this type come in,
        with the smallest estimate, the first such in the preset's order: the slower
        of ``waves x time of a full tile`` and of all tiles' loads from the L2 cache.
        Slices of the inner dimension, all in one wave, add the time of their sums
        (:meth:`sums_ps`). The estimate leaves device memory out.

        Raises
        ------
        UserError
            If a fixed side is not positive.
        """
        counts: IntArray = np.atleast_1d(whole(rows, "rows"))
        whole(n, "n")
        kernels = self._kernels(number_type, grouped)
        for side, value in (("block_m", block_m), ("block_n", block_n)):
            if value is not None and value < 1:
                message = f"{side} must be positive; got {value}"
                raise UserError(message)
        sms = num_sms or self.num_sms
        asked = (counts.tobytes(), n, k, number_type, block_m, block_n, sms, grouped, split_k)
        if asked in self._chosen:
            height, width, slices = self._chosen[asked]
            return TileGrid(height, width, counts, ceil_div(counts, height), n, slices)
        shapes = list(dict.fromkeys((block_m or m, block_n or columns) for m, columns in kernels.blocks))
        grids = [
            grid
            for m, c in shapes
            for slices in (kernels.slices if split_k else (1,))
            if self._may_run(grid := TileGrid(m, c, counts, ceil_div(counts, m), n, slices), sms, k)
        ]

        def estimate_ps(grid: TileGrid) -> int:
            tallest = min(grid.block_m, int(counts.max(initial=0)))
            width = min(grid.block_n, n)
            tile = self.tile_ps(
                tallest,
                width,
                grid.slice_inner(k),
                number_type,
                block_m=grid.block_m,
                grouped=grouped,
            )
            stores, adds = self.sums_ps(grid)
            hidden = int(self.hidden_ps(tile, self.tile_overhead_ps)) * (grid.slices == 1)
            waves = -(-grid.num_tiles * grid.slices // sms)
            larger = max(tallest, width)
            loads = tallest + width - larger + -(-larger // self.cluster_tiles)
            nbytes = -(-grid.num_tiles * loads * k * kernels.value_bits // 8)
            products = max(waves * (tile + stores - hidden) + hidden, self._l2.read_ps(nbytes))
            return products + adds + (self.reduction_ps if grid.slices > 1 else 0)

        best = min(grids, key=estimate_ps)
        if len(self._chosen) >= _MOST_CHOSEN:
            self._chosen.clear()
        self._chosen[asked] = best.block_m, best.block_n, best.slices
        return best

    @staticmethod
    def _may_run(grid: TileGrid, num_sms: int, k: int) -> bool:
        """Tell whether all slices have something to do at once, and room for their sums."""
        if grid.slices == 1:
            return True
        in_one_wave = 0 < grid.num_tiles * grid.slices <= num_sms
        every_one_works = (grid.slices - 1) * grid.slice_inner(k) < k
        return in_one_wave and every_one_works and grid.partial_bytes() <= _WORKSPACE_BYTES

    def sums_ps(self, grid: TileGrid) -> tuple[int, int]:
        """Time of writing and of adding the sums of slices, which stay in the L2 cache.

        Returns
        -------
        Picoseconds: an SM writes those of its tile; all SMs together read all of them. Nothing if
        there is one slice.
        """
        if grid.slices == 1:
            return 0, 0
        nbytes = grid.partial_bytes()
        of_a_tile = -(-nbytes // (grid.num_tiles * grid.slices))
        of_an_sm = -(-nbytes // self.num_sms)
        return self.operand_rate.duration_ps(of_a_tile), self.operand_rate.duration_ps(of_an_sm)

    def absent_rows(self, rows_in_tile: IntArray, block_m: int, n: int) -> IntArray:
        """Rows that loads ask for beyond the end of a matrix of its own.

        Where groups lie in one buffer, a tile's loads find rows of the next group or padding.

        Parameters
        ----------
        rows_in_tile
            Rows of each row tile of the matrix, (row_tile,); the last one may be partial.
        block_m
            Rows of a full tile.
        n
            Columns of the result.

        Returns
        -------
        (row_tile,): up to `block_m`, or to 16, 32 or 64 where the matrix has no more rows. 0 up to
        128 columns, where few SMs ask for a row: loads are not slower (measured).
        """
        if n <= self._scale_block:
            return np.zeros_like(rows_in_tile)
        height = block_m
        if len(rows_in_tile) == 1:
            lower = [low for low in _LOW_LOADS if low >= rows_in_tile[0]]
            height = min([block_m, *lower])
        absent: IntArray = height - rows_in_tile
        return absent

    def tile_ps(
        self,
        rows_in_tile: Whole,
        columns: int,
        k: int,
        number_type: str,
        absent_rows: int | IntArray = 0,
        *,
        block_m: int | IntArray = 1,
        grouped: bool = False,
        path: OperandPath = WGMMA_TMA,
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
        number_type
            Type of the operands.
        absent_rows
            Rows of the tile's loads beyond the end of the matrix (:meth:`absent_rows`).
        block_m
            Rows of a full tile, for kernels that multiply partial tiles as whole ones.
        grouped
            As for :meth:`gemm_tiles`.
        path
            Path of the operands.

        Returns
        -------
        Picoseconds: the slowest of the tensor cores, on rows rounded up to a step of
        theirs or to the whole tile, of the operands' way into the SM, and of the
        load/store units (:meth:`OperandPath.passes`), or these behind the products
        where a kernel does not load ahead, of the stages of a kernel that has few,
        and of an AI core's reads of single rows; and the tile overhead; and what FP8
        kernels lose to loads of rows that are not there.

        Examples
        --------
        >>> import hwmodel
        >>> compute = hwmodel.load("dgx-h100").compute
        >>> compute.tile_ps(1, 128, 2048, "bf16") <= compute.tile_ps(128, 128, 2048, "bf16")
        True
        """
        rows: Whole = whole(rows_in_tile, "rows_in_tile")
        kernels = self._kernels(number_type, grouped)
        step = block_m if kernels.mma_rows is None else kernels.mma_rows
        padded: Whole = whole(-(-rows // step) * step, "rows_in_tile")
        sm_rate = kernels.sm_rate.times(self.mma_sync_efficiency) if path.has_warps else kernels.sm_rate
        multiply = sm_rate.duration_ps(padded * (2 * columns * k))
        inner, of_weights = -(-k * kernels.value_bits // 8), -(-k * kernels.weight_bits // 8)
        load = self._load_ps(rows * inner, path.rows, columns * of_weights, path.weights)
        passing = self.shared_rate.duration_ps(path.passes(rows, columns) * inner)
        loads = -(-inner // _LOAD_BYTES)
        is_fp8 = number_type.startswith("fp8")
        absent = absent_rows * (loads * self.fp8_absent_row_ps if is_fp8 else 0)
        busy = np.maximum(np.maximum(multiply, load), path.stages_ps(inner, multiply))
        busy = np.maximum(busy, passing) if path.loads_ahead else busy + passing
        if path.reads_rows:
            assert self.row_reads is not None, "an SM has no such reads"
            row_bytes = -(-columns * kernels.weight_bits // 8)
            busy = np.maximum(busy, self.row_reads.tile_ps(rows, row_bytes, k, inner, path.step_bytes))
        if number_type == "fp8" and self.fp8_step_ps and not grouped:
            busy = np.maximum(busy, self._steps_ps(padded, columns, k))
        busy = busy + self.tile_overhead_ps + absent
        return np.where(rows > 0, busy, 0) if isinstance(rows, np.ndarray) else int(busy * (rows > 0))

    def weights_from_memory_ps(self, columns: Whole, k: int, number_type: str, path: OperandPath) -> Whole:
        """Least time of so many columns' way from memory into an AI core that reads single rows.

        Parameters
        ----------
        columns, k, number_type, path
            As for :meth:`tile_ps`.
        """
        assert self.row_reads is not None, "an SM has no such reads"
        kernels = self._kernels(number_type)
        inner = -(-k * kernels.value_bits // 8)
        return self.row_reads.from_memory_ps(-(-columns * kernels.weight_bits // 8), k, inner, path.step_bytes)

    def hidden_ps(self, tile_ps: Whole, ending_ps: IntArray | int) -> Whole:
        """Part of a tile's time in which its SM multiplies the next tile already.

        Parameters
        ----------
        tile_ps
            Time of the tile, from :meth:`tile_ps`.
        ending_ps
            Part of it that is not multiplying: filling the pipeline, storing the result.

        Returns
        -------
        Picoseconds; 0 with one accumulator, whose registers are those that are stored. With two,
        the SM is held for the longer of the two parts.
        """
        if self.accumulators == 1:
            return 0 * tile_ps
        return cast("Whole", np.maximum(np.minimum(ending_ps, tile_ps - ending_ps), 0))

    def _steps_ps(self, rows: Whole, columns: int, k: int) -> Whole:
        """Time of a tile's steps of 128 values in one warpgroup, which waits for each.

        Kernels whose operands have scales add each step's products to their sums outside the tensor
        cores. Up to two warpgroups have 64 rows each at a time, and multiply while the other adds.
        """
        own = np.minimum(rows, _WARPGROUP_ROWS)
        products = self.fp8_peak_rate.duration_ps(own * (2 * columns * self._scale_block))
        adds = self.multiplication_rate.duration_ps(own * columns)
        turns = np.maximum(-(-rows // (2 * _WARPGROUP_ROWS)), 1)
        steps: Whole = -(-k // self._scale_block) * turns * (products + adds + self.fp8_step_ps)
        return steps

    def _load_ps(self, rows: Whole, rows_feed: Feed, weights: int, weights_feed: Feed) -> Whole:
        """Time of so many bytes' way from the L2 cache into the SM."""
        if rows_feed == weights_feed:
            return self._feed_rate(rows_feed).duration_ps(rows + weights)
        of_rows: Whole = self._feed_rate(rows_feed).duration_ps(rows)
        return of_rows + self._feed_rate(weights_feed).duration_ps(weights)

    def _feed_rate(self, feed: Feed) -> Rate:
        return self.register_rate if feed == "registers" else self.operand_rate

    def least_ps(self, rows: IntArray, n: int, k: int, number_type: str) -> IntArray:
        """SM time that the tensor cores need for each group of a grouped multiplication, (group,).

        However it is cut into tiles, and with whichever kernels: no overhead of tiles, no loads.

        Parameters
        ----------
        rows
            Rows of each group, (group,).
        n, k, number_type
            As for :meth:`gemm_tiles`.
        """
        counts: IntArray = np.atleast_1d(whole(rows, "rows"))
        times = []
        for grouped in (False, True):
            kernels = self._kernels(number_type, grouped)
            padded: IntArray = ceil_div(counts, kernels.mma_rows or 1) * (kernels.mma_rows or 1)
            times.append(kernels.sm_rate.duration_ps(padded * (2 * n * k)))
        least: IntArray = np.minimum(*times)
        return least

    # ---- for checks ----------------------------------------------------------------------

    def gemm_time_ps(self, rows: IntArray | int, n: int, k: int, number_type: str, num_sms: int | None = None) -> int:
        """Time of a grouped multiplication alone on an idle GPU, without its launch.

        Tiles go to the SMs in order, each to the first that is free, while memory
        streams all operands and results once; the kernel ends a tile overhead
        after the stream at the earliest. For checking the model against measured
        kernels; a replay schedules the same tiles and bytes among other work.

        Parameters
        ----------
        rows
            Rows of each group.
        n, k, number_type, num_sms
            As for :meth:`gemm_tiles`.
        """
        sms = num_sms or self.num_sms
        counts: IntArray = np.atleast_1d(whole(rows, "rows"))
        is_matrix = len(counts) == 1
        grid = self.gemm_tiles(counts, n, k, number_type, grouped=not is_matrix, split_k=is_matrix, num_sms=sms)
        if not grid.num_tiles:
            return 0
        stores, adds = self.sums_ps(grid)
        absent = self.absent_rows(grid.rows_in_tile, grid.block_m, n) if is_matrix else 0
        rows_in_tile, widths = grid.rows_in_tile, grid.columns_in_tile.tolist()
        tiles_of = {
            width: self.tile_ps(
                rows_in_tile,
                width,
                grid.slice_inner(k),
                number_type,
                absent,
                block_m=grid.block_m,
                grouped=not is_matrix,
            )
            for width in set(widths)
        }
        tiles = [tiles_of[width] for width in widths]
        busy: IntArray = np.repeat(np.stack(tiles, axis=1).ravel(), grid.slices) + stores
        hidden: IntArray = self.hidden_ps(busy, self.tile_overhead_ps)
        hidden = hidden * (grid.slices == 1)
        stream = self._stream_ps(counts, n, k, number_type) + self.tile_overhead_ps
        end = max(_in_order_ps(busy - hidden, sms) + int(np.min(hidden)), stream)
        return end + adds + (self.reduction_ps if grid.slices > 1 else 0)

    def _stream_ps(self, counts: IntArray, n: int, k: int, number_type: str) -> int:
        weights = int((counts > 0).sum()) * self.weight_bytes(n, k, number_type)
        activations = int(self.activation_bytes(counts, k, number_type).sum())
        results = int(counts.sum()) * n * _RESULT_BYTES.get(number_type, 2)
        return self._hbm.stream_ps(weights + activations + results)

    def peak_flop_per_s(self, number_type: str) -> float:
        """Operations per second of all SMs inside the main loops of full tiles."""
        return self._kernels(number_type).sm_rate.times(Fraction(self.num_sms)).units_per_second

    def lacks(self, number_type: str) -> str:
        """Say that tensor cores do not multiply a number type, and which ones they do; empty if they do."""
        if number_type in self._matrix or not _fp4_weights(number_type):
            return ""
        rows, _, weights = number_type.rpartition("_")
        asked = f"{weights} weights beside {rows} rows" if rows else f"{weights} values"
        possible = ", ".join(one for one in self._matrix if one in (*_VALUE_BYTES, *SCALED_VALUES) and "_" not in one)
        return f"tensor cores multiply no {asked}, but {possible}, and bf16 rows by mxfp4 or nvfp4 weights"

    def _kernels(self, number_type: str, grouped: bool = False) -> _Kernels:
        known = self._grouped if grouped else self._matrix
        if number_type not in known:
            if _fp4_weights(number_type):
                raise UserError(self.lacks(number_type))
            raise unknown("number type", number_type, known)
        return known[number_type]


def gradient_type(number_type: str) -> str:
    """Number type of the operands of a weight gradient, where all other products have `number_type`."""
    return "fp8_rows" if number_type == "fp8" else number_type


def _has_scales(number_type: str) -> bool:
    return number_type in ("fp8", "fp8_rows", "fp8_mxfp4")


def _fp4_weights(number_type: str) -> str:
    """Type of the weights among such products, if it is FP4."""
    last = number_type.rpartition("_")[2]
    return last if last in SCALED_VALUES else ""


def _with_fp4(kernels: Mapping[str, _Kernels], kinds: Sequence[str], rate: Fraction) -> dict[str, _Kernels]:
    """Kernels with FP4 operands beside others.

    Parameters
    ----------
    kernels
        By the type of their operands.
    kinds
        Kinds of FP4 values that the tensor cores multiply.
    rate
        Of FP4 products by the rate of FP8.
    """
    found = {}
    for name in _BESIDE:
        rows, weights = name.split("_")
        if rows != "fp8" or weights in kinds:
            found[name] = replace(kernels[rows], weight_bits=BITS, slices=(1,))
    if kinds:
        fp8 = kernels["fp8"]
        both = replace(fp8, sm_rate=fp8.sm_rate.times(rate), value_bits=BITS, weight_bits=BITS)
        found |= dict.fromkeys(kinds, both)
    return found


def _in_order_ps(durations: IntArray, num_sms: int) -> int:
    """End of the last of tiles (tile,) that go to SMs in order, each to the first free one."""
    if durations.min() == durations.max():  # in waves
        return ceil_div(len(durations), num_sms) * int(durations[0])
    free = [0] * num_sms
    for duration in durations.tolist():
        heapq.heappushpop(free, free[0] + duration)
    return max(free)
