"""One rank's expert computation as SGLang runs it on DeepGEMM, under even and skewed routing.

The measured setting is the collector's of ai-dynamo/aiconfigurator
(``collector/sglang/collect_wideep_deepep_moe.py`` and the power law in ``collector/helper.py``):

- *Contiguous* (prefill): kernels are launched one by one from Python under a profiler that records
  stacks. The time runs from before the first launch until the host has seen the last kernel end.
  The kernels of small batches hide behind the launches. Every row of the *global* batch is looked
  at, though the rank computes its own pairs only.
- *Even routing* is not padded there. Kernels take the expert of a tile's first row for all of the
  tile, so that with fewer than 128 rows per expert only every second, fourth, ... expert is
  computed.
- *Power law*: the rows are those of the busiest rank in each of five draws, padded to 128. The
  seeds are not published. Predicted is the mean over draws from the same distribution.
- *Masked* (decode): a CUDA graph. The scales of the rows are brought into the kernels' order first,
  for the whole buffer, which has 128 slots for each expert of the model, whatever the rank hosts.
  The activation kernel starts blocks of one warp for every expert, with rows or without.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.compute.experts import CONTIGUOUS_ROWS, Gemm, activation_bytes, gemm_kernel, padded_rows
from replay.machine.kinds import Kind
from replay.machine.times import Time
from replay.validate.bench import Bench
from replay.validate.compute import GRAPH_GAP_US, SYSTEM
from replay.validate.table import Bound, Row, Table
from replay.work.layer import SCALE_BLOCK, ExpertShape, LayerWork, Precision
from replay.work.placement import Placement

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

# A launch from Python under the profiler, 39 us: ten of them take the 390 us below which no
# contiguous row comes (EP16 to EP256, 512 and 1024 tokens).
LAUNCH_PS = 39_000_000
SLOTS = 128  # rows of the masked buffer, per expert of the model
SCALE_BYTES = 4
# Blocks of the activation kernel per expert and 128 columns, for fewer than four experts and for
# more (SGLang, ``silu_and_mul_masked_post_quant_fwd``).
FEW_EXPERTS, ACTIVATION_BLOCKS = 4, (64, 32)
# Starting a block, 1 ns: each expert without rows adds 0.50 us (4 and 8 tokens at EP4 and EP8) or
# 0.56 us (16 and 32 tokens), and has 16 x 32 blocks.
BLOCK_PS = 1_000
SEED, NUM_DRAWS = 20260821, 10
SMALLEST_LOAD, LARGEST_LOAD = (
    1.0,
    0.8,
)  # of the power law (the collector's); the latter times the tokens
SCARCE_LOADS = (0.01, 2.0)  # the same where there are no more pairs than experts


def power_law(
    quantile: npt.NDArray[np.float64], alpha: float, low: float, high: float
) -> npt.NDArray[np.float64]:
    """Loads of experts with density proportional to ``load ** -alpha`` between two bounds.

    Parameters
    ----------
    quantile
        (expert,): share of the distribution below each load. Uniform random numbers make a draw.
    alpha
        Exponent, not 1.
    low, high
        Smallest and largest load.

    Returns
    -------
    (expert,) loads, from the inverse of the distribution function.
    """
    power = 1 - alpha
    bottom, top = low**power, high**power
    loads: npt.NDArray[np.float64] = ((top - bottom) * quantile + bottom) ** (1 / power)
    return loads


def power_law_rows(row: Row, rng: np.random.Generator) -> Ints:
    """Rows of the busiest rank's experts in one draw, without padding: (local expert,)."""
    tokens, experts, topk = row["global_tokens"], row["num_experts"], row["topk"]
    low, high = (SMALLEST_LOAD, LARGEST_LOAD * tokens) if tokens * topk > experts else SCARCE_LOADS
    alpha = float(row["distribution"].rsplit("_", maxsplit=1)[-1])
    load = power_law(rng.random(experts), alpha, low, high)
    rows = np.rint(load / load.sum() * tokens * topk).astype(np.int64)
    rows = np.minimum(rows, tokens).reshape(row["ep_size"], -1)  # a token has an expert once
    _even_out(rows, tokens * topk - int(rows.sum()), tokens)
    busiest: Ints = rows[rows.sum(axis=1).argmax()]
    return busiest


def _even_out(rows: Ints, missing: int, most: int) -> None:
    """Add `missing` rows one at a time, rank by rank, to the expert with the fewest rows.

    If it is negative, rows are taken from the expert with the most. An expert has at most `most`.
    """
    step = 1 if missing > 0 else -1
    while missing:
        for rank_rows in rows:
            expert = rank_rows.argmin() if step > 0 else rank_rows.argmax()
            if missing and 0 <= rank_rows[expert] + step <= most:
                rank_rows[expert] += step
                missing -= step


def unpadded_rows(pairs: int, experts: int) -> Ints:
    """Rows that are computed for each expert of even, unpadded rows: (expert,)."""
    rows_per_expert = pairs // experts
    if rows_per_expert >= CONTIGUOUS_ROWS:
        return np.full(experts, rows_per_expert, np.int64)
    expert_of_tile = np.arange(0, pairs, CONTIGUOUS_ROWS) // rows_per_expert
    return np.bincount(expert_of_tile, minlength=experts) * CONTIGUOUS_ROWS


