"""Preprocessing of HybridEP, before rows travel: the tokens that each GPU wants, and their places.

The routing map (a flag for each token and expert) of all GPUs is gathered on each, a scan gives
every token its place on every GPU, and a second kernel gives each (token, expert) its row. The
host then waits for the number of rows, unless it has promised a bound.

Source: deepseek-ai/DeepEP, branch hybrid-ep: ``deep_ep/hybrid_ep_buffer.py`` and, under
``csrc/hybrid_ep``, ``scan`` in ``backend/hybrid_ep_backend.cuh`` and ``extension/permute.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.nccl import NCCL
from replay.model.machine.host import Operation
from replay.model.machine.kinds import COUNTS, DISPATCH, Kind

if TYPE_CHECKING:
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

COUNTS_WAIT = "counts to the host"
SCAN_BLOCKS = 108  # num_sms_preprocessing_api
PLACE_BYTES, SUM_BYTES = 4, 8
GRID_BARRIERS = 3  # of the kernel that places rows
PLACE_PASSES = 3  # written, then read and written

GATHER = Operation("all-gather of the routing map", moves="flags of all tokens")
CLEAR = Operation("memset of sums", moves="a sum for each block and GPU")
SCAN = Operation("scan", moves="flags of all tokens; places of its own tokens, flags of those received")
PLACES = Operation("permute preprocessing", moves="flags of received tokens; a row for each of them and expert")


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
    sums = SCAN_BLOCKS * n * SUM_BYTES
    cleared = machine.memory_kernel(Kind.LAYOUT, sums * every, gathered, CLEAR)
    copies = work.matrix("copies").sum(axis=0)
    placed = flags + most * n * PLACE_BYTES + copies * local
    scanned = machine.memory_kernel(Kind.LAYOUT, placed, cleared, SCAN)
    # Each block reads the sums of all blocks before it, one after the other.
    looks = machine.costs.cache_load() * (SCAN_BLOCKS - 1)
    scanned = machine.delay(Kind.LAYOUT, looks, scanned)
    rows = copies * local * (1 + PLACE_PASSES * PLACE_BYTES)
    known = machine.memory_kernel(Kind.LAYOUT, rows, scanned, PLACES)
    barrier = machine.costs.grid_barrier()
    known = machine.delay(DISPATCH.sync, barrier * GRID_BARRIERS, known, each=barrier)
    if host_waits:
        machine.host.wait(DISPATCH, known, COUNTS_WAIT)
    return known
