"""One rank's expert computation as SGLang runs it on DeepGEMM, under even and skewed routing.

The measured setting is the collector's of ai-dynamo/aiconfigurator
(``collector/sglang/collect_wideep_deepep_moe.py``):

- *Contiguous* (prefill): kernels are launched one by one from Python under a profiler that records
  stacks. The time runs from before the first launch until the host has seen the last kernel end.
  The kernels of small batches hide behind the launches. Every row of the *global* batch is looked
  at, though the rank computes its own pairs only.
- *Even routing* is not padded there. Kernels take the expert of a tile's first row for all of the
  tile, so that with fewer than 128 rows per expert only every second, fourth, ... expert is
  computed.
- *Power law*: the rows are those of the busiest rank in each of five draws, padded to 128
  (`replay.studies.validate.skew`).
- *Masked* (decode): a CUDA graph. The scales of the rows are brought into the kernels' order first,
  for the whole buffer, which has 128 slots for each expert of the model, whatever the rank hosts.
  The activation kernel starts blocks of one warp for every expert, with rows or without.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.masked_gemms import masked_kernels
from replay.model.compute.row_tiles import CONTIGUOUS_ROWS
from replay.model.machine.kinds import Kind
from replay.model.machine.times import Time
from replay.model.work.layer import ExpertShape
from replay.schemes.ep.deepep import stack
from replay.studies.validate.bench import Bench, one_rank
from replay.studies.validate.compute import SYSTEM
from replay.studies.validate.skew import draws
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.model.work.kernel_lists import EngineKernel
    from replay.model.work.layer import LayerWork

# A launch from Python under the profiler, 39 us: ten of them take the 390 us below which no
# contiguous row comes (EP16 to EP256, 512 and 1024 tokens).
LAUNCH_PS = 39_000_000
SLOTS = 128  # rows of the masked buffer, per expert of the model


def unpadded_rows(pairs: int, experts: int) -> Ints:
    """Rows that are computed for each expert of even, unpadded rows: (expert,)."""
    rows_per_expert = pairs // experts
    if rows_per_expert >= CONTIGUOUS_ROWS:
        return np.full(experts, rows_per_expert, np.int64)
    expert_of_tile = np.arange(0, pairs, CONTIGUOUS_ROWS) // rows_per_expert
    return np.bincount(expert_of_tile, minlength=experts) * CONTIGUOUS_ROWS


def measured_rows(row: MeasurementRow) -> list[Ints]:
    """Rows of the rank's experts, (local expert,), one array per run that a mean is taken over."""
    if row["distribution"] != "uniform":
        return draws(row)
    experts = row["num_experts"] // row["ep_size"]
    pairs = row["global_tokens"] * row["topk"] // row["ep_size"]
    if row["layout"] == "contiguous":
        return [unpadded_rows(pairs, experts)]
    return [np.full(experts, pairs // experts) + (np.arange(experts) < pairs % experts)]


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    is_graph = row["layout"] == "masked"
    system = bench.in_graphs(SYSTEM) if is_graph else bench.system(SYSTEM)
    build = _masked_kernels if is_graph else _contiguous
    shape = ExpertShape(row["hidden"], row["intermediate"])
    works = (one_rank(rows, shape, "fp8") for rows in measured_rows(row))
    return float(np.mean([bench.time_us(system, 1, partial(build, work, row)) for work in works]))


def _masked_kernels(work: LayerWork, row: MeasurementRow, machine: Machine, start: Ints) -> Ints:
    """Add scales into order, GEMM-1, activation with quantisation, scales into order, GEMM-2."""
    slots = np.array([SLOTS * row["num_experts"]])
    pool = machine.sms.pool("sm", machine.sms.count)
    return masked_kernels(machine, work, pool, start, slots, scales_in_order=False)


def _contiguous(work: LayerWork, row: MeasurementRow, machine: Machine, start: Ints) -> Ints:
    """Add SGLang's kernels from its scatter to its gather, each behind its launch."""
    pool = machine.sms.pool("sm", machine.sms.count)
    # Scatter and gather pass over every token of the global batch.
    sizes = replace(stack.StackSizes.of(work), copies=np.array([row["global_tokens"]]))
    launched = at = start

    def after(at: Ints) -> Ints:
        """Launch a kernel: it runs when the host has come to it and the one before has ended."""
        nonlocal launched
        launched = machine.host.work(Kind.LAUNCH, Time(LAUNCH_PS), launched)
        return machine.gather(launched, machine.ranks, at)

    def run(kernels: tuple[EngineKernel, ...], at: Ints) -> Ints:
        for kernel in map(stack.StackKernel, kernels):
            at = machine.memory_kernel(kernel.kind, kernel.traffic(sizes), after(at))
        return at

    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    at = run(stack.SGLANG.before_experts, at)
    at = gemm_kernel(machine, work, first, pool, after(at), layout=stack.SGLANG.layout).end
    at = run(stack.SGLANG.between, at)
    at = gemm_kernel(machine, work, second, pool, after(at), layout=stack.SGLANG.layout).end
    return run(stack.SGLANG.after_experts, at)


TABLE = MeasurementTable(
    name="moe_deepgemm",
    title="Expert computation of one rank (SGLang, DeepGEMM), even and skewed routing, H100",
    kind=WorkKind.EXPERTS,
    size="global_tokens",
    bounds=(
        Bound("contiguous, even", 6, has(layout="contiguous", distribution="uniform")),
        Bound("contiguous, power law", 10, lambda row: row["distribution"] != "uniform"),
        Bound("masked", 6, has(layout="masked")),
    ),
    predict=predict,
)
