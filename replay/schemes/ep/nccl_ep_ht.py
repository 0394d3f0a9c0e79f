"""NCCL EP in its high-throughput mode: HybridEP's kernels over NCCL's windows.

NCCL EP has taken over HybridEP's warps, chunks and FIFOs (`replay.schemes.ep.hybrid_ep`). What
differs:

===================  ===============================================================================
before               ids become a map of bits, an eighth of HybridEP's bytes; the map of all GPUs is
                     gathered and scanned by 16 blocks; no kernel places rows for experts, and the
                     host waits for nothing
gate weights         spread out to all experts by a kernel, behind a memset; a row takes those of a
                     node's experts with it; behind the dispatch a kernel brings them to its choices
meetings             in the kernels, behind the rows of the dispatch and before those of the
                     combine; no kernel is launched for them
rows of the caller   copied to the buffer that cards read (several nodes), out of that which others
                     write, and into that which others read, unless they are windows themselves
host                 waits for the number of received rows behind the dispatch, to copy no more; in
                     a graph all rows of the worst case are copied
between nodes        chunks of 64 tokens; sums leave in eights, as they are made
===================  ===============================================================================

Modelled is the flat layout, whose rows the caller permutes. The layout by expert stores a row for
each of a token's experts and is left out, as are the second warp of a block that posts, writes of
gate weights by themselves and puts of several rows in one. RELEASE.md says that the mode is being
tuned and may be slow, and gives no times: nothing here is checked by a measurement of its own.

Source: NVIDIA/nccl at 5067397 (NCCL EP 0.1.0), ``contrib/nccl_ep``: ``nccl_ep.cc``,
``device/hybrid_ep.cuh``, ``device/hybridep_adapter.cu``, ``device/hybridep_configs.cuh``.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute.casts import cast_received
from replay.model.compute.experts import separate_kernels
from replay.model.compute.shared_experts import shared_before_wait
from replay.model.machine.domains import Domains
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep import memory
from replay.schemes.ep.facts import LIBRARY_WEIGHTS, Buffer
from replay.schemes.ep.hybrid_ep import kernels
from replay.schemes.ep.hybrid_ep.kernels import PROB_BYTES, RowSizes
from replay.schemes.ep.hybrid_ep.preprocessing import all_experts
from replay.schemes.ep.staged_schemes import StagedScheme
from replay.schemes.options import Options, option

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged_schemes import Stages

CHUNK_TOKENS = 64  # HT_OF_NUM_TOKENS_PER_CHUNK
STREAMED_TOKENS = 8  # HYBRIDEP_COMBINE_RDMA_STREAMING_BATCH
MOST_SMS = 16  # HYBRIDEP_MAX_NUM_SMS_PER_RANK, which is taken unless the caller says less or more
ID_BYTES, PLACE_BYTES, STATE_BYTES = 8, 4, 8
NODE_GPUS = 8

MAP = Operation("routing map", moves="ids of its own tokens; a bit for each expert, ids kept")
GATHER = Operation("all-gather of the routing map", moves="bits of all tokens")
CLEAR = Operation("memset of maps", moves="flags of received rows and of tokens of the rail")
ABSENT = Operation("memset of places", moves="a place for each token of the rail and GPU")
SUMS = Operation("memset of sums", moves="a sum for each block and GPU")
SCAN = Operation("scan", moves="bits of all tokens; places, flags of received rows")
STAGED = Operation("copy to the card's buffer", moves="its own tokens")
ZEROES = Operation("memset of gate weights", moves="a weight for each token and expert")
SPREAD = Operation("gate weights to all experts", moves="choices and weights; the weights")
TAKEN = Operation("copy of received rows", moves="rows out of the buffer that others write")
CHOSEN = Operation("gate weights of received rows", moves="flags of all slots; weights and ids")
OFFERED = Operation("copy of results", moves="sums into the buffer that others read")
COUNT_WAIT = "count of received rows to the host"


@dataclass(frozen=True)
class NcclEpHtOptions(Options):
    """Configuration of a group, and how its tensors are made."""

    num_sms: int = option(
        MOST_SMS,
        "SMs of the dispatch kernel, of the combine kernel and of the scan (max_num_sms).",
        "HYBRIDEP_MAX_NUM_SMS_PER_RANK, the library's own choice",
    )
    windows: bool = option(
        False,
        "Whether the caller's rows lie in windows that NCCL has registered, so that kernels read "
        "and write them where they are, and no copy is made.",
        "ep_bench's ordinary tensors",
    )
    is_captured: bool = option(
        False,
        "Whether a CUDA graph holds the layer. Then the host waits for no count, and all rows of "
        "the worst case are copied.",
        "an eager layer",
    )
    cached_layout: bool = option(
        False,
        "Whether a handle is used again, so that maps and places are known, as in a backward pass.",
        "a layer whose routing is new",
    )


class NcclEpHt(StagedScheme):
    """HybridEP's kernels with meetings inside, as NCCL has them."""

    name = "nccl-ep-ht"
    summary = "NCCL EP, high-throughput mode: HybridEP's kernels, meetings in them"
    source = "NVIDIA/nccl 5067397 (NCCL EP 0.1.0) contrib/nccl_ep, HIGH_THROUGHPUT, flat layout"
    assumes = (
        "an SM pushes rows as fast as those of other kernels; the caller permutes and adds up rows "
        "by kernels of its own; no published time of this mode is there to check it by"
    )
    wins = "few tokens against `hybrid-ep`, by little, with nothing but NCCL"
    loses = "many tokens and skew against `hybrid-ep`: what comes and what goes back is copied once more"
    traffic = "copy"
    network = "node"
    full_nodes = "rows go to the GPU of the same index in others"
    weight_types = LIBRARY_WEIGHTS
    dispatch_types = combine_types = frozenset({"bf16"})
    most_ranks = 64
    even_experts = True
    validity = "up to 8 nodes of up to 8 GPUs; untuned, as its release says"
    candidates = MappingProxyType({"num_sms": (4, 8, 16, 32)})
    options: NcclEpHtOptions = NcclEpHtOptions()

    def communication_sms(self, system: System) -> int | None:
        """SMs of the option."""
        return self.options.num_sms

    def refuses_on(self, work: LayerWork, system: System) -> str:
        """Say why the layer's domains do not fit the code; empty if they do."""
        domains = Domains(system.fabric, work.num_ranks)
        if min(domains.size, work.num_ranks) > NODE_GPUS:
            return f"its release takes {NODE_GPUS} GPUs of a node at most, not {domains.size}"
        return super().refuses_on(work, system)

    @staticmethod
    def _experts(work: LayerWork, domains: Domains) -> int:
        """Experts of a node, a multiple of four: its gate weights go by bulk copies."""
        return -(-all_experts(work)[0] * min(domains.size, work.num_ranks) // 4) * 4

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Rows of the worst case, which dispatch and combine share, and the caller's."""
        n, domains = work.num_ranks, Domains(system.fabric, work.num_ranks)
        most = int(np.diff(work.tokens_of_rank).max(initial=0))
        row = RowSizes.of(work, 0).slot + self._experts(work, domains) * PROB_BYTES
        copies, pairs = (work.matrix(what).sum(axis=0) for what in ("copies", "pairs"))
        passed = 3 * (domains.num - 1) * most * row
        others = (Buffer("rows of other nodes", memory.on_each(work, passed), stays=True),)
        return (
            *(others if domains.num > 1 else ()),
            Buffer("rows of all tokens", memory.on_each(work, n * most * row), stays=True),
            Buffer("received rows", copies * work.dispatch_row_bytes),
            Buffer("permuted rows", pairs * work.operand_row_bytes),
        )

    def stages(self, work: LayerWork, machine: Machine, start: Tasks) -> Stages:
        """Add maps, dispatch, permute, experts, unpermute, combine."""
        split = self.split(machine, "num_sms")
        shared = shared_before_wait(machine, work, split, start)
        ready = yield start
        if not (self.options.cached_layout or work.is_backward):
            ready = self._map_rows(work, machine, ready)
        received = yield self._dispatch(work, machine, ready)
        copies, pairs = (work.matrix(what).sum(axis=0) for what in ("copies", "pairs"))
        row, back = work.dispatch_row_bytes, work.combine_row_bytes
        moved = MemoryTraffic(copies * row, pairs * row, pairs)
        permuted = machine.memory_kernel(
            Kind.PERMUTE, moved, received, moves="received rows, a row for each of their experts"
        )
        operands = cast_received(machine, work, pairs, permuted)
        pool = machine.sms.for_kernels()
        done = separate_kernels(machine, work, pool, shared(operands))
        added = MemoryTraffic(pairs * back, copies * back)
        summed = yield machine.memory_kernel(Kind.UNPERMUTE, added, done, moves="every result, their sums by GPU")
        return (yield self._combine(work, machine, summed))

    def _map_rows(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Gather who wants which token, and place all rows: (rank,) tasks."""
        n, every = machine.num_ranks, np.ones(machine.num_ranks, np.int64)
        local, experts = all_experts(work)
        size, nodes = min(machine.domains.size, n), machine.num_domains
        most, topk = int(np.diff(work.tokens_of_rank).max(initial=0)), work.expert_ids.shape[1]
        bits = most * -(-experts // 8)
        # Every GPU of a node keeps what becomes of the tokens of its rail.
        flags = nodes * most + n * most * local
        places = nodes * most * size * PLACE_BYTES
        after = machine.memory_kernel(Kind.LAYOUT, flags * every, after, CLEAR)
        after = machine.memory_kernel(Kind.LAYOUT, places * every, after, ABSENT)
        own = memory.tokens(work) * topk * ID_BYTES
        after = machine.memory_kernel(Kind.LAYOUT, MemoryTraffic(own, own + bits), after, MAP)
        gathered = NCCL.build(machine, COUNTS, "all_gather", n * bits, machine.kernel(after, GATHER))
        blocks = self.options.num_sms
        sums = blocks * size * STATE_BYTES
        after = machine.memory_kernel(Kind.LAYOUT, sums * every, gathered, SUMS)
        copies = work.matrix("copies").sum(axis=0)
        after = machine.memory_kernel(
            Kind.LAYOUT, MemoryTraffic(n * bits * every, places + copies * local), after, SCAN
        )
        # Each block reads the sums of all blocks before it, one after the other.
        return machine.delay(Kind.LAYOUT, machine.costs.cache_load() * (blocks - 1), after)

    def _rows(self, work: LayerWork, machine: Machine) -> RowSizes:
        return RowSizes.of(work, self._experts(work, machine.domains))

    def _dispatch(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Bring rows to a tensor of the caller: (rank,) tasks."""
        options, shape = self.options, (self.options.num_sms, CHUNK_TOKENS)
        own, row, topk = memory.tokens(work), work.dispatch_row_bytes, work.expert_ids.shape[1]
        choices = topk * (ID_BYTES + PROB_BYTES)
        if machine.num_domains > 1 and not options.windows:
            staged = MemoryTraffic(own * row, own * row)
            after = machine.memory_kernel(DISPATCH.memory, staged, after, STAGED)
        if not work.is_backward:
            dense = own * all_experts(work)[1] * PROB_BYTES
            after = machine.memory_kernel(Kind.LAYOUT, MemoryTraffic(0, dense), after, ZEROES)
            spread = MemoryTraffic(own * choices, own * topk * PROB_BYTES)
            after = machine.memory_kernel(Kind.LAYOUT, spread, after, SPREAD)
        begun = machine.kernel(after, "dispatch")
        split, rows = self.split(machine, "num_sms"), self._rows(work, machine)
        pushed = kernels.push_rows(work, machine, split, shape, rows, begun)
        # The last block of the grid tells the other GPUs of the node, and all wait for these.
        flushed = machine.delay(DISPATCH.sync, machine.costs.grid_barrier(), pushed)
        received = machine.sync.barrier(DISPATCH, flushed, stored="each", inside=True)
        copies = work.matrix("copies").sum(axis=0)
        most = work.num_ranks * int(own.max(initial=0))  # rows of the worst case
        if not options.is_captured:
            machine.host.wait(DISPATCH, received, COUNT_WAIT)
        if not options.windows:
            taken = (np.full_like(copies, most) if options.is_captured else copies) * row
            taken = MemoryTraffic(taken, taken)
            received = machine.memory_kernel(DISPATCH.memory, taken, received, TAKEN)
        if not work.is_backward:
            local = all_experts(work)[0]
            chosen = MemoryTraffic(most * local + copies * topk * PROB_BYTES, np.full_like(copies, most * choices))
            received = machine.memory_kernel(Kind.LAYOUT, chosen, received, CHOSEN)
        return received

    def _combine(self, work: LayerWork, machine: Machine, after: Tasks) -> Tasks:
        """Bring sums to a tensor of the caller: (rank,) tasks."""
        options, back = self.options, work.combine_row_bytes
        if not options.windows:
            results = work.matrix("copies").sum(axis=0) * back
            offered = MemoryTraffic(results, results)
            after = machine.memory_kernel(COMBINE.memory, offered, after, OFFERED)
        begun = machine.sync.barrier(COMBINE, machine.kernel(after, "combine"), stored="nothing", inside=True)
        chunk = STREAMED_TOKENS if machine.num_domains > 1 else CHUNK_TOKENS
        split, rows = self.split(machine, "num_sms"), self._rows(work, machine)
        shape = options.num_sms, chunk
        return kernels.pull_rows(work, machine, split, shape, rows, begun)
