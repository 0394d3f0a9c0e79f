"""HybridEP (DeepEP's branch hybrid-ep) under Megatron-LM's flex dispatcher.

One row per (token, GPU) each way, between nodes one per (token, node) (`between`). What the host
and the kernels need to know is computed first from the routing of all GPUs (`preprocessing`). The
dispatch pushes rows through shared memory to dense buffers, the combine pulls them (`kernels`);
permute and unpermute are kernels on all SMs.

Left out: permute and unpermute fused into the two kernels, by flags of chunks. With few SMs, FP8
rows to many GPUs are paced by the one thread of an SM that issues stores: for every token it looks
at every GPU, wanted or not.

Source: deepseek-ai/DeepEP, branch hybrid-ep, permutes of 94a9f8f ``csrc/hybrid_ep/extension/permute.cu``;
NVIDIA/Megatron-LM ``moe/fused_a2a.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.casts import cast_before_dispatch, cast_received
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.domains import Domains
from replay.model.machine.kinds import Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep.facts import LIBRARY_WEIGHTS, Buffer
from replay.schemes.ep.hybrid_ep import kernels, preprocessing
from replay.schemes.ep.hybrid_ep.kernels import PROB_BYTES, RowSizes
from replay.schemes.ep.hybrid_ep.preprocessing import PLACE_BYTES, all_experts
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

LEAST_TOKENS = 512  # of a GPU that buffers have room for


@dataclass(frozen=True)
class HybridEpOptions(Options):
    """Arguments of ``HybridEPBuffer``."""

    num_sms: int = option(
        32,
        "SMs of the dispatch kernel and of the combine kernel.",
        "num_sms_dispatch_api of HybridEPBuffer inside one domain",
    )
    chunk_tokens: int = option(
        128,
        "Consecutive tokens that an SM takes together. A GPU with fewer tokens uses one SM.",
        "NUM_OF_TOKENS_PER_CHUNK_DISPATCH_API and _COMBINE_API, 128 unless set",
    )
    non_blocking: bool = option(
        False,
        "Whether the host promises a bound for the number of received rows and does not wait for "
        "it; a CUDA graph can hold the layer then. Rows beyond the bound would be dropped: it is "
        "taken to hold all.",
        "non_blocking of dispatch_with_permute, off unless num_permuted_tokens is given",
    )
    cached_layout: bool = option(
        False,
        "Whether the places of rows are known from an earlier call, as in a backward pass.",
        "a layer whose routing is new",
    )


class HybridEp(StagedScheme):
    """One row per (token, GPU), pushed out and pulled back by chunks of tokens."""

    name = "hybrid-ep"
    summary = "HybridEP: chunks through shared memory, rows pushed out, pulled back"
    source = "deepseek-ai/DeepEP branch hybrid-ep, hybrid_ep_backend.cuh; Megatron-LM fused_a2a.py"
    assumes = (
        "an SM pushes rows as fast as those of other kernels; permute and unpermute are kernels of "
        "their own (the fused ones are left out)"
    )
    wins = (
        "many tokens against all-to-alls, by one row per GPU; on B200 against `deepep`, since its SMs push what the "
        "other's warps cannot"
    )
    loses = (
        "few tokens, since a chunk of tokens is one SM's; FP8 rows to many GPUs by few SMs, paced by the thread that "
        "issues stores; skew against `deepep`"
    )
    spares = MappingProxyType(
        {
            "copies in memory": "rows are stored to where the permute reads them",
        }
    )
    traffic = "copy"
    weight_types = LIBRARY_WEIGHTS
    network = "node"
    full_nodes = "rows go to the GPU of the same index in others"
    dispatch_types = frozenset({"bf16", "fp8"})
    combine_types = frozenset({"bf16"})
    most_ranks = 72
    validity = "an even number of GPUs in one NVLink domain, or as many in each of several"
    candidates = MappingProxyType({"num_sms": (4, 8, 16, 32)})
    options: HybridEpOptions = HybridEpOptions()

    def communication_sms(self, system: System) -> int | None:
        """SMs of the option."""
        return self.options.num_sms

    def refuses(self, work: LayerWork) -> str:
        """Say if the number of ranks is odd."""
        if reason := super().refuses(work):
            return reason
        if work.num_ranks % 2:
            return f"its kernels take an even number of ranks, not {work.num_ranks}"
        return ""

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Rows of the worst case, which dispatch and combine share, and the permuted rows."""
        n, (_, num_experts) = work.num_ranks, all_experts(work)
        most = max(int(np.diff(work.tokens_of_rank).max(initial=0)), LEAST_TOKENS) * n
        row = RowSizes.of(work).slot + num_experts * PROB_BYTES
        pairs = work.matrix("pairs").sum(axis=0)
        nodes = Domains(system.fabric, n).num
        # Of other nodes: rows that came, sums of theirs that go back, and sums that came.
        passed = np.full(n, 3 * (nodes - 1) * (most // n) * row, np.int64)
        return (
            *((Buffer("rows of other nodes", passed, stays=True),) if nodes > 1 else ()),
            Buffer("rows of all tokens", np.full(n, most * row, np.int64), stays=True),
            Buffer("flags of all tokens", np.full(n, most * num_experts, np.int64), stays=True),
            Buffer("permuted rows", pairs * work.dispatch_row_bytes),
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add preprocessing, dispatch, permute, experts, unpermute, combine."""
        options, split = self.options, self.split(machine, "num_sms")
        shared = shared_before_wait(machine, work, split, start)
        ready = yield cast_before_dispatch(machine, work, start)
        if not (options.cached_layout or work.is_backward):
            ready = preprocessing.preprocess(work, machine, ready, host_waits=not options.non_blocking)
        shape = (split, options.num_sms, options.chunk_tokens)
        received = yield kernels.dispatch(work, machine, *shape, ready)
        copies, pairs = (work.matrix(what).sum(axis=0) for what in ("copies", "pairs"))
        row, back = work.dispatch_row_bytes, work.combine_row_bytes
        local, _ = all_experts(work)
        places = copies * local * PLACE_BYTES  # for each own expert, where the row goes or came from
        weight = 0 if work.is_backward else PROB_BYTES  # of the experts that have the row alone
        read = copies * RowSizes.of(work, experts=0).out + places + pairs * weight
        moved = MemoryTraffic(read, pairs * (row + weight), pairs)
        permuted = machine.memory_kernel(
            Kind.PERMUTE, moved, received, moves="received rows, a row for each of their experts"
        )
        operands = cast_received(machine, work, pairs, permuted)
        pool = machine.sms.for_kernels()
        # TransformerEngine's grouped linear layer quantises its input itself.
        done = separate_kernels(machine, work, pool, shared(operands), quantises_apart=True)
        weight = PROB_BYTES if work.is_backward else 0
        # Gradients of gate weights: zeroes for all experts, and those that there are.
        added = MemoryTraffic(pairs * (back + weight) + places, copies * RowSizes.of(work).back + pairs * weight)
        summed = yield machine.memory_kernel(Kind.UNPERMUTE, added, done, moves="every result, their sums by GPU")
        return (yield kernels.combine(work, machine, *shape, summed))
