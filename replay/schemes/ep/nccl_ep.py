"""NCCL EP in its low-latency mode: DeepEP's low-latency kernels over NCCL's windows.

NCCL EP takes over DeepEP's kernels with grid, slots, flags, doubled buffers and unrolled copies as
they are (`replay.schemes.ep.deepep.low_latency`); addresses of peers come from windows of NCCL's
communicators, and network cards are driven by its device API. What differs is said here: rows
travel in BF16 alone, nine experts a token at most, as many experts on every GPU, the sizes of rows
that it is compiled for, and a workspace.

Its high-throughput mode is `replay.schemes.ep.nccl_ep_ht`.

Source: NVIDIA/nccl at 3619159 (v2.29), ``contrib/nccl_ep``: ``device/low_latency.cu``,
``include/common.hpp`` (`LowLatencyLayout`), ``nccl_ep.cc``, ``device/macros.cuh``, ``RELEASE.md``.
Later versions send a row once to each GPU and unpack it there.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from replay.schemes.ep import memory
from replay.schemes.ep.deepep.low_latency import LowLatencyDeepEp
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.work.layer import LayerWork

NOT_COMPILED = range(2561, 3073)  # DeepEP's size of 3072 values is not among those of SWITCH_HIDDEN
WORKSPACE_BYTES = 32 << 20  # NUM_WORKSPACE_BYTES


class NcclEp(LowLatencyDeepEp):
    """DeepEP's low-latency kernels as NCCL has them."""

    name = "nccl-ep"
    summary = "NCCL EP, low-latency mode: DeepEP's kernels over NCCL's windows, BF16"
    source = "NVIDIA/nccl 3619159 (v2.29) contrib/nccl_ep/device/low_latency.cu; SGLang's experts"
    assumes = (
        "handles and buffers are made before; rows are padded to the next hidden size that kernels "
        "are compiled for, GEMMs are not; kernels around it are those around DeepEP's"
    )
    wins = "as `deepep-ll` in BF16, with nothing but NCCL"
    loses = "as `deepep-ll` with many tokens; rows in FP8, which it lacks and which halve what `deepep-ll` sends"
    spares = MappingProxyType(
        {
            "host waits": "buffers have room for the worst case",
            "permutes": "rows have fixed slots",
            "kernels for sums": "rows go back as they are, and SMs of the owner add",
        }
    )
    dispatch_types = frozenset({"bf16"})
    most_ranks = 64
    most_topk = 9  # kNumMaxTopK of the dispatch
    even_experts = True
    interleaves = frozenset({"tbo", "dbo"})  # no kernel of it waits for signals of a GEMM
    validity = "decoding: up to 1024 tokens per GPU, 9 experts per token; 8 nodes of 8 GPUs at most"

    def refuses(self, work: LayerWork) -> str:
        """Say what of a layer the kernels have no code for; empty if nothing."""
        hidden = work.shape.hidden
        if self.options.overlap_sms:
            return "its combine does not wait for signals of a GEMM (overlap_sms)"
        if reason := super().refuses(work):
            return reason
        if hidden in NOT_COMPILED:
            return f"its kernels are compiled for rows of 2560 and of 4096 values, not {hidden}"
        return ""

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Buffers of DeepEP's layout, which it has taken over, and a workspace."""
        first, *others = super().buffers(work, system)
        workspace = Buffer("workspace", memory.on_each(work, WORKSPACE_BYTES), stays=True)
        return (first, workspace, *others)
