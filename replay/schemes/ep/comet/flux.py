"""COMET as its library releases it (bytedance/flux 19831ca).

A GPU adds up the rows of its own experts before it stores one row per (token, GPU), and kernels
follow one another as ``moe_ag_scatter`` and ``moe_gather_rs`` launch them:

- ids and gate weights of all tokens are gathered (the library takes them as given) and indexed;
- rows are copied to the symmetric buffer, a barrier, two kernels of indices, a copy of the counts
  to the host, which waits for it before it launches kernel 1;
- kernel 1, a barrier, the activation (``examples/moe.py``);
- ``prepare_args``: three copies of arguments, a counter set to zero, ``ep_index_filter``;
- kernel 2, a barrier, its flags set to zero, and ``ep_topk_reduce`` at the owners.

The library's first kernel gathers all tokens by copy engine, whether they are wanted or not. That
is another scheme; here both forms fetch rows as the paper says.

FlashMoE (arXiv 2506.04667, table 1) counts 33 GPU operations for COMET, where ours are 19: it begins
behind the gate, and counts the gather of ids and the activation as one kernel each.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute.experts import ACTIVATION, activation_bytes
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COMBINE, COUNTS, DISPATCH, Kind
from replay.model.machine.times import MemoryTraffic
from replay.schemes.ep import memory
from replay.schemes.ep.comet.combine import sums_back
from replay.schemes.ep.comet.scheme import (
    FIRST,
    LIBRARY,
    PAPER,
    FusedKernelPair,
    shared_tokens,
)
from replay.schemes.ep.facts import Buffer

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.comet.combine import Send

BUFFERS = f"{LIBRARY}, init_buffers and init_buffer of its two operators, for all tokens"

INDEX_BYTES = 4  # of an expert's id, a row's position, a token's number: int32
WEIGHT_BYTES = 4  # FP32
BLOCKS = {7168: 7, 1152: 9}  # of the columns, where they are not eight (`dispatch_split`)

# Kernels and copies.
BARRIER, IDS, ROWS_OF_EXPERT = "barrier", "ids and weights to all", "rows of experts"
POSITIONS, TOKENS, BY_SOURCE = "positions of rows", "tokens of rows", "rows by source"
CLEAR, FILTER = "clear", "index filter"
FILL = Operation("rows to the buffer", moves="own tokens, read and written")
# Problem sizes and pointers; offsets of experts; offsets of tokens.
ARGUMENTS = Operation("arguments", 3)
SUMS = Operation("unpermute", moves="a row of every GPU that has experts of a token; the token")


class Flux(FusedKernelPair):
    """The library: one row per (token, GPU) comes back, with its kernels and waits of the host."""

    name = "flux"
    summary = "COMET as flux releases it: rows summed on a GPU before they return"
    source = f"{LIBRARY}, src/moe_gather_rs, src/moe_ag_scatter; {PAPER} sections 3-4"
    assumes = (
        "rows are fetched by the GPU that reads them; one kernel for the activation; results come "
        "from memory when they are added up"
    )
    wins = "skew against kernels one by one, by the same overlap as `comet`"
    loses = "few tokens against `comet`: kernels around the two fused ones, barriers and a wait of the host"
    spares = MappingProxyType(
        {
            "permutes": "the counts give each row its place",
        }
    )
    traffic_of = MappingProxyType({"experts": "pair-copy", "gpus": "copy"})
    keeps_results = False  # the second kernel writes into a buffer that stays

    def buffers(self, work: LayerWork, system: System) -> tuple[Buffer, ...]:
        """Buffers of all tokens and of all their rows, which stay."""
        every, topk = work.num_tokens, work.expert_ids.shape[1]
        each = {
            "results of all rows": every * topk * work.result_row_bytes,
            "sums for all tokens": every * work.combine_row_bytes,
            "indices": (3 * topk + topk + 2) * every * INDEX_BYTES,
        }
        return (
            *memory.cast_tokens(work),
            shared_tokens(work),
            *memory.cast_received(work, memory.received_rows(work)),
            *(Buffer(name, memory.on_each(work, nbytes), stays=True, source=BUFFERS) for name, nbytes in each.items()),
        )

    def block_columns(self, hidden: int) -> int:
        """See `FusedKernelPair`: a share of a row."""
        return -(-hidden // BLOCKS.get(hidden, 8))

    def sends(self, work: LayerWork) -> Send:
        """See `FusedKernelPair`: sums of a token's rows."""
        return sums_back(work)

    def before(self, work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
        """Gather ids, fill the buffers, make indices, wait, and launch kernel 1: (rank,) tasks."""
        n, topk = machine.num_ranks, work.expert_ids.shape[1]
        tokens, rows = np.diff(work.tokens_of_rank), work.matrix("pairs").sum(axis=0)
        slots = np.full(n, work.num_tokens * topk)
        if not work.is_backward:
            if n > 1:
                most = int(tokens.max()) * topk * (INDEX_BYTES + WEIGHT_BYTES)
                begun = machine.kernel(start, IDS)
                start = NCCL.build(machine, COUNTS, "all_gather", n * most, begun)
            counted = machine.memory_kernel(Kind.LAYOUT, slots * INDEX_BYTES, start, ROWS_OF_EXPERT)
            start = machine.memory_kernel(Kind.LAYOUT, 2 * slots * INDEX_BYTES, counted, POSITIONS)
        own = tokens * work.dispatch_row_bytes
        filled = machine.memory_kernel(DISPATCH.memory, MemoryTraffic(own, own), start, FILL)
        met = machine.sync.barrier(DISPATCH, machine.kernel(filled, BARRIER), stored="nothing")
        found = machine.memory_kernel(Kind.LAYOUT, (slots + rows) * INDEX_BYTES, met, TOKENS)
        ordered = machine.memory_kernel(Kind.LAYOUT, 3 * rows * INDEX_BYTES, found, BY_SOURCE)
        machine.host.wait(DISPATCH, ordered)
        return machine.kernel(ordered, FIRST)

    def between(self, work: LayerWork, machine: Machine, done: Ints) -> Tasks:
        """Barrier, activation, arguments and indices of kernel 2: (rank,) tasks."""
        met = machine.sync.barrier(DISPATCH, machine.kernel(done, BARRIER), stored="nothing")
        ends = machine.memory_kernel(Kind.ACTIVATION, activation_bytes(work), met, ACTIVATION)
        none = np.zeros(machine.num_ranks, np.int64)
        ends = machine.small_kernels(Kind.LAYOUT, none, ends, ARGUMENTS)
        ends = machine.small_kernels(Kind.LAYOUT, none, ends, CLEAR)
        # Each token's rows here, how many, its place at its owner and the owner; at the owner,
        # which ranks have rows of it, and how many.
        looked = work.num_tokens * work.expert_ids.shape[1]
        rows, copies = work.matrix("pairs").sum(axis=0), work.matrix("copies")
        written = rows + 4 * copies.sum(axis=0) + copies.sum(axis=1) + np.diff(work.tokens_of_rank)
        return machine.memory_kernel(Kind.LAYOUT, (looked + written) * INDEX_BYTES, ends, FILTER)

    def behind(self, work: LayerWork, machine: Machine, sent: Ints) -> Tasks:
        """Barrier, flags set to zero, and the sums of what GPUs have stored: (rank,) tasks."""
        met = machine.sync.barrier(COMBINE, machine.kernel(sent, BARRIER), stored="each")
        none = np.zeros(machine.num_ranks, np.int64)
        cleared = machine.small_kernels(Kind.LAYOUT, none, met, CLEAR)
        parts, tokens = work.matrix("copies").sum(axis=1), np.diff(work.tokens_of_rank)
        added = MemoryTraffic(parts * work.combine_row_bytes, tokens * work.result_row_bytes)
        ends = machine.memory_kernel(Kind.UNPERMUTE, added, cleared, SUMS)
        machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
        return ends
