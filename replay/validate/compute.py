"""Dense matrix multiplications, and one rank's expert computation, as kernels of a task graph."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.compute.experts import Gemm, activation_bytes, gemm_kernel
from replay.machine.kinds import Kind
from replay.validate.bench import Bench
from replay.validate.table import Bound, Row, Table
from replay.work.layer import ExpertShape, LayerWork, Precision
from replay.work.placement import Placement

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

SYSTEM = "dgx-h100"
# Both tables were measured in CUDA graphs: the preset's overheads.kernel_gap_graph_us takes the
# place of its kernel_gap_stream_us.
GRAPH_GAP_US = 1.2
SMALL_M = 256  # rows below which a GEMM belongs to the part "m < 256"
OUTLIER_FACTOR = 1.35  # of the time of a larger m of the same shape

# Kernel libraries differ more than GPUs do. The preset describes DeepGEMM (FP8) and cuBLAS (BF16).
# These are TensorRT-LLM's efficiency (share of the peak), overhead and tile shapes (rows, columns),
# fitted to its own rows of gemm.csv.
TRTLLM_FP8: dict[str, Any] = {
    "compute__fp8_efficiency": 0.62,
    "compute__tile_overhead_ns": 2000.0,
    "compute__fp8_blocks": [[128, 128], [128, 64]],
}
# DeepGEMM's kernels for one matrix come in two heights (csrc/jit_kernels/heuristics/sm90.hpp); the
# preset has those of its grouped kernels.
DEEPGEMM_DENSE: dict[str, Any] = {
    "compute__fp8_blocks": [[height, width] for height in (128, 64) for width in (128, 96, 64)],
}
LIBRARY_FP8 = {"cublas-trtllm": TRTLLM_FP8, "deepgemm-sglang": DEEPGEMM_DENSE}
# Times as long as the bytes of TensorRT-LLM's quantising kernels take to stream: they move
# 0.33 TB/s. Fitted to moe_compute.csv.
TRTLLM_ELEMENTWISE_FP8 = 9


def _is_fp8(row: Row) -> bool:
    return bool(row["gemm_dtype"] == "fp8_block")


def _one_expert(rows: int, columns: int, inner: int, precision: str) -> LayerWork:
    """A multiplication as a layer with one expert on one rank."""
    return LayerWork(
        np.zeros((rows, 1), np.int32),
        np.zeros(rows, np.int32),
        Placement(np.zeros(1, np.int32), 1, "one expert"),
        ExpertShape(inner, columns),
        Precision(precision),
    )


def _quantise_bytes(rows: Any, columns: int) -> Any:
    """Bytes that quantising moves: BF16 in, FP8 and a 4-byte scale for 128 values out."""
    return rows * (3 * columns + columns // 32)


def predict_gemm(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds; FP8 rows include the quantisation of the activations."""
    predicted = []
    for row in rows:
        fp8 = _is_fp8(row)
        library = LIBRARY_FP8[row["library"]] if fp8 else {}
        system = bench.system(SYSTEM, overheads__kernel_gap_stream_us=GRAPH_GAP_US, **library)
        m, n, k = row["m"], row["n"], row["k"]
        work = _one_expert(m, n, k, "fp8" if fp8 else "bf16")

        def build(
            machine: Machine, start: Ints, work: LayerWork = work, fp8: bool = fp8,
            m: int = m, n: int = n, k: int = k,
        ) -> None:  # fmt: skip
            if fp8:
                start = machine.memory_kernel(
                    Kind.PERMUTE, np.array([_quantise_bytes(m, k)]), start
                )
            gemm = Gemm(n, k, Kind.GEMM1, Kind.GEMM1_MEMORY, 2 * n)
            pool = machine.sms.pool("sm", machine.sms.count)
            gemm_kernel(machine, work, gemm, pool, start, launched_early=fp8, layout="matrix")

        predicted.append(bench.time_us(system, 1, build))
    return predicted


def gemm_outliers(rows: Sequence[Row]) -> list[bool]:
    """Mark rows that took more than 1.35 times as long as a larger m of the same shape.

    A library could have padded to the larger m. Such rows are glitches of the collection (isolated
    points of DeepGEMM, two to four times slower than both neighbours) and ranges of m for which a
    library chose a bad kernel. Neither says anything about the hardware.
    """
    points: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for row in rows:
        points.setdefault(_library_and_matrix(row), []).append((row["m"], row.measured))
    least: dict[tuple[Any, ...], float] = {}  # time of this m or any larger one
    for key, times in points.items():
        best = np.inf
        for m, time in sorted(times, reverse=True):
            best = min(best, time)
            least[*key, m] = best
    return [
        row.measured > OUTLIER_FACTOR * least[*_library_and_matrix(row), row["m"]] for row in rows
    ]


