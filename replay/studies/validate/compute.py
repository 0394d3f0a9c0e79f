"""Dense matrix multiplications, and one rank's expert computation, as kernels of a task graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.model.compute.experts import activation_bytes
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.laws import chain
from replay.model.compute.masked_gemms import SCALE_BYTES, masked_activation
from replay.model.compute.matrix import matrix_kernel
from replay.model.compute.row_moves import STEP_NS
from replay.model.machine.kinds import Kind
from replay.model.machine.times import NO_TIME, MemoryTraffic, Time
from replay.model.work.layer import ExpertShape
from replay.model.work.precision import SCALE_BLOCK
from replay.studies.validate.bench import Bench, one_rank
from replay.studies.validate.fp8_tiles import LibraryKernels, deepgemm_tile, tensorrt_tile
from replay.studies.validate.skew import draws
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.model.machine.notes import Read
    from replay.model.work.layer import LayerWork

SYSTEM = "dgx-h100"
SMALL_TILE = 64  # rows of the lowest tile
SMALL_M = 256  # rows below which a GEMM belongs to the part "m < 256"
OUTLIER_FACTOR = 1.35  # of the time of a larger size of the same shape

# Kernel libraries differ more than GPUs do. The preset describes DeepGEMM's grouped kernels of March 2025 (FP8) and
# cuBLAS (BF16). These are values of the libraries' kernels for one matrix, fitted to even m from 256 of gemm.csv, but
# DeepGEMM's `fp8_absent_row_ns` to odd m.
LIBRARY_FP8 = {
    "cublas-trtllm": LibraryKernels(
        tensorrt_tile,
        {"compute__fp8_efficiency": 0.74, "compute__tile_overhead_ns": 2500.0},
        uneven_efficiency=0.7,
        quantising=1.5,
    ),
    "deepgemm-sglang": LibraryKernels(
        deepgemm_tile,
        {
            "compute__fp8_efficiency": 0.78,
            "compute__tile_overhead_ns": 2000.0,
            "compute__fp8_absent_row_ns": 0.5,
        },
        uneven_efficiency=0.64,
    ),
}
# DeepGEMM's kernels for one matrix on Blackwell come in two heights (csrc/jit_kernels/heuristics/sm100.hpp); the preset
# has those of its grouped kernels.
DEEPGEMM_DENSE: dict[str, Any] = {
    "compute__fp8_matrix_blocks": [[height, width] for height in (128, 64) for width in (128, 96, 64)],
}
# Times as long as the bytes of TensorRT-LLM's quantising kernels take to stream: they move
# 0.33 TB/s. Fitted to moe_compute.csv.
TRTLLM_ELEMENTWISE_FP8 = 9
TUNED_TOKENS = 8192  # most tokens that the MoE operator's autotuner looks at


def machine_of(row: MeasurementRow) -> str:
    """Preset of the machine that a row was measured on; tables of one machine do not name it."""
    return str(row.setting.get("system", SYSTEM))


def is_blackwell(row: MeasurementRow) -> bool:
    """Tell whether a row was measured on Blackwell."""
    return machine_of(row) == "hgx-b200"


def _is_fp8(row: MeasurementRow) -> bool:
    return bool(row["gemm_dtype"] == "fp8_block")


def _quantise_bytes(rows: Any, columns: int) -> Any:
    """Bytes that quantising moves: BF16 in, FP8 and a 4-byte scale for 128 values out."""
    return rows * (3 * columns + columns // 32)


def one_matrix(m: int, n: int, k: int, precision: str, num_sms: int) -> Callable[[Machine, Ints], None]:
    """Builder, for `Bench.time_us`, of an (m, k) x (k, n) product on `num_sms` SMs, nothing quantised."""

    def build(machine: Machine, start: Ints) -> None:
        work = one_rank([m], ExpertShape(k, n), precision)
        pool = machine.sms.pool("sm", num_sms)
        matrix_kernel(machine, work, Gemm(n, k, Kind.GEMM1, 2 * n), pool, start)

    return build


# The loop that measures a multiplication takes copies of the weights in turn, as many as fill the
# L2 cache and at most so many, and the same rows each time (``collector/trtllm/collect_gemm.py`` of
# ai-dynamo/aiconfigurator); or so many copies of both (``collector/sglang/collect_gemm.py``).
WEIGHT_COPIES, COPIES = 5, 6
# What one SM reads lies in one half of the cache, or in two where that half is not the SM's; what
# many read, which the measured room is of, lies in both.
ROOM_OF_ONE_READER = Fraction(4, 3)
# DeepGEMM on Blackwell, given the weights' FP32 scales of 128 x 128 values, brings them into its
# layout at each call: a range, a division, a choice of rows, and packing (deepseek-ai/DeepGEMM at
# 54e2261, ``transform_sf_into_required_layout`` in csrc/apis/layout.hpp).
SCALE_KERNELS = 4


def found_operands(system: System, row: MeasurementRow) -> list[Read]:
    """Operands that a call finds in the L2 cache, since little was read after them."""
    m, n, k = row["m"], row["n"], row["k"]
    dtype, compute, l2 = "fp8" if _is_fp8(row) else "bf16", system.compute, system.l2
    weights, results = int(compute.weight_bytes(n, k, dtype)), 2 * m * n
    if row["library"] == "deepgemm-sglang":  # and the quantised rows behind BF16 ones
        rows = m * k * 3
        between = dict.fromkeys(("activations", "weights"), COPIES * (rows + weights + results))
    else:
        copies = min(-(-l2.num_bytes // weights), WEIGHT_COPIES)
        rows = m * k * (3 if dtype == "fp8" else 2)
        between = {
            "activations": rows + weights + results,
            "weights": rows + copies * weights + results,
        }
    widest = max(columns for _, columns in system.spec.compute.bf16_blocks.value)
    has_one_reader = {"activations": n <= widest, "weights": m <= SMALL_TILE}
    both: tuple[Read, ...] = ("weights", "activations")
    return [what for what in both if between[what] <= _room(system, has_one_reader=has_one_reader[what])]


def _room(system: System, *, has_one_reader: bool) -> Fraction:
    """Bytes in all that may be read between two uses of an operand which stays in the L2 cache."""
    kept = Fraction(system.l2.kept_bytes) * (ROOM_OF_ONE_READER if has_one_reader else 1)
    return min(kept, Fraction(system.l2.num_bytes))


def predict_gemm(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds; that of FP8 has the quantisation of the activations."""
    fp8 = _is_fp8(row)
    m, n, k = row["m"], row["n"], row["k"]
    library, quantising = DEEPGEMM_DENSE if fp8 else {}, 1.0
    plain = bench.system(machine_of(row)).compute
    if fp8 and plain.cluster_tiles > 1 and plain.accumulators == 1:  # kernels of Hopper
        kernels = LIBRARY_FP8[row["library"]]
        library = kernels.settings(m, n, plain)
        quantising = kernels.quantising
    system = bench.in_graphs(machine_of(row), **library)
    work = one_rank([m], ExpertShape(k, n), "fp8" if fp8 else "bf16")
    found = found_operands(system, row)

    def build(machine: Machine, start: Ints) -> None:
        if fp8:
            start = machine.memory_kernel(Kind.PERMUTE, np.array([int(quantising * _quantise_bytes(m, k))]), start)
        if fp8 and is_blackwell(row):
            scales = SCALE_BYTES * n * -(-k // SCALE_BLOCK)
            for nbytes in (*[scales] * (SCALE_KERNELS - 1), scales + scales // SCALE_BYTES):
                start = machine.memory_kernel(Kind.PERMUTE, np.array([nbytes]), start)
        gemm = Gemm(n, k, Kind.GEMM1, 2 * n)
        pool = machine.sms.pool("sm", machine.sms.count)
        matrix_kernel(machine, work, gemm, pool, start, launched_early=fp8, found=found)

    return bench.time_us(system, 1, build)


def outliers(size: str, rows: Sequence[MeasurementRow]) -> list[bool]:
    """Mark rows that took more than 1.35 times as long as a larger size of the same shape.

    A library could have padded to the larger size. Such rows are glitches of the collection
    (isolated points of DeepGEMM, two to four times slower than both neighbours; a MoE operator five
    times slower than with twice the tokens) and ranges of sizes for which a library chose a bad
    kernel. Neither says anything about the hardware.

    Parameters
    ----------
    size
        Column of the size.
    rows
        All rows of the table.
    """

    def shape(row: MeasurementRow) -> tuple[Any, ...]:
        return tuple(value for column, value in row.setting.items() if column != size)

    points: dict[tuple[Any, ...], list[tuple[int, float]]] = {}
    for row in rows:
        points.setdefault(shape(row), []).append((row[size], row.measured))
    least: dict[tuple[Any, ...], float] = {}  # time of this size or any larger one
    for key, times in points.items():
        best = np.inf
        for at, time in sorted(times, reverse=True):
            best = min(best, time)
            least[*key, at] = best
    return [row.measured > OUTLIER_FACTOR * least[*shape(row), row[size]] for row in rows]


gemm_outliers = partial(outliers, "m")
skew_outliers = partial(outliers, "global_tokens")


def _even_rows(row: MeasurementRow) -> Ints:
    """Rows of the first rank's experts under balanced routing, (local expert,).

    A token's experts are equally far apart, from a first one that moves on from token to token
    (``balanced_logits`` in ``collector/helper.py``). The last of them are the first rank's again
    where a token's choices do not divide the experts.
    """
    experts, topk, tokens = row["num_experts"], row["topk"], row["global_tokens"]
    stride, token = -(-experts // topk), np.arange(tokens)
    first = token if tokens >= stride else token * stride // tokens
    chosen = (first[:, None] + stride * np.arange(topk)) % experts
    rows: Ints = np.bincount(chosen.ravel(), minlength=experts)
    return rows[: experts // row["ep_size"]]


def _measured_rows(row: MeasurementRow) -> list[Ints]:
    """Rows of the measured rank's experts, (local expert,), one array per run of the mean."""
    return [_even_rows(row)] if row["distribution"] == "balanced" else draws(row)


def _tuned_rows(row: MeasurementRow) -> int:
    """Rows per expert that the library's autotuner chose the kernels for.

    It tries them on even routing, for numbers of tokens that are powers of two, and takes the next
    lower one's (NVIDIA/TensorRT-LLM, ``tensorrt_llm/_torch/custom_ops/torch_custom_ops.py``).
    """
    tokens: int = min(1 << (row["global_tokens"].bit_length() - 1), TUNED_TOKENS)
    pairs: int = tokens * row["topk"]
    return int(-(-pairs // row["num_experts"]))


def _is_small(row: MeasurementRow) -> bool:
    """Tell whether some experts of the layer have no row, so that their weights are not read."""
    return bool(row["global_tokens"] * row["topk"] < row["num_experts"])


def predict_moe(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds of the fused operator: sort, expand, two GEMMs, finish."""
    precision = "fp8" if row["moe_dtype"] == "fp8_block" else "bf16"
    system = bench.in_graphs(machine_of(row))
    shape = ExpertShape(row["hidden"], row["intermediate"], gated=row["gated"] == "yes")
    works = [one_rank(rows, shape, precision) for rows in _measured_rows(row)]
    kernels = _moe_deepgemm if precision == "fp8" and is_blackwell(row) else _moe
    found = found_weights(system, works)
    return float(np.mean([bench.time_us(system, 1, partial(kernels, work, row, found)) for work in works]))


def found_weights(system: System, works: Sequence[LayerWork]) -> list[Read]:
    """Weights, if calls find them in the L2 cache: those that are measured in turn have always the same experts.

    The loop calls with the same rows again and again (``collector/trtllm/collect_moe.py`` of
    ai-dynamo/aiconfigurator).
    """
    read = 0
    for work in works:
        for gemm in (Gemm.first(work, fused_activation=False), Gemm.second(work)):
            one = int(system.compute.weight_bytes(gemm.n, gemm.k, work.precision.operands))
            read += int((work.rows_of_expert > 0).sum()) * one
    most = max(int(work.rows_of_expert.max()) for work in works)
    return ["weights"] if read <= _room(system, has_one_reader=most <= SMALL_TILE) else []


# Kernels before the rows are expanded: the choice of experts, with which a call begins; one that
# sorts up to 256 tokens, or three (counts, prefix sums, positions); and one that lists the groups'
# matrices for CUTLASS's kernels (NVIDIA/TensorRT-LLM, in
# ``cpp/tensorrt_llm/kernels/cutlass_kernels/moe_gemm/moe_kernels.cu``:
# ``fusedBuildExpertMapsSortFirstToken``, ``threeStepBuildExpertMapsSortFirstToken``,
# ``computeStridesTmaWarpSpecialized``). 256 is where BF16 takes 4 to 9 us longer, measured.
ROUTING_KERNELS, SORT_KERNELS, SORTED_AT_ONCE, GROUP_KERNELS = 1, 3, 256, 1
INDEX_BYTES = 4
# More choices are PyTorch's (``RenormalizeMoeRoutingMethod`` in ``fused_moe/routing.py``; once from 9
# on): two bits of a BF16 score at a time are looked at, the chosen are sorted, indices and scores
# cast, and there is a softmax. A look at a score takes so much of an SM's time: topk of 65,536 x 256
# FP32 values takes 779 us on 132 SMs (small_kernels.csv, H100; 128 wide, 2 % more a value).
MOST_CHOICES, LOOKS, SORT_LOADS, LOOK_PS = 16, 8, 8, 383

# 256 threads of 16 bytes each (``moe_kernels.cu``: EXPAND_, ACTIVATION_ and FINALIZE_THREADS_PER_BLOCK).
BLOCK_VALUES = 256 * 8


def _sort_tokens(row: MeasurementRow, machine: Machine, start: Ints, others: int) -> Ints:
    """Add the kernels that sort tokens by experts, and others: (rank,) marks of their end."""
    pairs = np.array([row["global_tokens"] * row["topk"]])
    sorting = SORT_KERNELS if row["global_tokens"] > SORTED_AT_ONCE else 1
    least = [NO_TIME] * (ROUTING_KERNELS + sorting + others)
    if row["topk"] > MOST_CHOICES:
        least = [*_choice(row, machine), *least[ROUTING_KERNELS:]]
    for one in least:
        start = machine.memory_kernel(Kind.PERMUTE, INDEX_BYTES * pairs, start, least=one)
    return start


def _choice(row: MeasurementRow, machine: Machine) -> list[Time]:
    """Least times of PyTorch's kernels that choose experts."""
    looks = row["global_tokens"] * row["num_experts"] * LOOKS
    of_all = Time(looks * LOOK_PS // machine.sms.count)
    topk = Time.longer(of_all, chain(machine, 1, LOOKS))
    return [topk, chain(machine, 1, SORT_LOADS), NO_TIME, NO_TIME, NO_TIME]


def _moe_deepgemm(work: LayerWork, row: MeasurementRow, found: Sequence[Read], machine: Machine, start: Ints) -> Ints:
    """Add the kernels of an operator whose FP8 experts are DeepGEMM's: (rank,) marks of their end.

    So on Blackwell: expanded rows go into a masked buffer, quantised on their way, and results out
    of it again (NVIDIA/TensorRT-LLM at 0173833, ``fused_moe_deepgemm.py`` in
    ``tensorrt_llm/_torch/modules/fused_moe``).
    """
    hidden, rows = work.shape.hidden, np.array([work.num_tokens])
    tokens, pool = np.array([row["global_tokens"]]), machine.sms.pool("sm", machine.sms.count)
    wide = rows * 2 * hidden
    at = machine.memory_kernel(Kind.PERMUTE, MemoryTraffic(wide, wide, rows), _sort_tokens(row, machine, start, 0))
    expert_of_pair = 2 * INDEX_BYTES * tokens * row["topk"]
    at = machine.memory_kernel(Kind.PERMUTE, expert_of_pair, at)
    quantised = MemoryTraffic(wide, _quantise_bytes(rows, hidden) - wide, rows)
    at = machine.memory_kernel(Kind.PERMUTE, quantised, at)
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    at = gemm_kernel(machine, work, first, pool, at, layout="masked", found=found).end
    at = masked_activation(machine, work, at)
    at = gemm_kernel(machine, work, second, pool, at, layout="masked", found=found).end
    at = machine.memory_kernel(Kind.UNPERMUTE, MemoryTraffic(wide, wide, rows), at)
    return machine.memory_kernel(Kind.UNPERMUTE, MemoryTraffic(wide, tokens * 2 * hidden), at)


def _moe(work: LayerWork, row: MeasurementRow, found: Sequence[Read], machine: Machine, start: Ints) -> Ints:
    """Add the operator's kernels: (rank,) marks of their end."""
    hidden, rows = work.shape.hidden, np.array([work.num_tokens])
    fp8 = work.precision.gemm == "fp8"
    slower = TRTLLM_ELEMENTWISE_FP8 if fp8 else 1
    tokens = np.array([row["global_tokens"]])
    start = _sort_tokens(row, machine, start, GROUP_KERNELS)
    nbytes = rows * hidden * (1 if fp8 else 2)
    copied = MemoryTraffic(nbytes, nbytes, rows)
    if fp8:  # in the same kernel, from BF16; the scale of 128 values has 4 bytes
        copied = MemoryTraffic(
            nbytes + tokens * 2 * hidden,
            nbytes + tokens * (hidden + hidden // 32),
            rows,
        )
    at = machine.memory_kernel(Kind.PERMUTE, copied, start, least=_row_walk(machine, hidden))
    if fp8:  # the grouped kernels walk through all local experts, with rows or without
        at = machine.delay(Kind.LAYOUT, machine.costs.warp_scan(work.num_experts), at)
    pool = machine.sms.pool("sm", machine.sms.count)
    tuned = _tuned_rows(row)
    at = gemm_kernel(
        machine, work, Gemm.first(work, fused_activation=False), pool, at, tuned_rows=tuned, found=found
    ).end
    least = _row_walk(machine, work.shape.intermediate)
    at = machine.memory_kernel(Kind.ACTIVATION, slower * activation_bytes(work), at, least=least)
    at = gemm_kernel(machine, work, Gemm.second(work), pool, at, tuned_rows=tuned, found=found).end
    finished = MemoryTraffic(slower * rows * 2 * hidden, tokens * 2 * hidden)
    return machine.memory_kernel(Kind.UNPERMUTE, finished, at, least=_row_walk(machine, hidden))


def _row_walk(machine: Machine, width: int) -> Time:
    """Time of a thread block of CUTLASS's operator that goes on through its row, behind the first step.

    A step takes as long as one of Transformer Engine's blocks.
    """
    return machine.costs.ns(STEP_NS) * (-(-width // BLOCK_VALUES) - 1)


GEMM = MeasurementTable(
    name="gemm",
    title="Dense GEMM, BF16 (cuBLAS) and block-scaled FP8 (TensorRT-LLM, DeepGEMM), H100",
    kind=WorkKind.PRODUCTS,
    size="m",
    bounds=(
        Bound("BF16, m >= 256", 8, lambda row: row["m"] >= SMALL_M and not _is_fp8(row)),
        Bound("FP8, m >= 256", 9, lambda row: row["m"] >= SMALL_M and _is_fp8(row)),
        Bound("m < 256", 13, lambda row: row["m"] < SMALL_M),
    ),
    predict=predict_gemm,
    is_outlier=gemm_outliers,
)

GEMM_FEW_TILES = replace(
    GEMM,
    name="gemm_few_tiles",
    title="Dense GEMM with few output tiles, H100",
    bounds=(
        Bound("BF16", 20, lambda row: not _is_fp8(row)),
        Bound("FP8", 20, _is_fp8),
    ),
)

MOE_SKEWED = MeasurementTable(
    name="moe_skewed",
    title="Expert computation of one rank (TensorRT-LLM), skewed routing, H100",
    kind=WorkKind.EXPERTS,
    size="global_tokens",
    bounds=(
        Bound("balanced", 10, has(distribution="balanced")),
        Bound("power law", 12, lambda row: row["distribution"] != "balanced"),
    ),
    predict=predict_moe,
    is_outlier=skew_outliers,
)

GEMM_SHORT_K = replace(
    GEMM,
    name="gemm_short_k",
    title="Dense GEMM with a short inner dimension, H100",
    bounds=(
        Bound("BF16", 15, lambda row: not _is_fp8(row)),
        Bound("FP8", 15, _is_fp8),
    ),
)

GEMM_MACHINES = replace(
    GEMM,
    name="gemm_machines",
    title="Dense GEMM, BF16 (cuBLAS) and block-scaled FP8 (DeepGEMM), B200 and H200",
    bounds=(
        Bound("H200, FP8", 20, has(system="hgx-h200")),
        Bound("B200, BF16", 10, has(system="hgx-b200", gemm_dtype="bfloat16")),
        Bound("B200, FP8", 10, has(system="hgx-b200", gemm_dtype="fp8_block")),
    ),
    systems=("hgx-h200", "hgx-b200"),
)

MOE_MACHINES = replace(
    MOE_SKEWED,
    name="moe_machines",
    title="Expert computation of one rank (TensorRT-LLM), balanced routing, B200",
    bounds=(
        Bound("BF16", 12, has(moe_dtype="bfloat16")),
        Bound("FP8", 12, has(moe_dtype="fp8_block")),
    ),
    systems=("hgx-b200",),
)

MOE_UNGATED = replace(
    MOE_SKEWED,
    name="moe_ungated",
    title="Experts without gate of one rank (TensorRT-LLM), even and skewed routing, H100",
    bounds=(
        Bound("balanced", 15, has(distribution="balanced")),
        Bound("power law", 15, lambda row: row["distribution"] != "balanced"),
    ),
)

MOE = MeasurementTable(
    name="moe_compute",
    title="Expert computation of one rank (TensorRT-LLM), balanced routing, H100",
    kind=WorkKind.EXPERTS,
    size="global_tokens",
    bounds=(
        Bound("fewer pairs than experts", 10, _is_small),
        Bound("more", 10, lambda row: not _is_small(row)),
    ),
    predict=predict_moe,
)
