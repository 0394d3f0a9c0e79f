"""DeepEP, first version, normal kernels inside one NVLink domain.

Traffic: every token travels once to each other GPU that has at least one of its experts, and once
back, however many of its experts that GPU has. With r(t) the number of those GPUs for token t, B_d
and B_c the bytes of a row out and back (`LayerWork.dispatch_row_bytes`, `combine_row_bytes`), and
In(g) the copies that GPU g receives of other GPUs' tokens, the payload of GPU g's port is

    dispatch: up B_d x sum of r(t) over g's tokens, down B_d x In(g)
    combine:  up B_c x In(g), down B_c x sum of r(t) over g's tokens

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/intranode.cu`` and the legacy buffer:
one copy per (token, GPU); channels of one sending and one receiving SM; chunks stored into a ring
on the receiver, which copies them out and returns the room; in the combine each GPU first adds
the rows of its own experts, and the owner's receiving SMs add what comes from the GPUs in FP32.

A block's 24 warps are split evenly over the peers, and each group looks at every token of its
channel for the ones that go to its peer. A group's time is that of its loop (tokens looked at,
rows copied in rounds of a few loads), so a channel has a rate of its own long before links or
memory do; measured times step up where a channel's tokens no longer fit its adding warps at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import separate_kernels
from replay.machine import rings
from replay.machine.kinds import COMBINE, DISPATCH, Kind
from replay.schemes.base import Scheme
from replay.schemes.options import Options, option
from replay.work.ragged import places, places_in_runs

if TYPE_CHECKING:
    from replay.machine.kinds import PhaseKinds
    from replay.machine.machine import Ints, Machine
    from replay.machine.sms import Split
    from replay.work.layer import LayerWork

# Configurations shipped with DeepEP, by group size: (up to ranks, dispatch chunk, combine chunk,
# ring), chunks and ring in tokens. Between the listed sizes the next larger one is taken.
SHIPPED = ((2, 24, 24, 256), (8, 6, 4, 256), (16, 36, 4, 288), (64, 32, 1, 288))

BLOCK_WARPS = 24  # 768 threads
DISPATCH_UNROLL, COMBINE_UNROLL = 5, 4  # loads of a lane in flight (UNROLLED_WARP_COPY)
STAGES = 2  # a received row is copied in two halves, each loaded and stored before the next

PERMUTED_LAYOUTS = ("plain", "contiguous")  # a masked buffer is what low-latency kernels fill
INDEX_BYTES = 4  # source index of a row
EXPERT_ID_BYTES = 8
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class DeepEpOptions(Options):
    """Options of the normal kernels and of the experts' GEMMs behind them."""

    num_sms: int = option(
        24,
        least=2,
        multiple_of=2,
        help="SMs of the dispatch kernel and of the combine kernel. Half of them send.",
        source="default of DeepEP's published tables",
    )
    dispatch_chunk: int = option(
        0,
        least=0,
        unit="tokens",
        help="Tokens in a chunk of the dispatch. 0 takes what DeepEP ships for the group size.",
        source="deepseek-ai/DeepEP, the configurations it ships",
    )
    combine_chunk: int = option(
        0,
        least=0,
        unit="tokens",
        help="Tokens in a chunk of the combine. 0 takes what DeepEP ships for the group size.",
        source="deepseek-ai/DeepEP, the configurations it ships",
    )
    ring_tokens: int = option(
        0,
        least=0,
        unit="tokens",
        help="Tokens in a ring. 0 takes what DeepEP ships for the group size.",
        source="deepseek-ai/DeepEP, the configurations it ships",
    )
    cached_layout: bool = option(
        False,
        help="Whether layout and counts are known from before, as in a backward pass or with "
        "repeated routing. Then only the barriers remain.",
        source="a layer whose routing is new",
    )
    layout: str = option(
        "plain",
        choices=PERMUTED_LAYOUTS,
        help="How received rows lie before the experts' GEMMs. plain leaves no gaps; contiguous "
        "pads each expert to the height of a tile, as DeepGEMM's kernel for prefill wants it.",
        source="see replay.compute.experts",
    )


