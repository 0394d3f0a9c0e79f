"""The small kernels before DeepEP's normal kernels: layout, exchange of counts, cleaning of rings.

What is fenced decides what they cost. A barrier of theirs meets the other ranks; before all but
the first barrier of a kernel stands a fence of system scope, since the kernel has written what the
others are going to read. Before the first nothing has been written: it is sync only.

=====================  ========================================  =================================
kernel                 barriers                                  beside them, in other blocks
=====================  ========================================  =================================
notify                 sync only; counts; fenced; the host may   tokens of every channel counted
                       read; rings cleaned; fenced
cached notify          sync only; rings cleaned; fenced          nothing
combine's notify       sync only; rings cleaned; fenced          heads walked, from a channel's end
=====================  ========================================  =================================

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/intranode.cu`` (``notify_dispatch``,
``cached_notify_dispatch``, ``cached_notify_combine``) and ``layout.cu``; ``barrier_block`` in
``utils.cuh``; the host's wait in ``csrc/legacy/buffer.hpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import COMBINE, DISPATCH, Kind

if TYPE_CHECKING:
    from replay.model.arrays import Tasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

CACHED_NOTIFY, COMBINE_NOTIFY = "cached notify of dispatch", "cached notify of combine"
EXPERT_ID_BYTES = 8
COUNT_BYTES = 4
LAYOUT_THREADS = 256  # of a block, each of which walks through its share of all tokens
NOTIFY_WARPS = 4  # of a block that counts, each of which takes whole channels
LANES = 32
HEAD_NS = 13  # a test of a head waits for a shuffle: 23 cycles at 1.755 GHz (recalled, Hopper)


def layout(work: LayerWork, machine: Machine, start: Tasks) -> Tasks:
    """Kernel that counts tokens by rank and by expert: (rank,) tasks of its end.

    Every block looks at all expert ids of all tokens, a thread at one token at a time.
    """
    tokens = np.diff(work.tokens_of_rank)
    topk = work.expert_ids.shape[1]
    read = tokens * (topk * EXPERT_ID_BYTES + work.num_ranks)
    counted = machine.memory_kernel(Kind.LAYOUT, read, start)
    looks = -(-tokens // LAYOUT_THREADS) * topk
    return machine.delay(Kind.LAYOUT, machine.costs.cache_load() * looks, counted)


def notify(work: LayerWork, machine: Machine, channels: int, start: Tasks) -> Tasks:
    """Exchange counts, and launch the next kernel when the host knows them: (rank,) tasks."""
    begun = machine.kernel(start, "notify")
    # Counted tokens are marks of a boolean for every (token, rank), 32 in a look.
    in_channel = -(-np.diff(work.tokens_of_rank) // channels)
    looks = -(-in_channel // LANES) * -(-channels // NOTIFY_WARPS)
    channels_counted = machine.delay(DISPATCH.sync, machine.costs.cache_load() * looks, begun)
    met = machine.sync.barrier(DISPATCH, begun, stored="nothing")
    most = max((len(experts) for experts in work.experts_of_rank), default=0)
    arrived = machine.sync.exchange_counts(met, COUNT_BYTES * (1 + most))
    summed = machine.sync.barrier(DISPATCH, arrived, stored="any")
    # The host polls a pinned counter, to size the output before it launches the dispatch. Meanwhile
    # the kernel goes on.
    machine.host.poll(DISPATCH, summed)
    cleaned = machine.sync.barrier(DISPATCH, summed, stored="any")
    ended = machine.gather(channels_counted, machine.ranks, cleaned)
    return machine.kernel(ended, "dispatch")


def cached_notify(machine: Machine, start: Tasks) -> Tasks:
    """Clean the dispatch's rings between two barriers: (rank,) tasks of the kernel's end."""
    met = machine.sync.barrier(DISPATCH, machine.kernel(start, CACHED_NOTIFY), stored="nothing")
    return machine.sync.barrier(DISPATCH, met, stored="any")


def combine_notify(work: LayerWork, machine: Machine, channels: int, start: Tasks) -> Tasks:
    """Clean the rings, and say of each token which row of a ring it must wait for: (rank,) tasks.

    A warp for every (channel, rank) walks through the channel's tokens from the last to the first,
    32 to a load, because a token without a row from this rank takes the head of the next one.
    """
    begun = machine.kernel(start, COMBINE_NOTIFY)
    met = machine.sync.barrier(COMBINE, begun, stored="nothing")
    cleaned = machine.sync.barrier(COMBINE, met, stored="any")
    in_channel = -(-np.diff(work.tokens_of_rank) // channels)
    costs = machine.costs
    walk = costs.ns(HEAD_NS) * in_channel + costs.memory_load() * -(-in_channel // LANES)
    walked = machine.delay(COMBINE.sync, walk, begun)
    return machine.gather(walked, machine.ranks, cleaned)
