"""DeepEP's normal dispatch and combine kernels inside an NVLink domain.

A channel has two SMs, one that sends and one that receives. The sender stores chunks of rows into a
ring on the receiver, which copies them out and returns the room; in the combine the owner's
receiving SMs add what comes from the GPUs, in FP32.

A block's 24 warps are split evenly over the peers, and each group looks at every token of its
channel for the ones that go to its peer. A group's time is that of its loop (tokens looked at,
rows copied in rounds of a few loads), so a channel has a rate of its own long before links or
memory do; measured times step up where a channel's tokens no longer fit its adding warps at once.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/intranode.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine import rings
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.model.machine.times import MemoryTraffic
from replay.model.work.ragged import places_in_runs
from replay.schemes.ep.deepep.notify import EXPERT_ID_BYTES

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.schemes.ep.deepep.crossings import NormalKernel

BLOCK_WARPS = 24  # 768 threads
DISPATCH_UNROLL, COMBINE_UNROLL = 5, 4  # loads of a lane in flight (UNROLLED_WARP_COPY)
STAGES = 2  # a received row is copied in two halves, each loaded and stored before the next
INDEX_BYTES = 4  # source index of a row
WEIGHT_BYTES = 4


def dispatch(kernel: NormalKernel) -> Ints:
    """Add the dispatch kernel: (rank,) marks of its end."""
    work, machine, config, channels, sms, begun = kernel
    costs, row_bytes, n = machine.costs, work.dispatch_row_bytes, work.num_ranks
    meta = INDEX_BYTES + work.expert_ids.shape[1] * (EXPERT_ID_BYTES + WEIGHT_BYTES)
    channel = kernel.channel
    chunks = rings.cut(work.copy_source, work.copy_rank, channel[work.copy_token], config.chunk)
    # Warps of a group share its rows; every warp looks at all tokens of the channel.
    readers = len(work.copy_token) / max(work.num_tokens, 1)
    looked_at = _tokens_up_to(kernel, chunks)
    a_row = costs.warp_copy(row_bytes, unroll=DISPATCH_UNROLL, readers=readers)
    busy = costs.warp_scan(looked_at * -(-n // BLOCK_WARPS))
    busy += a_row * -(-chunks.rows * n // BLOCK_WARPS)
    senders = sms.warp_lanes("deepep-send", channels, n)
    sent = rings.send(
        machine,
        DISPATCH,
        chunks,
        senders[chunks.src, chunks.channel, chunks.dst],
        busy,
        row_bytes,
        begun,
        meta_bytes=meta,
    )
    machine.notes.follow("sent", work.copy_token, sent.send[chunks.of_row])
    moved = 2 * chunks.rows * (row_bytes + meta)
    copied = machine.stream(DISPATCH.memory, moved, chunks.dst, sent.arrived)
    receivers = sms.warp_lanes("deepep-recv", channels, n)
    a_row = (costs.memory_load() + costs.cache_load()) * STAGES
    received = machine.serve(
        receivers[chunks.dst, chunks.channel, chunks.src],
        a_row * -(-chunks.rows * n // BLOCK_WARPS),
        kind=DISPATCH.receive,
        rank=chunks.dst,
        after=copied,
    )
    machine.order(begun[chunks.dst], received)
    rings.return_room(machine, DISPATCH, chunks, sent, received, config.ring)
    return machine.gather(np.concatenate((sent.send, received)), np.concatenate((chunks.src, chunks.dst)), begun)


def _tokens_up_to(kernel: NormalKernel, chunks: rings.Chunks) -> Ints:
    """(chunk,): tokens of the channel looked at from the end of the chunk before to its end."""
    work = kernel.work
    lane = work.source_rank * kernel.num_channels + kernel.channel
    place = places_in_runs(lane)
    last = np.zeros(len(chunks), np.int64)
    np.maximum.at(last, chunks.of_row, place[work.copy_token] + 1)
    before = np.concatenate(([0], last[:-1]))
    is_first = np.diff(chunks.lane, prepend=-1) != 0
    looked_at: Ints = last - np.where(is_first, 0, before)
    return looked_at


def combine(kernel: NormalKernel) -> Ints:
    """Add the combine kernel: (rank,) marks of its end."""
    work, machine, config, channels, sms, begun = kernel
    costs, row_bytes, n = machine.costs, work.combine_row_bytes, work.num_ranks
    channel = kernel.channel
    chunks = rings.cut(work.copy_rank, work.copy_source, channel[work.copy_token], config.chunk)
    meta = INDEX_BYTES + work.expert_ids.shape[1] * WEIGHT_BYTES
    a_row = costs.warp_copy(row_bytes, unroll=COMBINE_UNROLL)
    senders = sms.warp_lanes("deepep-send", channels, n)
    sent = rings.send(
        machine,
        COMBINE,
        chunks,
        senders[chunks.src, chunks.channel, chunks.dst],
        a_row * -(-chunks.rows * n // BLOCK_WARPS),
        row_bytes,
        begun,
        meta_bytes=meta,
    )

    # The owner's receiving SM adds its channel's tokens in order, a warp for each token.
    waiting = np.minimum(np.bincount(chunks.lane, chunks.rows), config.ring).sum() / n
    sources = np.bincount(work.copy_token, minlength=work.num_tokens)
    adders = sms.channels("deepep-add", channels)
    a_sum = costs.warps_add(sources, row_bytes, num_warps=BLOCK_WARPS - 1, waiting_bytes=int(waiting) * row_bytes)
    added = machine.serve(
        adders[work.source_rank, channel],
        a_sum,
        late=costs.warps_add_late(sources, row_bytes),
        kind=COMBINE.receive,
        rank=work.source_rank,
        after=begun[work.source_rank],
    )
    machine.charge_copy(COMBINE, chunks.rows * (row_bytes + meta), chunks.dst, sent.arrived)
    machine.order(sent.arrived[chunks.of_row], added[work.copy_token])
    sums = MemoryTraffic(read=0, written=np.full(work.num_tokens, row_bytes))
    written = machine.stream(COMBINE.memory, sums, work.source_rank, added)
    machine.notes.follow("combined", np.arange(work.num_tokens), written)
    last_reader = np.zeros(len(chunks), np.int64)
    np.maximum.at(last_reader, chunks.of_row, work.copy_token)
    rings.return_room(machine, COMBINE, chunks, sent, added[last_reader], config.ring)
    return machine.gather(
        np.concatenate((sent.send, written)),
        np.concatenate((chunks.src, work.source_rank)),
        begun,
    )
