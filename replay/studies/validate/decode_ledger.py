"""Decoding under one CUDA graph, kernel by kernel and as a step: Megatron-LM and vLLM, 4 x GB200.

Kernels are those that `moereplay infer` has, with what a profiler counts as kernel of the gap before
them and, where events timed them, what these add. MoE kernels are timed within a layer, where early
GPUs wait: `nvls` under Megatron-LM, which gathers rows, ids and weights by one kernel and sums in
FP32, and `nccl-allgather` under vLLM. A step is an iteration of `infer` under the engine's list, by
its GPUs alone. Positions of a request are assumed: half of the 1,024 tokens that it generates, and
a short prompt. No prediction is fitted to the table, but for :data:`EVENTS_US`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from pydantic import JsonValue

from hwmodel.units import PS_PER_US
from replay.experiments.serve.iteration import Load
from replay.experiments.serve.setup import ServingSetup
from replay.experiments.serve.spec import InferSpec
from replay.model.compute import flash
from replay.model.compute.dense_kernels import BF16
from replay.model.machine.kinds import COMBINE, DISPATCH, Kind
from replay.model.work.layer import ExpertShape, LayerWork
from replay.model.work.precision import Precision
from replay.schemes.ep.nccl_allgather import NcclAllGather
from replay.schemes.ep.nvls import Nvls
from replay.studies.validate.bench import uniform_work
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind
from tracegen.models import load

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine
    from replay.studies.validate.bench import Bench
    from tracegen import ModelShape

OPTIONS: dict[str, JsonValue] = {"gathers_at_once": True, "num_sms": 64, "block_rows": 1}
"""A thread block for each of a GPU's 64 tokens: as many as tokens, 128 at most (Megatron-LM
29b4491927, variable_collectives.py:609)."""

SCHEMES = {
    "megatron": Nvls().with_options(OPTIONS),
    "vllm": NcclAllGather(),
}
SUMS = {"megatron": Precision("bf16", combine="fp32"), "vllm": Precision("bf16")}
"""Number types of a layer under each engine."""

STACKS = {
    ("megatron", "step"): "megatron-inference:one_table=true,fused_activation=true,fused_choice=true",
    ("megatron", "later"): "megatron-inference:one_table=true,fused_activation=true,fused_choice=true,"
    "fused_qk_norms=true,fused_residuals=2,bf16_sums=true",
    ("vllm", "step"): "vllm",
}
"""What launched a step, by engine and trace. Norms and residuals were not fused yet in the first one, as its kernels
by name say; the later one has all fusions of its pull requests. FlashAttention-2 ran only where events timed kernels:
the first trace is older than that choice, and the later one has TensorRT-LLM's kernel."""

IDLE_US = 0.5
"""Of the gap before a kernel, what the ledger's profile counts as nobody's; the rest is starts and ends of kernels."""

EVENTS_US = ((10.2 - 6.49) + (11.4 - 9.33)) / 2
"""Time that two events in a graph add to the kernel between them, beside two events in a row: 2.9 us.

The ledger times both collectives by events (3.7 and 2.1 us more) and in a clean trace, and says that
events made all that they timed longer. What events say of these two counts in no statistic.
"""

