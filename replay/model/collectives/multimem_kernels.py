"""All-reduce, all-gather and reduce-scatter whose threads address all GPUs at once.

A rank works on its share of the buffer: it loads sums that the switch makes
(``multimem.ld_reduce``) and stores once what the switch copies to all (``multimem.st``). An
all-reduce does both with every 16 bytes, which fills both directions of a port; an all-gather has
the stores alone, which fill the way in, and a reduce-scatter the loads, which fill the way out.

Sources: PyTorch ``torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu``
(``multimem_all_reduce_kernel``, ``multimem_all_gather_kernel``: 8 blocks of 1024 threads, ranks
meet before and after; vLLM's and SGLang's communicators call them); NVIDIA/nccl
``contrib/custom_algos/allreduce`` (``twoshot_mc_simple``, ``twoshot_mc_poison``); vLLM pull request
55072 (reduce-scatter, 8 blocks of 1024 threads).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from replay.model.collectives.algorithm import COLLECTIVES, Algorithm, CollectiveCall
from replay.model.collectives.grids import BlockGrid, BlockWork, Items, Kernel, Style, WalkTasks
from replay.model.machine import multimem
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks

TORCH = Style(BlockGrid(blocks=8, threads=1024))
SAMPLE = Style(BlockGrid(blocks=4, threads=1024, spreads=True), meets_before=False)
"""NVIDIA's samples of NCCL's device API, as they were measured: who calls sees to it that all
buffers are written before. Every block has a stretch of the share."""


def exchange(call: CollectiveCall, begun: Tasks, style: Style = TORCH) -> Tasks:
    """Sum shares, spread shares, or both: (rank,) the last tasks; see `one_shot.by_loads`."""
    kernel = Kernel(call, style, call.share)
    begins = kernel.begin(begun)
    if call.collective == "reduce_scatter":
        work = sums(kernel, touched=call.machine.num_ranks + 1)
        return kernel.end(kernel.walk(begins, work), stored="nothing")
    return kernel.end(_spread(kernel, begins, adds=call.collective == "all_reduce"), stored="multicast")


def all_reduce_with_flags(call: CollectiveCall, begun: Tasks, style: Style = SAMPLE) -> Tasks:
    """All-reduce with flags in the data in place of a barrier at the end: (rank,) the last tasks.

    A buffer is full of a value that no sum has. The blocks read it until everything has come, a
    thread one 16 bytes after the other, and make one that was used before ready for the next call.
    """
    kernel = Kernel(call, style, call.share)
    walked = _spread(kernel, kernel.begin(begun), adds=True)
    machine = call.machine
    costs, of_block = machine.costs, kernel.block_bytes
    whole = machine.num_ranks * of_block
    passes = -(-whole // style.grid.wave_bytes)
    looked = Time.longer(costs.cache_load() * (passes - 1), costs.sm_add(whole, 0))
    looking = costs.poll() + looked + costs.sm_add(0, of_block)
    all_here = machine.gather(walked.arrived, machine.ranks, walked.left)
    done = machine.delay(call.kinds.receive, looking, all_here)
    return kernel.give_back(done)


def sums(kernel: Kernel, touched: int) -> BlockWork:
    """Load sums that the switch makes, and write them; `touched` as in `BlockWork`."""
    costs = kernel.machine.costs
    return BlockWork(kernel.kinds.receive, costs.sm_load, touched, partial(_load_sums, kernel))


def _load_sums(kernel: Kernel, items: Items) -> Ints:
    return multimem.reduce(
        kernel.machine,
        kernel.kinds,
        items.rank,
        items.nbytes,
        items.after,
        payload=kernel.payload,
        requests_first=True,
    )


def _spread(kernel: Kernel, begins: Ints, *, adds: bool) -> WalkTasks:
    """Store a share to all: its sums, or what a rank brings."""
    machine = kernel.machine
    arrived: list[Tasks] = []
    member: list[Ints] = []

    def store(items: Items, after: Tasks) -> Ints:
        spread = multimem.multicast(
            machine,
            kernel.kinds,
            items.rank,
            items.nbytes * kernel.payload,
            after,
            meta_bytes=items.nbytes * (not kernel.payload),
            first=True,
        )
        arrived.append(spread.arrived)
        member.append(spread.member)
        marks = machine.mark(items.rank, after)
        machine.order(spread.arrived, marks.repeat(len(spread.arrived) // len(marks)))
        return marks

    n, sends = machine.num_ranks, kernel.kinds.send
    work = (
        BlockWork(sends, machine.costs.sm_store, 2 * n, partial(_load_sums, kernel), store)
        if adds
        else BlockWork(sends, machine.costs.sm_store, 1 + n, store=store, trips=0)
    )
    walked = kernel.walk(begins, work)
    # A rank waits for what comes to it, beside what it sent.
    came = machine.gather(np.concatenate(arrived), np.concatenate(member), walked.arrived)
    return walked._replace(arrived=came)


MULTIMEM = Algorithm(
    name="multimem",
    collectives=COLLECTIVES,
    summary="every GPU loads sums of a share and stores them to all, in the switch",
    source="PyTorch CUDASymmetricMemoryOps.cu, multimem_all_reduce_",
    ways=lambda call: TORCH.ways("multimem", call, call.share, exchange),
    needs=("multicast", "reduction"),
)
