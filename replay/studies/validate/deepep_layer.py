"""The kernels of a DeepEP layer off the wire, one by one, beside a published profile.

The profile is DeepSeek's own of its training (deepseek-ai/profile-data, train.json: H800, 64 GPUs
of eight nodes, 4096 tokens per GPU, FP8, two micro-batches, 20 SMs for communication). It says
itself that its routing is perfectly balanced, so that every expert has 8192 rows. Its kernels are
DeepSeek's own; those of the serving engines do the same work in the forward pass.

``python -m replay.studies.validate.deepep_layer`` prints the tables of
``schemes/ep/deepep/LAYER.md``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.model.compute.gemm import Gemm
from replay.model.compute.gemm_tiles import gemm_kernel
from replay.model.compute.weight_gradients import DOWN, UP, weight_gradient_kernel
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import Placement
from replay.schemes.ep.deepep import notify, stack
from replay.studies.validate.bench import Bench, Build, one_rank

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.compute.weight_gradients import Projection
    from replay.model.machine.machine import Machine
    from replay.model.work.kernel_lists import Engine, EngineKernel

GPUS, EXPERTS, TOPK, TOKENS = 64, 256, 8, 4096
GEMM_SMS = 112  # the other 20 communicate for the other micro-batch
SHAPE = ExpertShape(hidden=7168, intermediate=2048)
# A token has eight experts in four nodes, two in each of them among 32 on eight GPUs, so that the
# two are on one GPU in 3 of 31 cases.
COPIES_PER_TOKEN = 4 * (2 - 3 / 31)

PUBLISHED = {"ep_scatter_2": "180", "ep_gather": "295-340"}  # of kernels in the lists, us

ENGINES = ("sglang", "vllm")  # stacks whose layers give results


@dataclass(frozen=True)
class KernelLine:
    """One kernel.

    Attributes
    ----------
    name, formula
        What it is called; what it reads and writes, in the words of the list.
    mbytes, predicted_us
        Megabytes that it reads and writes; microseconds from its start to its end.
    published_us
        What the profile shows; empty if it has no such kernel.
    """

    name: str
    formula: str
    mbytes: float
    predicted_us: float
    published_us: str = ""


def _sizes(work: LayerWork) -> stack.StackSizes:
    """Numbers of one of the 64 GPUs, around its experts' rows."""
    tokens = np.array([TOKENS])
    return replace(
        stack.StackSizes.of(work),
        tokens=tokens,
        copies=np.rint(tokens * COPIES_PER_TOKEN).astype(np.int64),
        ids=stack.LONG_BYTES * TOPK,
        ids32=stack.INT_BYTES * TOPK,
        weights=stack.FLOAT_BYTES * TOPK,
        places=stack.LONG_BYTES * TOPK,
        places32=stack.INT_BYTES * TOPK,
    )