class DeepEp(Scheme):
    """One copy per (token, GPU) through ring buffers; kernels one after the other."""

    name = "deepep"
    summary = "DeepEP V1 normal kernels: one copy per GPU through ring buffers"
    source = "deepseek-ai/DeepEP dd758ca, csrc/kernels/legacy/intranode.cu"
    assumes = "GEMMs run on all SMs, after the dispatch kernel"
    traffic = "copy"
    options: DeepEpOptions = DeepEpOptions()
    alike: int = 1
    """Tokens that each token of the routing stands for. 1 is exact; validation takes a coarser
    grain for the kernels alone with many thousand tokens per rank."""

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add layout, notify, dispatch, permute, experts, unpermute, cached notify, combine."""
        options = self.options
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes
        copies = work.matrix("copies").sum(axis=0)
        rows = work.matrix("pairs").sum(axis=0)
        received = self.dispatch(work, machine, start)
        permuted = machine.memory_kernel(Kind.PERMUTE, (copies + rows) * b_d, received)
        pool = machine.sms.pool("sm", machine.sms.count)
        done = separate_kernels(machine, work, pool, permuted, layout=options.layout)
        # The caller adds the rows of its own experts, so that one row per (token, GPU) returns.
        reduced = machine.memory_kernel(Kind.UNPERMUTE, (rows + copies) * b_c, done)
        return self.combine(work, machine, reduced)

    def dispatch(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add layout (unless cached), notify and dispatch kernels: (rank,) marks of the end."""
        return self._dispatch(work, machine, self._before_dispatch(work, machine, start))

    def combine(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add cached notify and combine kernels: (rank,) marks of the end."""
        return self._combine(work, machine, self._cached_notify(machine, COMBINE, start))

    def _cached_notify(self, machine: Machine, kinds: PhaseKinds, start: Ints) -> Ints:
        """A kernel that clears the rings' counters between two barriers; (rank,) tasks."""
        notified = machine.kernel(start)
        for _ in range(2):
            fenced = machine.delay(kinds.sync, machine.costs.fence(), notified)
            notified = machine.sync.barrier(kinds, fenced)
        return machine.kernel(notified)

    def _sms(self, machine: Machine) -> Split:
        """SMs of one of the two kernels, which follow one another."""
        return machine.sms.split(f"scheme {self.name!r}", {"num_sms": self.options.num_sms})

    def _shipped(self, num_ranks: int) -> tuple[int, int, int]:
        row = next((row for row in SHIPPED if num_ranks <= row[0]), SHIPPED[-1])
        options = self.options
        dispatch, combine = options.dispatch_chunk or row[1], options.combine_chunk or row[2]
        dispatch, combine = max(dispatch, self.alike), max(combine, self.alike)
        return dispatch, combine, max(options.ring_tokens or row[3], dispatch, combine)

    def _chunks(self, src: Ints, dst: Ints, channel: Ints, chunk_rows: int) -> rings.Chunks:
        """Chunks of the copies; the sizes count every token that one stands for."""
        chunks = rings.cut(src, dst, channel, chunk_rows // self.alike)
        return replace(chunks, rows=chunks.rows * self.alike)

    def _before_dispatch(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Layout and notify kernels; (rank,) tasks when the dispatch kernel runs."""
        if self.options.cached_layout or work.is_backward:
            return self._cached_notify(machine, DISPATCH, start)
        tokens = np.diff(work.tokens_of_rank) * self.alike
        topk = work.expert_ids.shape[1]
        read = tokens * (topk * EXPERT_ID_BYTES + work.num_ranks)
        laid_out = machine.memory_kernel(Kind.LAYOUT, read, start)
        # Notify: barrier, counts to every peer, barrier, prefix sums, barrier.
        met = machine.sync.barrier(DISPATCH, machine.kernel(laid_out))
        most = max((len(experts) for experts in work.experts_of_rank), default=0)
        counts = machine.sync.exchange_counts(met, 4 * (work.num_ranks + most))
        met = machine.sync.barrier(DISPATCH, machine.sync.barrier(DISPATCH, counts))
        # The host polls a pinned counter to size the output before it can launch the dispatch.
        polled = machine.host.poll(DISPATCH, met)
        return machine.host.launch(polled)

    def _dispatch(self, work: LayerWork, machine: Machine, begun: Ints) -> Ints:
        """Dispatch kernel: (rank,) marks of its end."""
        chunk_rows, _, ring_rows = self._shipped(work.num_ranks)
        costs, row_bytes, n = machine.costs, work.dispatch_row_bytes, work.num_ranks
        sms = self._sms(machine)
        meta = INDEX_BYTES + work.expert_ids.shape[1] * (EXPERT_ID_BYTES + WEIGHT_BYTES)
        channel = self._channel_of_token(work)
        chunks = self._chunks(
            work.copy_source, work.copy_rank, channel[work.copy_token], chunk_rows
        )
        # Warps of a group share its rows; every warp looks at all tokens of the channel.
        readers = len(work.copy_token) / max(work.num_tokens, 1)
        looked_at = self._tokens_up_to(work, channel, chunks) * self.alike
        a_row = costs.warp_copy(row_bytes, unroll=DISPATCH_UNROLL, readers=readers)
        busy = costs.warp_scan(looked_at * -(-n // BLOCK_WARPS))
        busy += a_row * -(-chunks.rows * n // BLOCK_WARPS)
        senders = sms.warp_lanes("deepep-send", self.options.num_sms // 2, n)
        sent = rings.send(
            machine, DISPATCH, chunks, senders[chunks.src, chunks.channel, chunks.dst], busy,
            row_bytes, begun, meta_bytes=meta,
        )  # fmt: skip
        machine.notes.follow("sent", work.copy_token, sent.send[chunks.of_row])
        moved = 2 * chunks.rows * (row_bytes + meta)
        copied = machine.stream(DISPATCH.memory, moved, chunks.dst, sent.arrived)
        receivers = sms.warp_lanes("deepep-recv", self.options.num_sms // 2, n)
        a_row = (costs.memory_load() + costs.cache_load()) * STAGES
        received = machine.serve(
            receivers[chunks.dst, chunks.channel, chunks.src],
            a_row * -(-chunks.rows * n // BLOCK_WARPS),
            kind=DISPATCH.receive, rank=chunks.dst, after=copied,
        )  # fmt: skip
        machine.graph.edges(begun[chunks.dst], received)
        rings.return_room(machine, DISPATCH, chunks, sent, received, ring_rows)
        return machine.gather(
            np.concatenate((sent.send, received)), np.concatenate((chunks.src, chunks.dst)), begun
        )

    def _tokens_up_to(self, work: LayerWork, channel: Ints, chunks: rings.Chunks) -> Ints:
        """(chunk,): tokens of the channel looked at from the end of the chunk before to its end."""
        lane = work.source_rank * (self.options.num_sms // 2) + channel
        place = places_in_runs(lane)
        last = np.zeros(len(chunks), np.int64)
        np.maximum.at(last, chunks.of_row, place[work.copy_token] + 1)
        before = np.concatenate(([0], last[:-1]))
        is_first = np.diff(chunks.lane, prepend=-1) != 0
        looked_at: Ints = last - np.where(is_first, 0, before)
        return looked_at

    def _channel_of_token(self, work: LayerWork) -> Ints:
        """(token,): each channel takes a contiguous share of its rank's tokens."""
        channels = self.options.num_sms // 2
        tokens = np.diff(work.tokens_of_rank)
        per_channel = np.maximum(-(-tokens // channels), 1)[work.source_rank]
        channel: Ints = places(tokens) // per_channel
        return channel

    def _combine(self, work: LayerWork, machine: Machine, begun: Ints) -> Ints:
        """Combine kernel: (rank,) marks of its end."""
        _, chunk_rows, ring_rows = self._shipped(work.num_ranks)
        costs, row_bytes, n = machine.costs, work.combine_row_bytes, work.num_ranks
        sms = self._sms(machine)
        channels = self.options.num_sms // 2
        channel = self._channel_of_token(work)
        chunks = self._chunks(
            work.copy_rank, work.copy_source, channel[work.copy_token], chunk_rows
        )
        meta = INDEX_BYTES + work.expert_ids.shape[1] * WEIGHT_BYTES
        a_row = costs.warp_copy(row_bytes, unroll=COMBINE_UNROLL)
        senders = sms.warp_lanes("deepep-send", channels, n)
        sent = rings.send(
            machine, COMBINE, chunks, senders[chunks.src, chunks.channel, chunks.dst],
            a_row * -(-chunks.rows * n // BLOCK_WARPS), row_bytes, begun, meta_bytes=meta,
        )  # fmt: skip

        # The owner's receiving SM adds its channel's tokens in order, a warp for each token.
        waiting = np.minimum(np.bincount(chunks.lane, chunks.rows), ring_rows).sum() / n
        sources = np.bincount(work.copy_token, minlength=work.num_tokens)
        adders = sms.channels("deepep-add", channels)
        a_sum = costs.warps_add(
            sources, row_bytes, num_warps=BLOCK_WARPS - 1, waiting_bytes=int(waiting) * row_bytes
        )
        added = machine.serve(
            adders[work.source_rank, channel], a_sum * self.alike,
            late=costs.warps_add_late(sources, row_bytes),
            kind=COMBINE.receive, rank=work.source_rank, after=begun[work.source_rank],
        )  # fmt: skip
        machine.graph.edges(sent.arrived[chunks.of_row], added[work.copy_token])
        machine.notes.follow("combined", np.arange(work.num_tokens), added)
        last_reader = np.zeros(len(chunks), np.int64)
        np.maximum.at(last_reader, chunks.of_row, work.copy_token)
        rings.return_room(machine, COMBINE, chunks, sent, added[last_reader], ring_rows)
        return machine.gather(
            np.concatenate((sent.send, added)),
            np.concatenate((chunks.src, work.source_rank)),
            begun,
        )