def _library_and_matrix(row: Row) -> tuple[Any, ...]:
    return row["library"], row["gemm_dtype"], row["n"], row["k"]


def _local_work(row: Row, precision: str) -> LayerWork:
    """One rank's experts and their rows under balanced routing."""
    num_experts, topk, num_ranks = row["num_experts"], row["topk"], row["ep_size"]
    local, num_pairs = num_experts // num_ranks, row["global_tokens"] * topk
    # Balanced: pairs go round the experts. With fewer pairs than experts the measured rank has its
    # share of them, and at least one.
    num_local_pairs = min(max(-(-num_pairs // num_ranks), 1), num_pairs)
    expert = np.sort(np.arange(num_local_pairs) % local).astype(np.int32)
    return LayerWork(
        expert[:, None],
        np.zeros(num_local_pairs, np.int32),
        Placement(np.zeros(local, np.int32), 1, "one rank"),
        ExpertShape(row["hidden"], row["intermediate"]),
        Precision(precision),
    )


def _is_small(row: Row) -> bool:
    """Whether some experts of the layer have no row, so that their weights are not read."""
    return bool(row["global_tokens"] * row["topk"] < row["num_experts"])


def predict_moe(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds of the fused operator: sort, expand, two GEMMs, finish."""
    predicted = []
    for row in rows:
        fp8 = row["moe_dtype"] == "fp8_block"
        system = bench.system(SYSTEM, overheads__kernel_gap_stream_us=GRAPH_GAP_US)
        work = _local_work(row, "fp8" if fp8 else "bf16")
        predicted.append(bench.time_us(system, 1, partial(_moe, work, row)))
    return predicted


SORT_KERNELS = 3  # counts, prefix sums, positions
INDEX_BYTES = 4


def _moe(work: LayerWork, row: Row, machine: Machine, start: Ints) -> Ints:
    """Add the operator's kernels: (rank,) marks of their end."""
    hidden, rows = work.shape.hidden, np.array([work.num_tokens])
    fp8 = work.precision.name == "fp8"
    slower = TRTLLM_ELEMENTWISE_FP8 if fp8 else 1
    tokens = np.array([row["global_tokens"]])
    for _ in range(SORT_KERNELS):
        start = machine.memory_kernel(Kind.PERMUTE, INDEX_BYTES * tokens * row["topk"], start)
    copied = _quantise_bytes(tokens, hidden) + rows * 2 * hidden if fp8 else rows * 4 * hidden
    at = machine.memory_kernel(Kind.PERMUTE, copied, start)
    if fp8:  # the grouped kernels walk through all local experts, with rows or without
        at = machine.delay(Kind.LAYOUT, machine.costs.warp_scan(work.num_experts), at)
    pool = machine.sms.pool("sm", machine.sms.count)
    at = gemm_kernel(machine, work, Gemm.first(work, fused_activation=False), pool, at)
    at = machine.memory_kernel(Kind.ACTIVATION, slower * activation_bytes(work), at)
    at = gemm_kernel(machine, work, Gemm.second(work), pool, at)
    return machine.memory_kernel(Kind.UNPERMUTE, (slower * rows + tokens) * 2 * hidden, at)


GEMM = Table(
    name="gemm",
    title="Dense GEMM, BF16 (cuBLAS) and block-scaled FP8 (TensorRT-LLM, DeepGEMM), H100",
    unit="us",
    size="m",
    bounds=(
        Bound("BF16, m >= 256", 8, lambda row: row["m"] >= SMALL_M and not _is_fp8(row)),
        Bound("FP8, m >= 256", 9, lambda row: row["m"] >= SMALL_M and _is_fp8(row)),
        Bound("m < 256", 13, lambda row: row["m"] < SMALL_M),
    ),
    predict=predict_gemm,
    is_outlier=gemm_outliers,
)

MOE = Table(
    name="moe_compute",
    title="Expert computation of one rank (TensorRT-LLM), balanced routing, H100",
    unit="us",
    size="global_tokens",
    bounds=(
        Bound("fewer pairs than experts", 10, _is_small),
        Bound("more", 10, lambda row: not _is_small(row)),
    ),
    predict=predict_moe,
)
