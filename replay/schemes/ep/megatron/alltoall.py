"""Megatron-LM's all-to-all dispatcher around its experts.

The dispatcher is that of `replay.schemes.ep.nccl_alltoall`, kernel by kernel. That scheme runs the
experts as one grouped GEMM, as most others do, so that schemes differ by what moves rows; this one
runs them as Megatron-LM does (`replay.schemes.ep.megatron.experts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from replay.schemes.ep.megatron.experts import (
    ExpertOptions,
    refusal,
    run_experts,
    run_weight_gradients,
)
from replay.schemes.ep.nccl import NcclOptions
from replay.schemes.ep.nccl_alltoall import NcclAllToAll

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork


@dataclass(frozen=True)
class MegatronOptions(NcclOptions, ExpertOptions):
    """Settings of NCCL, and how the experts run."""


class Megatron(NcclAllToAll):
    """The dispatcher of `NcclAllToAll`, experts as calls or as grouped GEMMs."""

    name = "megatron"
    summary = "Megatron-LM's all-to-all dispatcher, a cuBLAS call per expert"
    source = "Megatron-LM token_dispatcher.py, experts.py; TransformerEngine grouped_linear.py"
    assumes = (
        "NCCL's own channels, chunks and protocols; FP8 with a scale for each 128 values of a row, "
        "without padding in the router; CPU time of a call beside its launch is none"
    )
    wins = "level with `nccl-alltoall`, which has its dispatcher, where memory is slower than launches"
    loses = (
        "many experts with few tokens, by launches; many tokens, by the rate of cuBLAS's kernels against grouped ones"
    )
    dispatch_types = frozenset({"bf16", "fp32"})
    combine_types = frozenset({"bf16", "fp32"})
    validity = ""
    options: MegatronOptions = MegatronOptions()

    def refuses(self, work: LayerWork) -> str:
        """Say why it, or its experts, cannot run a layer."""
        return super().refuses(work) or refusal(work, self.options)

    def _operands(self, work: LayerWork, machine: Machine, rows: Counts, arrived: Tasks) -> tuple[Ints, int]:
        """Leave rows as they are until they are sorted."""
        return arrived, work.token_row_bytes

    def _experts(self, work: LayerWork, machine: Machine, arrived: Tasks) -> Ints:
        return run_experts(machine, work, self.options, arrived)

    def weight_gradients(self, work: LayerWork, machine: Machine, after: Tasks) -> Ints:
        """Add weight gradients that were put off, run as the experts' other GEMMs are."""
        return run_weight_gradients(machine, work, self.options, after)
