"""Experts of a GPU under Megatron-LM, behind whichever dispatcher.

``te``: TransformerEngine's grouped linear layer, a cuBLAS call for each expert that has rows
(`replay.model.compute.calls`). A kernel for each expert makes FP8 operands, since none scales
blocks of a row for several tensors. Before the experts a kernel pads the rows of each to a multiple
of 16; one behind them takes the padding away. What up to 15 more rows of an expert cost the kernels
in between is left out, and so are casts of weights, which are the optimiser's.

``cutlass``: one grouped GEMM of the grouped_gemm library, BF16 alone, which Megatron-LM has had
before. Seven small copies bring its arguments to the GPU before each.

FlashMoE (arXiv 2506.04667, table 1) counts 85 GPU operations of a layer on two GPUs with 32 experts
each under ``cutlass`` and 261 under ``te``; here they are 39 and 87. Ours begins behind the gate and
has fused permutes; gate, capacity, PyTorch's permutes and counts are most of the difference under
``cutlass``. Under ``te`` two operations beside each GEMM stay unexplained. grouped_gemm takes
CUTLASS's kernel where it is built for capability 8.0, and else calls cuBLAS for each expert, as
``te`` does.

Sources: Megatron-LM ``megatron/core/transformer/moe/experts.py`` (``TEGroupedMLP``; ``GroupedMLP``
of earlier versions); TransformerEngine ``pytorch/module/grouped_linear.py``, ``fp8_padding.py``
and ``pytorch/csrc/extensions/cast.cpp`` (``multi_tensor_quantize_impl``); grouped_gemm
``csrc/grouped_gemm.cu`` (``MakeArguments``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.calls import STREAMS, gradient_calls, per_expert_kernels
from replay.model.compute.experts import in_turn
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.list_rows import ListedPart, Software
from replay.model.compute.operands import WGMMA_TMA, OperandPath
from replay.model.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Pools, Tasks
    from replay.model.compute.gemm import Gemm
    from replay.model.compute.weight_gradients import Projection
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

FP8_ALIGNMENT = 16  # rows of an expert (TransformerEngine ``fp8_padding.py``)
PROB_BYTES = 4  # FP32
# GroupedGemmKernelNN of grouped_gemm: CUTLASS's kernel for SM80 on every GPU, steps of 32 values,
# four warps. Built for another capability than 8.0, the library calls cuBLAS for each expert
# instead; so it does for transposed weights, which a backward pass has.
CUTLASS_SM80 = OperandPath("mma.sync", "cp.async", "cp.async", step_bytes=64)
ARGUMENTS = Operation("arguments", 7, source="grouped_gemm: leading dimensions and pointers of three matrices, sizes")
LISTED = Software("megatron", (("dispatcher", "alltoall"), ("fp8", "blockwise")))


@dataclass(frozen=True)
class ExpertOptions(Options):
    """Options of the experts; to be combined with the options of a dispatcher."""

    experts: str = option(
        "te",
        "Kernels of the experts: a cuBLAS call for each (te), or one grouped GEMM of all (cutlass, "
        "of earlier versions, for BF16).",
        "Megatron-LM experts.py; TransformerEngine grouped_linear.py",
        choices=("te", "cutlass"),
    )
    streams: int = option(
        STREAMS,
        "Streams on which experts=te runs its calls.",
        "TransformerEngine common/util/multi_stream.h",
        least=1,
    )


def refusal(work: LayerWork, options: ExpertOptions) -> str:
    """Reason why these experts, or any behind Megatron-LM's dispatchers, cannot run a layer; or empty."""
    types = work.precision
    if options.experts == "cutlass" and types.gemm != "bf16":
        return f"grouped_gemm (experts=cutlass) multiplies bf16, not {types.gemm}"
    token = "fp32" if types.gemm == "fp32" else "bf16"
    if types.dispatch != token:
        return f"its rows travel in the type of the tokens, {token}, not {types.dispatch}"
    return ""