IN_A_ROW: Mapping[str, tuple[Kind, ...]] = {
    "all-gather": dataclasses.astuple(DISPATCH),
    "index maps": (Kind.LAYOUT,),
    "permute": (Kind.PERMUTE,),
    "up": (Kind.GEMM1,),
    "activation": (Kind.ACTIVATION,),
    "down": (Kind.GEMM2,),
    "sum of a token's rows": (Kind.UNPERMUTE,),
    "reduce-scatter": dataclasses.astuple(COMBINE),
}
"""Kernels of an MoE layer in their order, by the kinds of their tasks."""


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    if row["kernel"] == "whole step":
        return _step_us(bench, row)
    overheads = bench.system(row["system"]).overheads
    gap_us = overheads.kernel_gap_ps("graph") / PS_PER_US
    if row["kernel"] == "empty kernel":  # its start, its end and the gap
        return gap_us
    counted_us = max(gap_us - IDLE_US, 0)
    system = bench.system(row["system"], overheads__kernel_gap_stream_us=counted_us)
    shape = load(row["model"])
    beside_us = EVENTS_US if row["trace"] == "events" else 0.0
    if row["kernel"] in BESIDE:
        return beside_us + counted_us + BESIDE[row["kernel"]](system, shape, row) / PS_PER_US
    of_layer = ("engine", "ep_size", "tokens_per_rank", "model", "system")
    key = ("decode_ledger", *(row[column] for column in of_layer))
    layer = bench.once(key, lambda: _in_a_layer(bench, system, row, _work(shape, row)))
    return beside_us + layer[row["kernel"]]


def _work(shape: ModelShape, row: MeasurementRow) -> LayerWork:
    experts, gpus = shape.num_experts, row["ep_size"]
    drawn = uniform_work(gpus, row["tokens_per_rank"], experts, shape.topk, shape.hidden, "bf16")
    expert = ExpertShape(shape.hidden, shape.moe_intermediate, shape.gated)
    return drawn.with_changes(shape=expert, precision=SUMS[row["engine"]])


def _in_a_layer(bench: Bench, system: System, row: MeasurementRow, work: LayerWork) -> dict[str, float]:
    """Time of each kernel of a layer, from the end of the one before; mean over the GPUs."""

    def build(machine: Machine, start: Ints) -> Ints:
        ends: Ints = SCHEMES[row["engine"]].build(work, machine, start)
        return ends

    timeline = bench.timeline(system, work.num_ranks, build)
    graph, before = timeline.graph, np.zeros(work.num_ranks)
    found = {}
    for name, kinds in IN_A_ROW.items():
        own = np.isin(graph.kind, kinds)
        ends = np.zeros(work.num_ranks)
        np.maximum.at(ends, graph.rank[own], timeline.visible_ps[own])
        found[name] = float((ends - before).mean()) / PS_PER_US
        before = ends
    return found


# ---- beside the MoE layer ------------------------------------------------------------------------


def _product(system: System, row: MeasurementRow, n: int, k: int) -> int:
    sms = system.sm.num_sms
    return int(system.compute.gemm_time_ps(row["tokens_per_rank"], n, k, "bf16", sms))


def _heads(shape: ModelShape) -> tuple[int, int, int]:
    """Heads of queries, of keys and values, and their width."""
    heads = shape.num_heads or 0
    return heads, shape.num_kv_heads or heads, shape.head_dim or shape.hidden // heads


def _projections(system: System, shape: ModelShape, row: MeasurementRow) -> int:
    """The module, a norm and the product behind it.

    Taken for what the timer went around, which is not public.
    ``InferenceLayerNormColumnParallelLinear.forward`` launches both (Megatron-LM 29b4491927,
    tensor_parallel/inference_layers.py). The option by which the layer before norms was still off.
    """
    heads, kv_heads, width = _heads(shape)
    overheads, moved = system.overheads, shape.hidden * row["tokens_per_rank"] * BF16
    norm = overheads.small_kernel_ps + system.hbm.elementwise_ps(moved, moved) + overheads.kernel_gap_ps("graph")
    return int(norm) + _product(system, row, (heads + 2 * kv_heads) * width, shape.hidden)


def _output(system: System, shape: ModelShape, row: MeasurementRow) -> int:
    heads, _, width = _heads(shape)
    return _product(system, row, shape.hidden, heads * width)