def measured_rows(row: Row) -> list[Ints]:
    """Rows of the rank's experts, (local expert,), one array per run that a mean is taken over."""
    if row["distribution"] != "uniform":
        rng = np.random.default_rng(SEED)
        return [power_law_rows(row, rng) for _ in range(NUM_DRAWS)]
    experts = row["num_experts"] // row["ep_size"]
    pairs = row["global_tokens"] * row["topk"] // row["ep_size"]
    if row["layout"] == "contiguous":
        return [unpadded_rows(pairs, experts)]
    return [np.full(experts, pairs // experts) + (np.arange(experts) < pairs % experts)]


def local_work(rows: Ints, row: Row) -> LayerWork:
    """One rank's experts; `rows` is (local expert,)."""
    expert = np.repeat(np.arange(len(rows), dtype=np.int32), rows)
    return LayerWork(
        expert[:, None],
        np.zeros(len(expert), np.int32),
        Placement(np.zeros(len(rows), np.int32), 1, "one rank"),
        ExpertShape(row["hidden"], row["intermediate"]),
        Precision("fp8"),
    )


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds."""
    predicted = []
    for row in rows:
        is_graph = row["layout"] == "masked"
        gap = {"overheads__kernel_gap_stream_us": GRAPH_GAP_US} if is_graph else {}
        system = bench.system(SYSTEM, **gap)
        times = []
        for counts in measured_rows(row):
            work = local_work(counts, row)
            build = partial(_masked if is_graph else _contiguous, work, row)
            times.append(bench.time_us(system, 1, build))
        predicted.append(float(np.mean(times)))
    return predicted


def _scales(rows: Ints, width: int) -> Ints:
    """Bytes of reading and writing the scales of rows of some width."""
    return 2 * SCALE_BYTES * rows * width // SCALE_BLOCK


def _masked(work: LayerWork, row: Row, machine: Machine, start: Ints) -> Ints:
    """Add scales into order, GEMM-1, activation with quantisation, scales into order, GEMM-2."""
    hidden, intermediate = work.shape.hidden, work.shape.intermediate
    slots = np.array([SLOTS * row["num_experts"]])
    pool = machine.sms.pool("sm", machine.sms.count)
    at = machine.memory_kernel(Kind.PERMUTE, _scales(slots, hidden), start)
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    at = gemm_kernel(machine, work, first, pool, at, layout="masked")
    blocks_per_expert = ACTIVATION_BLOCKS[work.num_experts >= FEW_EXPERTS]
    blocks = work.num_experts * blocks_per_expert * intermediate // SCALE_BLOCK
    started = machine.delay(Kind.ACTIVATION, Time(blocks * BLOCK_PS), machine.kernel(at))
    at = machine.memory_kernel(Kind.ACTIVATION, activation_bytes(work, "masked"), at)
    at = machine.gather(started, machine.ranks, at)
    at = machine.memory_kernel(Kind.ACTIVATION, _scales(slots, intermediate), at)
    return gemm_kernel(machine, work, second, pool, at, layout="masked")


def _contiguous(work: LayerWork, row: Row, machine: Machine, start: Ints) -> Ints:
    """Add the ten kernels, each behind its launch.

    Counts to the GPU, two kernels of the scatter, scales into order, GEMM-1, activation,
    quantisation, scales into order, GEMM-2, gather.
    """
    hidden, intermediate = work.shape.hidden, work.shape.intermediate
    tokens, pairs = np.array([row["global_tokens"]]), np.array([work.num_tokens])
    rows = padded_rows(work, "contiguous")
    pool = machine.sms.pool("sm", machine.sms.count)
    launched = start

    def after(at: Ints) -> Ints:
        """Launch a kernel: it runs when the host has come to it and the one before has ended."""
        nonlocal launched
        launched = machine.host.work(Kind.LAUNCH, Time(LAUNCH_PS), launched)
        return machine.gather(launched, machine.ranks, at)

    row_bytes = work.dispatch_row_bytes
    at = machine.memory_kernel(
        Kind.PERMUTE, SCALE_BYTES * np.array([work.num_experts]), after(start)
    )
    at = machine.memory_kernel(Kind.PERMUTE, SCALE_BYTES * rows, after(at))
    at = machine.memory_kernel(Kind.PERMUTE, (tokens + pairs) * row_bytes, after(at))
    at = machine.memory_kernel(Kind.PERMUTE, _scales(rows, hidden), after(at))
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    at = gemm_kernel(machine, work, first, pool, after(at), layout="contiguous")
    # Gate and up projections in, their product out in BF16; then quantised.
    at = machine.memory_kernel(Kind.ACTIVATION, rows * 3 * intermediate * 2, after(at))
    quantised = 3 * intermediate + SCALE_BYTES * intermediate // SCALE_BLOCK
    at = machine.memory_kernel(Kind.ACTIVATION, rows * quantised, after(at))
    at = machine.memory_kernel(Kind.ACTIVATION, _scales(rows, intermediate), after(at))
    at = gemm_kernel(machine, work, second, pool, after(at), layout="contiguous")
    return machine.memory_kernel(Kind.UNPERMUTE, (tokens + pairs) * 2 * hidden, after(at))


TABLE = Table(
    name="moe_deepgemm",
    title="Expert computation of one rank (SGLang, DeepGEMM), even and skewed routing, H100",
    unit="us",
    size="global_tokens",
    bounds=(
        Bound(
            "contiguous, even",
            6,
            lambda row: row["layout"] == "contiguous" and row["distribution"] == "uniform",
        ),
        Bound("contiguous, power law", 10, lambda row: row["distribution"] != "uniform"),
        Bound("masked", 6, lambda row: row["layout"] == "masked"),
    ),
    predict=predict,
)
