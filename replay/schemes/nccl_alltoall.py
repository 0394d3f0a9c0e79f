"""NCCL all-to-all under Megatron-LM's all-to-all token dispatcher.

Sources: Megatron-LM ``megatron/core/transformer/moe/token_dispatcher.py`` (sequence of kernels
and the synchronisation before the all-to-all); NCCL's point-to-point protocol (grouped send/recv,
channels, a FIFO of 8 slots per connection in the receiver's memory).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.compute.experts import separate_kernels
from replay.machine import rings
from replay.machine.kinds import COMBINE, DISPATCH, Kind, PhaseKinds
from replay.schemes.base import Scheme
from replay.schemes.options import Options, option
from replay.work.ragged import places

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine
    from replay.work.layer import LayerWork

PROB_BYTES = 4  # the gate weight of a pair, FP32, in an all-to-all of its own


@dataclass(frozen=True)
class NcclOptions(Options):
    """Options of the point-to-point kernel."""

    channels: int = option(
        24,
        least=1,
        help="Channels of the point-to-point kernel. Each channel occupies one SM.",
        source="a working value: NCCL chooses up to 32 on NVLink, no source gives the number here",
    )
    channels_per_peer: int = option(
        4,
        least=1,
        help="Channels that share the message to one peer.",
        source="a working value, as for channels",
    )
    slice_bytes: int = option(
        131072,
        least=1,
        unit="bytes",
        help="Data that moves through one slot before the slot is handed on.",
        source="a working value",
    )
    slots: int = option(
        8,
        least=1,
        help="Slots in the FIFO of a connection.",
        source="NCCL_STEPS",
    )


class NcclAllToAll(Scheme):
    """One row per (token, expert), counts first, host synchronisation, no overlap."""

    name = "nccl-alltoall"
    summary = "NCCL all-to-all-v of (token, expert) rows, as Megatron-LM does it"
    source = "Megatron-LM token_dispatcher.py; NCCL point-to-point protocol"
    assumes = "24 NCCL channels, of which each peer gets 4"
    traffic = "pair"
    phases_separated = False
    options: NcclOptions = NcclOptions()

    def build(self, work: LayerWork, machine: Machine, start: Ints) -> Ints:
        """Add permute, all-to-all, sort, experts, unsort, all-to-all, unpermute."""
        tokens = np.diff(work.tokens_of_rank)
        sent_rows = work.matrix("pairs").sum(axis=1)
        got_rows = work.matrix("pairs").sum(axis=0)
        b_d, b_c = work.dispatch_row_bytes, work.combine_row_bytes
        outward = (work.pair_source, work.pair_rank)
        back = outward[::-1]
        channels = self._channels(machine)

        begun = self._permuted(work, machine, (tokens + sent_rows) * b_d, start)
        arrived = self._alltoall(
            machine, DISPATCH, channels, *outward, b_d, begun, tokens=work.pair_token
        )
        if not work.is_backward:  # the gate weights travel with the rows, their gradients back
            begun = machine.kernel(arrived)
            arrived = self._alltoall(
                machine, DISPATCH, channels, *outward, PROB_BYTES, begun, rows=False
            )
        several = (
            work.num_experts > work.num_ranks
        )  # one expert per rank needs no sorting by expert
        if several:
            arrived = machine.memory_kernel(Kind.PERMUTE, 2 * got_rows * b_d, arrived)
        pool = machine.sms.pool("sm", machine.sms.count)
        done = separate_kernels(machine, work, pool, arrived)
        if several:
            done = machine.memory_kernel(Kind.UNPERMUTE, 2 * got_rows * b_c, done)

        begun = machine.kernel(done)
        arrived = self._alltoall(machine, COMBINE, channels, *back, b_c, begun)
        if work.is_backward:
            begun = machine.kernel(arrived)
            arrived = self._alltoall(
                machine, COMBINE, channels, *back, PROB_BYTES, begun, rows=False
            )
        ends = machine.memory_kernel(Kind.UNPERMUTE, (sent_rows + tokens) * b_c, arrived)
        machine.notes.follow("combined", np.arange(work.num_tokens), ends[work.source_rank])
        return ends

    def _permuted(self, work: LayerWork, machine: Machine, nbytes: Ints, start: Ints) -> Ints:
        """Count (unless the routing is known) and permute: (rank,) tasks when the rows can go."""
        if work.is_backward:
            return machine.kernel(machine.memory_kernel(Kind.PERMUTE, nbytes, start))
        tokens = np.diff(work.tokens_of_rank)
        counted = machine.memory_kernel(Kind.LAYOUT, tokens * work.num_experts, start)
        counts = machine.sync.exchange_counts(machine.kernel(counted), 4 * work.num_experts)
        waited = machine.host.wait(DISPATCH, counts)
        # The permute runs beside the counts' way to the host; both precede the all-to-all.
        permuted = machine.memory_kernel(Kind.PERMUTE, nbytes, counts)
        return machine.gather(machine.host.launch(waited), machine.ranks, permuted)

    def _channels(self, machine: Machine) -> tuple[Ints, Ints]:
        """SMs of the channels: (rank, channel) warps that send, and warps that receive."""
        channels = self.options.channels
        sms = machine.sms.split(f"scheme {self.name!r}", {"channels": channels})
        return sms.channels("nccl-send", channels), sms.channels(
            "nccl-recv", channels, on="nccl-send"
        )

    def _alltoall(
        self,
        machine: Machine,
        kinds: PhaseKinds,
        channels: tuple[Ints, Ints],
        src: Ints,
        dst: Ints,
        row_bytes: int,
        begun: Ints,
        rows: bool = True,
        tokens: Ints | None = None,
    ) -> Ints:
        """One all-to-all-v kernel: (rank,) marks when a rank's sends and receives are through.

        Rows of `row_bytes` go from `src` to `dst`; the own rank's rows go through the same kernel
        as a copy in memory. `rows` tells token rows from other data, which is not payload;
        `tokens` are the rows' tokens, where their way begins here.
        """
        options, n = self.options, machine.num_ranks
        senders, receivers = channels
        pair = src * n + dst
        order = np.argsort(pair, kind="stable")
        count = np.bincount(pair, minlength=n * n)
        share = places(count) * options.channels_per_peer // np.maximum(count[pair[order]], 1)
        distance = (dst[order] - src[order]) % n
        channel = (distance * options.channels_per_peer + share) % options.channels
        slice_rows = max(1, options.slice_bytes // row_bytes)
        chunks = rings.cut(src[order], dst[order], channel, slice_rows)
        payload, meta = (row_bytes, 0) if rows else (0, row_bytes)
        sent = rings.send(
            machine, kinds, chunks, senders[chunks.src, chunks.channel],
            machine.costs.sm_store(chunks.rows * row_bytes), payload, begun,
            meta_bytes=meta, contiguous=not rows,
        )  # fmt: skip
        if tokens is not None:
            machine.notes.follow("sent", tokens[order], sent.send[chunks.of_row])
        copied = machine.serve(
            receivers[chunks.dst, chunks.channel], machine.costs.sm_copy(chunks.rows * row_bytes),
            kind=kinds.receive, rank=chunks.dst, after=sent.arrived,
        )  # fmt: skip
        machine.graph.edges(begun[chunks.dst], copied)
        rings.return_room(machine, kinds, chunks, sent, copied, options.slots * slice_rows)
        return machine.gather(
            np.concatenate((sent.send, copied)), np.concatenate((chunks.src, chunks.dst)), begun
        )
