"""The kernels beside DeepEP's own that make up a layer, as serving engines launch them.

The lists ``sglang``, ``vllm`` and ``deepgemm`` of `replay.model.work.kernel_lists` have one row per
kernel, in the order of its launch, with what it reads and writes: ``"pairs row"`` is one dispatched
row for each (token, expert) of the GPU. `StackSizes` says what the words stand for.
The GEMMs and DeepEP's kernels stand between the lists. LAYER.md, beside this file, prints the list
with bytes and times for one layer and compares it with a published profile.

Source: sgl-project/sglang, ``layers/moe/token_dispatcher/deepep.py`` (cast, dispatch),
``layers/moe/moe_runner/deep_gemm.py`` and ``layers/moe/ep_moe/kernels.py`` (everything between).
vllm-project/vllm, ``layers/fused_moe/deepep_ht_prepare_finalize.py`` (cast, global expert ids, copy
of the result), ``deep_gemm_moe.py`` and ``deep_gemm_utils.py``. Both on Hopper, where DeepGEMM
takes FP32 scales by column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.compute.casts import cast_received
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.row_tiles import padded_rows
from replay.model.machine.host import Operation
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.model.work.kernel_lists import Engine, EngineKernel, load
from replay.model.work.precision import SCALE_BLOCK

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Counts, Ints, Pools, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.model.work.precision import Precision

BF16_BYTES, FLOAT_BYTES, INT_BYTES, LONG_BYTES = 2, 4, 4, 8


@dataclass(frozen=True)
class StackSizes:
    """Values of the words of the lists on each GPU.

    Attributes
    ----------
    tokens, copies, pairs, rows, experts
        (rank,): own tokens; tokens received, once each; (token, expert) pairs of the GPU's
        experts; rows of the padded layout; experts.
    hidden, row, operand, result, ids, ids32, weights, places, places32
        Bytes of a token: in BF16; as dispatched and as GEMM-1 reads it, scales included; of the
        experts' output; of its
        expert ids of eight and of four bytes; of its weights; of its rows' places in the layout,
        likewise.
    scales, gate_up, product, quantised, product_scales, place, weight
        Bytes of a row of the layout: its scales; what GEMM-1 writes; what the activation makes of
        it in BF16; the same as GEMM-2 reads it, scales included; those scales; an expert's number;
        its weight.
    """

    tokens: Counts
    copies: Ints
    pairs: Ints
    rows: Counts
    experts: Ints
    hidden: int
    row: int
    operand: int
    result: int
    ids: int
    ids32: int
    weights: int
    places: int
    places32: int
    scales: int
    gate_up: int
    product: int
    quantised: int
    product_scales: int
    place: int = INT_BYTES
    weight: int = FLOAT_BYTES

    @classmethod
    def of(cls, work: LayerWork) -> StackSizes:
        """Count them for a layer."""
        shape, topk, value = work.shape, work.expert_ids.shape[1], work.precision.operand_bytes
        product_scales = FLOAT_BYTES * -(-shape.intermediate // SCALE_BLOCK)
        has_scales = work.precision.gemm == "fp8"
        return cls(
            tokens=np.diff(work.tokens_of_rank),
            copies=work.matrix("copies").sum(axis=0),
            pairs=work.matrix("pairs").sum(axis=0),
            rows=padded_rows(work, "contiguous"),
            experts=np.array([len(experts) for experts in work.experts_of_rank], np.int64),
            hidden=BF16_BYTES * shape.hidden,
            row=work.dispatch_row_bytes,
            operand=work.operand_row_bytes,
            result=work.combine_row_bytes,
            ids=LONG_BYTES * topk,
            ids32=INT_BYTES * topk,
            weights=FLOAT_BYTES * topk,
            places=LONG_BYTES * topk,
            places32=INT_BYTES * topk,
            scales=FLOAT_BYTES * -(-shape.hidden // SCALE_BLOCK),
            gate_up=work.precision.result_bytes * shape.gemm1_columns,
            product=BF16_BYTES * shape.intermediate,
            quantised=value * shape.intermediate + has_scales * product_scales,
            product_scales=product_scales,
        )

    def nbytes(self, what: tuple[str, ...]) -> Bytes:
        """(rank,): bytes of all that is named."""
        total = np.zeros_like(self.tokens)
        for words in what:
            of, each = words.split()
            total = total + getattr(self, of) * getattr(self, each)
        return total


class StackKernel(NamedTuple):
    """One kernel of a serving engine, which its list has."""

    of: EngineKernel

    @property
    def name(self) -> str:
        """Name by its stack."""
        return self.of.name

    @property
    def kind(self) -> Kind:
        """Kind that it counts as."""
        return Kind[self.of.kind.upper()]

    @property
    def moves(self) -> str:
        """Bytes read and written, as a formula in the words of `StackSizes`."""
        reads, writes = (
            " + ".join(words.replace(" ", " x ") for words in of) or "nothing" for of in (self.of.reads, self.of.writes)
        )
        return f"{reads} in, {writes} out"

    def is_there(self, types: Precision) -> bool:
        """Tell whether a layer of these number types has it."""
        return not self.of.fp8 or getattr(types, self.of.fp8) == "fp8"

    def nbytes(self, sizes: StackSizes) -> Bytes:
        """(rank,): bytes read plus bytes written."""
        return sizes.nbytes(self.of.reads + self.of.writes)

    def traffic(self, sizes: StackSizes) -> Ints | MemoryTraffic:
        """(rank,): what it reads and writes; activations stream both ways."""
        if self.kind == Kind.ACTIVATION:
            return self.nbytes(sizes)
        rows = getattr(sizes, self.of.scattered) if self.of.scattered else 0
        return MemoryTraffic(sizes.nbytes(self.of.reads), sizes.nbytes(self.of.writes), rows)


def _around(name: str) -> Engine:
    found = load(name).deepep
    assert found is not None, name
    return found


SGLANG, VLLM, DEEPGEMM = map(_around, ("sglang", "vllm", "deepgemm"))
(SWIGLU,) = VLLM.between
COMPARISON = "deepgemm"
STACKS = {"sglang": SGLANG, "vllm": VLLM, COMPARISON: DEEPGEMM}


def no_gradients(name: str, work: LayerWork) -> str:
    """Say why a stack does not run a layer: DeepGEMM's comparison has no gradients; else empty."""
    if name != COMPARISON or not work.is_backward:
        return ""
    return f"stack={COMPARISON} is DeepGEMM's own comparison, which has no backward pass"


def run(
    engine: Engine,
    kernels: tuple[EngineKernel, ...],
    work: LayerWork,
    machine: Machine,
    after: Tasks,
) -> Tasks:
    """Run kernels of an engine one after the other: (rank,) tasks of the last one's end."""
    sizes = StackSizes.of(work)
    for kernel in map(StackKernel, kernels):
        if kernel.is_there(work.precision):
            traffic = kernel.traffic(sizes)
            what = Operation(kernel.name, 1, kernel.moves, engine.source)
            after = machine.memory_kernel(kernel.kind, traffic, after, what)
    return after


def experts(stack: Engine, work: LayerWork, machine: Machine, pool: Pools, after: Tasks) -> Tasks:
    """Run everything from the dispatch to the combine: (rank,) tasks of its end."""
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    operands = cast_received(machine, work, StackSizes.of(work).copies, after)
    ready = run(stack, stack.before_experts, work, machine, operands)
    done = gemm_kernel(machine, work, first, pool, ready, layout=stack.layout).end
    done = run(stack, stack.between, work, machine, done)
    done = gemm_kernel(machine, work, second, pool, done, layout=stack.layout).end
    return run(stack, stack.after_experts, work, machine, done)
