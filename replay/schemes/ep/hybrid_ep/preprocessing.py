"""Preprocessing of HybridEP, before rows travel: the tokens that each GPU wants, and their places.

The routing map (a flag for each token and expert) of all GPUs is gathered on each, a scan gives
every token its place on every GPU and each (token, expert) its row, and a second kernel pads the
experts' counts. The host then waits for them, unless it has promised a bound. Until pull request
625 (17cfb81, May 2026) rows had a kernel of their own, whose blocks met three times.

Source: deepseek-ai/DeepEP, branch hybrid-ep, 94a9f8f: ``deep_ep/hybrid_ep_buffer.py`` and, under
``csrc/hybrid_ep``, ``metadata_preprocess_core`` in ``executor/executor.cu``, ``scan`` in
``backend/hybrid_ep_backend.cuh``. Bytes are those of Megatron-LM's kernel list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.compute.list_rows import ListedPart, Software
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COUNTS, DISPATCH, Kind

if TYPE_CHECKING:
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

COUNTS_WAIT = "counts to the host"
SCAN_BLOCKS = 108  # num_sms_preprocessing_api
PLACE_BYTES, SUM_BYTES = 4, 8

LISTED = Software("megatron", (("dispatcher", "hybridep"),))
GATHER = Operation("all-gather of the routing map", moves="flags of all tokens")
# A cudaMemsetAsync each, in the call that gathers (HybridEPBuffer::metadata_preprocessing of hybrid_ep.cu).
CLEAR = Operation("memset of sums", 2, "a sum for each block and GPU, and for each block and own expert")


def all_experts(work: LayerWork) -> tuple[int, int]:
    """Experts of a GPU, as many on each, and of all GPUs, a multiple of four."""
    local = max((len(experts) for experts in work.experts_of_rank), default=0) or 1
    return local, -(-local * work.num_ranks // 4) * 4


def preprocess(work: LayerWork, machine: Machine, start: Tasks, *, host_waits: bool) -> Tasks:
    """Gather, scan, place, and let the host wait: (rank,) tasks when rows can travel."""
    n, every = machine.num_ranks, np.ones(machine.num_ranks, np.int64)
    local, experts = all_experts(work)
    most = int(np.diff(work.tokens_of_rank).max(initial=0))  # fewer tokens are padded
    flags = n * most * experts
    begun = machine.kernel(start, GATHER)
    gathered = NCCL.build(machine, COUNTS, "all_gather", flags, begun)
    sums = SCAN_BLOCKS * (n + local) * SUM_BYTES
    cleared = machine.small_kernels(Kind.LAYOUT, sums * every, gathered, CLEAR)
    part = ListedPart(machine, work, LISTED, "dispatch", tokens=most, experts=experts, local=local)
    scanned = part.launch("scan", cleared)
    # Each block reads the sums of all blocks before it, one after the other.
    looks = machine.costs.cache_load() * (SCAN_BLOCKS - 1)
    known = part.launch("padded counts", machine.delay(Kind.LAYOUT, looks, scanned))
    if host_waits:
        machine.host.wait(DISPATCH, known, COUNTS_WAIT)
    return known
