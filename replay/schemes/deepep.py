"""DeepEP, first version, normal kernels inside one NVLink domain.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/intranode.cu`` and the legacy buffer:
one copy per (token, GPU); channels of one sending and one receiving SM; chunks stored into a ring
on the receiver, which copies them out and returns the room; in the combine each GPU first adds
the rows of its own experts, and the owner's receiving SMs add what comes from the GPUs in FP32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from replay.errors import UserError
from replay.kinds import COMBINE, DISPATCH, Kind
from replay.schemes import ring
from replay.schemes.base import NoOptions, Scheme, at_least
from replay.schemes.experts import separate_kernels

if TYPE_CHECKING:
    from replay.machine import Ints, Machine
    from replay.work import LayerWork

# Configurations shipped with DeepEP, by group size: (up to ranks, dispatch chunk, combine chunk,
# ring), chunks and ring in tokens. Between the listed sizes the next larger one is taken.
SHIPPED = ((2, 24, 24, 256), (8, 6, 4, 256), (16, 36, 4, 288), (64, 32, 1, 288))

INDEX_BYTES = 4  # source index of a row
EXPERT_ID_BYTES = 8
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class DeepEpOptions(NoOptions):
    """Options.

    Attributes
    ----------
    num_sms
        SMs of the dispatch and combine kernels, half of them sending (default of the published
        tables).
    dispatch_chunk, combine_chunk, ring_tokens
        Tokens in a chunk and in a ring; 0 takes what DeepEP ships for this group size.
    reduce_tokens
        Tokens that a receiving SM adds at a time in the combine.
    cached_layout
        Whether layout and counts are known from before (backward pass, repeated routing): only the
        barriers remain.
    """

    num_sms: int = 24
    dispatch_chunk: int = 0
    combine_chunk: int = 0
    ring_tokens: int = 0
    reduce_tokens: int = 4
    cached_layout: bool = False

    def check(self) -> None:
        """See `NoOptions.check`."""
        at_least("deepep", 2, num_sms=self.num_sms)
        at_least("deepep", 1, reduce_tokens=self.reduce_tokens)
        at_least(
            "deepep", 0, dispatch_chunk=self.dispatch_chunk, combine_chunk=self.combine_chunk,
            ring_tokens=self.ring_tokens,
        )  # fmt: skip
        if self.num_sms % 2:
            message = f"option num_sms={self.num_sms} of scheme 'deepep': must be even"
            raise UserError(message)


class DeepEp(Scheme):
    """One copy per (token, GPU) through ring buffers; kernels one after the other."""

    name: ClassVar[str] = "deepep"
    summary: ClassVar[str] = "DeepEP V1 normal kernels: one copy per GPU through ring buffers"
    source: ClassVar[str] = "deepseek-ai/DeepEP dd758ca, csrc/kernels/legacy/intranode.cu"
    assumes: ClassVar[str] = "GEMMs run on all SMs, after the dispatch kernel"
    traffic: ClassVar[str] = "copy"
    Options: ClassVar[type[NoOptions]] = DeepEpOptions

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add layout, notify, dispatch, permute, experts, unpermute, cached notify, combine."""
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes
        copies = work.matrix("copies").sum(axis=0)
        rows = work.matrix("pairs").sum(axis=0)
        channels = self.options.num_sms // 2
        # Even SMs send, odd ones receive; dispatch and combine are kernels that never run at once.
        senders = machine.sm_channels("deepep-send", channels)
        receivers = machine.sm_channels("deepep-recv", channels)

        begun = self._before_dispatch(work, machine, start)
        received = self._dispatch(work, machine, senders, receivers, begun)
        permuted = machine.memory_kernel(Kind.PERMUTE, (copies + rows) * b_d, received)
        pool = machine.sm_pool("sm", machine.system.sm.num_sms)
        done = separate_kernels(machine, work, pool, permuted)
        # The caller adds the rows of its own experts, so that one row per (token, GPU) returns.
        reduced = machine.memory_kernel(Kind.UNPERMUTE, (rows + copies) * b_c, done)
        notified = machine.kernel(reduced)
        for _ in range(2):
            notified = machine.barrier(COMBINE, notified)
        return self._combine(work, machine, senders, receivers, machine.kernel(notified))

    def _shipped(self, num_ranks: int) -> tuple[int, int, int]:
        row = next((row for row in SHIPPED if num_ranks <= row[0]), SHIPPED[-1])
        options = self.options
        dispatch, combine = options.dispatch_chunk or row[1], options.combine_chunk or row[2]
        return dispatch, combine, max(options.ring_tokens or row[3], dispatch, combine)

    def _before_dispatch(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Layout and notify kernels; (rank,) tasks when the dispatch kernel runs."""
        overheads = machine.system.overheads
        if self.options.cached_layout:
            return machine.kernel(machine.barrier(DISPATCH, machine.kernel(start)))
        tokens = np.diff(work.tokens_of_rank)
        topk = work.expert_ids.shape[1]
        read = tokens * (topk * EXPERT_ID_BYTES + work.num_ranks)
        laid_out = machine.memory_kernel(Kind.LAYOUT, read, start)
        # Notify: barrier, counts to every peer, barrier, prefix sums, barrier.
        met = machine.barrier(DISPATCH, machine.kernel(laid_out))
        most = max((len(experts) for experts in work.experts_of_rank), default=0)
        counts = machine.exchange_counts(met, 4 * (work.num_ranks + most))
        met = machine.barrier(DISPATCH, machine.barrier(DISPATCH, counts))
        # The host polls a pinned counter to size the output before it can launch the dispatch.
        polled = machine.host_wait(DISPATCH, overheads.poll_pinned_ps, met)
        return machine.launch(polled)

    def _dispatch(
        self, work: LayerWork, machine: Machine, senders: Ints, receivers: Ints, begun: Ints
    ) -> Ints:
        """Dispatch kernel: (rank,) marks of its end."""
        chunk_rows, _, ring_rows = self._shipped(work.num_ranks)
        topk = work.expert_ids.shape[1]
        meta = INDEX_BYTES + topk * (EXPERT_ID_BYTES + WEIGHT_BYTES)
        channel = self._channel_of_token(work)[work.copy_token]
        chunks = ring.cut(work.copy_source, work.copy_rank, channel, chunk_rows)
        row_bytes = work.dispatch_row_bytes
        sent = ring.send(machine, DISPATCH, chunks, senders, row_bytes, begun, meta_bytes=meta)
        nbytes = chunks.rows * (row_bytes + meta)
        copied = machine.graph.add(
            len(chunks),
            resource=machine.hbm[chunks.dst],
            duration_ps=machine.system.hbm.stream_ps(2 * nbytes),
            kind=DISPATCH.memory,
            rank=chunks.dst,
            after=sent.arrived,
        )
        received = machine.graph.add(
            len(chunks),
            resource=receivers[chunks.dst, chunks.channel],
            duration_ps=machine.system.sm.copy_out_ps(nbytes),
            kind=DISPATCH.receive,
            rank=chunks.dst,
            after=copied,
        )
        machine.graph.edges(begun[chunks.dst], received)
        ring.return_room(machine, DISPATCH, chunks, sent, received, ring_rows)
        return machine.gather(
            np.concatenate((sent.send, received)), np.concatenate((chunks.src, chunks.dst)), begun
        )

    def _channel_of_token(self, work: LayerWork) -> Ints:
        """(token,): each channel takes a contiguous share of its rank's tokens."""
        channels = self.options.num_sms // 2
        first = work.tokens_of_rank[work.source_rank]
        count = np.diff(work.tokens_of_rank)[work.source_rank]
        per_channel = np.maximum(-(-count // channels), 1)
        channel: Ints = (np.arange(work.num_tokens) - first) // per_channel
        return channel

    def _combine(
        self, work: LayerWork, machine: Machine, senders: Ints, receivers: Ints, begun: Ints
    ) -> Ints:
        """Combine kernel: (rank,) marks of its end."""
        _, chunk_rows, ring_rows = self._shipped(work.num_ranks)
        graph, sm, row_bytes = machine.graph, machine.system.sm, work.combine_row_bytes
        channel = self._channel_of_token(work)
        chunks = ring.cut(work.copy_rank, work.copy_source, channel[work.copy_token], chunk_rows)
        meta = INDEX_BYTES + work.expert_ids.shape[1] * WEIGHT_BYTES
        sent = ring.send(machine, COMBINE, chunks, senders, row_bytes, begun, meta_bytes=meta)

        # The owner's receiving SM takes its channel's tokens in order, a few at a time, and needs
        # every contribution to them.
        token = np.arange(work.num_tokens)
        lane = work.source_rank * (self.options.num_sms // 2) + channel
        new_lane = np.diff(lane, prepend=-1) != 0
        place = token - np.maximum.accumulate(np.where(new_lane, token, 0))
        group = np.cumsum(place % self.options.reduce_tokens == 0) - 1
        first = np.flatnonzero(np.diff(group, prepend=-1))
        rows_in = np.bincount(group[work.copy_token], minlength=len(first))
        rows_out = np.bincount(group, minlength=len(first))
        owner = work.source_rank[first]
        added = graph.add(
            len(first),
            resource=receivers[owner, channel[first]],
            duration_ps=sm.reduce_ps(rows_in * (row_bytes + meta), rows_out * row_bytes),
            kind=COMBINE.receive,
            rank=owner,
            after=begun[owner],
        )
        needs = np.unique(group[work.copy_token] * max(len(chunks), 1) + chunks.of_row)
        needed_by, needed = np.divmod(needs, max(len(chunks), 1))
        graph.edges(sent.arrived[needed], added[needed_by])
        last_reader = np.zeros(len(chunks), np.int64)
        np.maximum.at(last_reader, needed, needed_by)
        ring.return_room(machine, COMBINE, chunks, sent, added[last_reader], ring_rows)
        return machine.gather(
            np.concatenate((sent.send, added)), np.concatenate((chunks.src, owner)), begun
        )