class Profile:
    """One GPU of the profile's system, and the times of single kernels on it."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._system: System = bench.system("hgx-h800")

    def kernel_us(self, build: Build) -> float:
        """Time of one kernel, without the gap before it."""
        gap = self._system.overheads.kernel_gap_ps() / PS_PER_US
        return self._bench.time_us(self._system, 1, build) - gap

    def lines(self, kernels: tuple[EngineKernel, ...], sizes: stack.StackSizes) -> list[KernelLine]:
        """Lines of the kernels of an engine's list."""
        lines = []
        for kernel in map(stack.StackKernel, kernels):
            nbytes = kernel.nbytes(sizes)

            def build(machine: Machine, start: Ints, kernel: stack.StackKernel = kernel) -> Ints:
                return machine.memory_kernel(kernel.kind, kernel.traffic(sizes), start)

            published = PUBLISHED.get(kernel.name, "")
            lines.append(KernelLine(kernel.name, kernel.moves, nbytes[0] / 1e6, self.kernel_us(build), published))
        return lines

    def gemm(self, name: str, work: LayerWork, gemm: Gemm, published: str, layout: str = "contiguous") -> KernelLine:
        """Line of one grouped GEMM."""

        def build(machine: Machine, start: Ints) -> Ints:
            pool = machine.sms.pool("sm", GEMM_SMS)
            return gemm_kernel(machine, work, gemm, pool, start, layout=layout).end

        rows = int(work.rows_of_expert.sum())
        # Operands in one byte a value and a scale per 128, results in two.
        weights = work.num_experts * gemm.n * gemm.k
        nbytes = weights + rows * (gemm.k + 4 * gemm.k // 128 + gemm.out_bytes)
        formula = f"{rows} rows, {gemm.k} -> {gemm.n}"
        return KernelLine(name, formula, nbytes / 1e6, self.kernel_us(build), published)


def _layout(profile: Profile) -> KernelLine:
    ids = np.tile(np.arange(TOPK, dtype=np.int32), (TOKENS, 1))
    work = LayerWork(
        ids,
        np.zeros(TOKENS, np.int32),
        Placement(np.zeros(EXPERTS, np.int32), 1, "one rank"),
        SHAPE,
        Precision("fp8"),
    )
    nbytes = TOKENS * (TOPK * notify.EXPERT_ID_BYTES + GPUS)
    return KernelLine(
        "get_dispatch_layout",
        "tokens x ids in, tokens x GPUs out",
        nbytes / 1e6,
        profile.kernel_us(partial(notify.layout, work)),
        "74-142",
    )


def forward(profile: Profile, engine: Engine) -> list[KernelLine]:
    """Kernels of the forward pass in the order of their launch, DeepEP's transfers left out."""
    rows = TOKENS * TOPK * GPUS // EXPERTS
    work = one_rank([rows] * (EXPERTS // GPUS), SHAPE, "fp8")
    sizes = _sizes(work)
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    return [
        *profile.lines(engine.before_dispatch, sizes),
        _layout(profile),
        *profile.lines(engine.before_experts, sizes),
        profile.gemm("grouped GEMM-1", work, first, "1766", engine.layout),
        *profile.lines(engine.between, sizes),
        profile.gemm("grouped GEMM-2", work, second, "997", engine.layout),
        *profile.lines(engine.after_experts, sizes),
        *profile.lines(engine.after_combine, sizes),
    ]


def backward(profile: Profile) -> list[KernelLine]:
    """GEMMs of the backward pass: input gradients of all experts, weight gradients of one.

    Of the profile's weight gradients a quarter of the time is taken in which the calls of four experts
    run, which two streams launch and which take turns on the SMs.
    """
    rows = TOKENS * TOPK * GPUS // EXPERTS
    work = one_rank([rows] * (EXPERTS // GPUS), SHAPE, "fp8", is_backward=True)
    first, second = Gemm.first(work, fused_activation=False), Gemm.second(work)
    lines = [
        profile.gemm("input gradients, down", work, first, "876"),
        profile.gemm("input gradients, up", work, second, "2025"),
    ]
    one = one_rank([rows], SHAPE, "fp8", is_backward=True)
    for name, projection, published in (("up", UP, "582-707"), ("down", DOWN, "297-340")):

        def build(machine: Machine, start: Ints, of: Projection = projection) -> Ints:
            return weight_gradient_kernel(machine, one, of, machine.sms.pool("sm", GEMM_SMS), start, num_sms=GEMM_SMS)

        inner = one.shape.gemm1_columns if name == "up" else one.shape.intermediate
        nbytes = rows * (inner + SHAPE.hidden) + 2 * 4 * inner * SHAPE.hidden
        formula = f"one expert, {inner} x {rows} x {SHAPE.hidden}, on {GEMM_SMS} SMs"
        time = profile.kernel_us(build)
        lines.append(KernelLine(f"weight gradients, {name}", formula, nbytes / 1e6, time, published))
    return lines


def markdown(lines: list[KernelLine]) -> str:
    """The lines as a Markdown table."""
    table = [
        "| kernel | reads and writes | MB | replay, us | profile, us |",
        "|---|---|---:|---:|---:|",
    ]
    for line in lines:
        numbers = f"{line.mbytes:,.1f} | {line.predicted_us:,.1f} | {line.published_us or '-'}"
        table.append(f"| {line.name} | {line.formula} | {numbers} |")
    return "\n".join(table)


def tables() -> dict[str, str]:
    """The document's tables by name."""
    profile = Profile(Bench())
    return {
        **{name: markdown(forward(profile, stack.STACKS[name])) for name in ENGINES},
        "backward": markdown(backward(profile)),
    }


if __name__ == "__main__":
    for name, table in tables().items():
        sys.stdout.write(f"<!-- {name} -->\n{table}\n<!-- /{name} -->\n\n")