def _choice(system: System, shape: ModelShape, row: MeasurementRow) -> int:
    """Softmax and choice by one kernel: scores in FP32, of what it chose weights in FP32 and ids of 8 bytes."""
    scores, chosen = 4 * row["tokens_per_rank"] * shape.num_experts, 12 * row["tokens_per_rank"] * shape.topk
    return int(system.overheads.small_kernel_ps + system.hbm.elementwise_ps(scores, chosen))


def _attention(system: System, shape: ModelShape, row: MeasurementRow) -> int:
    """FlashAttention-2 (``attention=flash-2``), on which this engine's kernels were timed by events."""
    heads, kv_heads, width = _heads(shape)
    tokens, positions = row["tokens_per_rank"], row["tokens_per_rank"] * row["positions"]
    values = (tokens * heads + positions * kv_heads) * 2 * width
    blocks, keys, nbytes = tokens * kv_heads, positions * kv_heads, values * BF16
    # Requests times heads of keys fill the SMs, so that keys are not split: the ledger has one kernel.
    return int(flash.decode_ps(system, blocks, keys, heads // kv_heads, width, nbytes, is_split=False))


BESIDE: Mapping[str, Callable[[System, ModelShape, MeasurementRow], int]] = {
    "queries keys values": _projections,
    "attention": _attention,
    "output": _output,
    "choice of experts": _choice,
}


def _step_us(bench: Bench, row: MeasurementRow) -> float:
    """An iteration of `infer` in which all GPUs decode as many requests."""
    tokens, positions = row["tokens_per_rank"], row["positions"]
    scheme = SCHEMES[row["engine"]]
    spec = InferSpec(
        model=row["model"],
        system=row["system"],
        overrides=bench.overrides,
        scheme=scheme.name,
        options=dataclasses.asdict(scheme.options),
        decode_gpus=row["ep_size"],
        requests=tokens,
        prompt=positions,
        output=1,
        sample_layers=1,
        precision="bf16",
        stack=STACKS[row["engine"], row["trace"]],
        engine_host_us=0.0,
        engine_overlap=True,
    )
    times = ServingSetup.of(spec).times["decode"]
    load = Load(tokens, 1, tokens * positions)
    return times.time_ps([load] * times.num_workers) / PS_PER_US


def _exchanges(row: MeasurementRow) -> bool:
    return row["kernel"] in ("all-gather", "reduce-scatter")


def _says_events(rows: Sequence[MeasurementRow]) -> list[bool]:
    """Rows that :data:`EVENTS_US` is from: (row,)."""
    return [_exchanges(row) and row["trace"] == "events" for row in rows]


def _kind(row: MeasurementRow) -> WorkKind:
    if _exchanges(row):
        return WorkKind.COLLECTIVES
    if row["kernel"] in ("up", "down", "choice of experts", "index maps", "sum of a token's rows"):
        return WorkKind.EXPERTS
    return WorkKind.STEPS if row["kernel"] in ("whole step", "empty kernel") else WorkKind.PRODUCTS


def _is(*kernels: str) -> Callable[[MeasurementRow], bool]:
    return lambda row: row["kernel"] in kernels


TABLE = MeasurementTable(
    name="decode_ledger",
    title="Decoding of Qwen3-30B under a CUDA graph, Megatron-LM and vLLM, 4 x GB200",
    kind=_kind,
    size="tokens_per_rank",
    systems=("gb200-nvl72",),
    bounds=(
        Bound("in the switch", 25, lambda row: _exchanges(row) and row["engine"] == "megatron"),
        Bound("NCCL", 40, lambda row: _exchanges(row) and row["engine"] == "vllm"),
        Bound("experts", 10, _is("up", "down")),
        Bound("dense products", 15, _is("queries keys values", "output")),
        Bound("attention", 10, _is("attention")),
        Bound("small kernels", 20, _is("choice of experts", "index maps", "sum of a token's rows", "empty kernel")),
        Bound("whole step", 10, _is("whole step")),
    ),
    predict=predict,
    is_outlier=_says_events,
    schemes=("nvls", "nccl-allgather"),
)