def run_experts(machine: Machine, work: LayerWork, options: ExpertOptions, after: Tasks) -> Tasks:
    """Run the experts on rows that are sorted by expert: (rank,) tasks at their end."""
    pool = machine.sms.for_kernels()
    if options.experts == "cutlass":
        return _multiply_grouped(machine, work, pool, after)
    pads = work.precision.gemm == "fp8"
    if pads:
        after = _pad(machine, work, work.token_row_bytes, after)
    done = per_expert_kernels(machine, work, pool, after, streams=options.streams, quantises=True)
    return _unpad(machine, work, done) if pads else done


def run_weight_gradients(machine: Machine, work: LayerWork, options: ExpertOptions, after: Tasks) -> Tasks:
    """Run the experts' weight gradients that a pass put off: (rank,) tasks at their end."""
    pool = machine.sms.for_kernels()
    for projection in (DOWN, UP):
        if options.experts == "cutlass":
            after = weight_gradient_kernel(machine, work, projection, pool, _copy(machine, after))
        else:
            after = gradient_calls(machine, work, projection, pool, after, streams=options.streams)
    return after


def _multiply_grouped(machine: Machine, work: LayerWork, pool: Pools, after: Tasks) -> Ints:
    """Grouped GEMMs whose arguments are copied first."""

    def multiply(gemm: Gemm, begin: Tasks) -> Ints:
        path = WGMMA_TMA if work.is_backward else CUTLASS_SM80
        return gemm_kernel(machine, work, gemm, pool, _copy(machine, begin), path=path).end

    def gradient(projection: Projection, begin: Tasks) -> Ints:
        return weight_gradient_kernel(machine, work, projection, pool, _copy(machine, begin))

    return in_turn(machine, work, after, multiply, gradient)


def _copy(machine: Machine, after: Tasks) -> Tasks:
    """Copy the arguments of a grouped GEMM: (rank,) tasks."""
    return machine.small_kernels(Kind.LAYOUT, 0, after, ARGUMENTS)


def _padding(work: LayerWork, row_bytes: int) -> tuple[Ints, Ints]:
    """(rank,): bytes of the rows of a GPU's experts, and of the rows padded."""
    rows = work.rows_of_expert
    padded = -(-rows // FP8_ALIGNMENT) * FP8_ALIGNMENT
    own, all_rows = (
        np.bincount(work.placement.expert_rank, of, work.num_ranks).astype(np.int64) for of in (rows, padded)
    )
    return own * row_bytes, all_rows * row_bytes


def _pad(machine: Machine, work: LayerWork, row_bytes: int, after: Tasks) -> Tasks:
    """Pad the rows of each expert, forward its gate weights too: (rank,) tasks."""
    part = ListedPart(machine, work, LISTED, "experts")
    moved = MemoryTraffic(*_padding(work, row_bytes))
    if work.is_backward:
        return part.launch("gradients padded", after, moved, Kind.PERMUTE)
    done = part.launch("rows padded", after, moved, Kind.PERMUTE)
    return part.launch("gate weights padded", done, MemoryTraffic(*_padding(work, PROB_BYTES)), Kind.PERMUTE)


def _unpad(machine: Machine, work: LayerWork, after: Tasks) -> Tasks:
    """Take the padding from each expert's results: (rank,) tasks; the reverse of `_pad`."""
    part = ListedPart(machine, work, LISTED, "experts")
    own, padded = _padding(work, work.result_row_bytes)
    moved = MemoryTraffic(padded, own)
    if not work.is_backward:
        return part.launch("padding dropped", after, moved, Kind.UNPERMUTE)
    done = part.launch("padding of gradients dropped", after, moved, Kind.UNPERMUTE)
    own, padded = _padding(work, PROB_BYTES)
    moved = MemoryTraffic(padded, own)
    return part.launch("padding of gate weights' gradients dropped", done, moved, Kind.UNPERMUTE)
