"""MoE-Hub's way out of a GPU: SMs store rows, the hub queues them, merges them and sends them.

With the packet manager every destination has a queue of full packets (128 bytes); the sectors of a
row (32 bytes) are merged there, and a row's last packet, if it is not full, waits for a timer. The
uplink serves the destinations in turn. Without it one plain queue holds the sectors of all
destinations, and each travels as a packet of its own. A store that finds no room waits in its SM.

Both meet the switch's input buffers as every message does (`replay.model.machine.input_buffers`).

The grain is a piece of a row of about `piece_bytes`; a last packet that waits for the timer is a
piece of its own. Pieces of different rows interleave, packets do not. A queue holds at least one
row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.arrays import Ints, Pools, Ranks, Tasks
    from replay.model.machine.block_scheduler import BlockScheduler
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine
    from replay.model.machine.transfers import FanOut

SECTOR_BYTES = 32  # what a store of a warp is made of in the caches and on its way to the hub
STORES_FIRST = -1  # blocks that store go before blocks that compute
BYPASS = -1  # acknowledgements, and packets whose timer has run out, wait for nobody's turn


@dataclass(frozen=True)
class RowsInFlight:
    """Rows on their way.

    Attributes
    ----------
    claims, stored
        (row,): blocks that store, and tasks after which the row has left its SM.
    pieces
        (row, piece): tasks after which pieces of the row are visible at the destination, -1 where
        it has fewer.
    packets
        (row, piece): packets of each piece.
    """

    claims: Ints
    stored: Ints
    pieces: Ints
    packets: Ints


class Egress:
    """The hubs' egress in one layer.

    Parameters
    ----------
    machine, blocks
        The machine, and who holds its SMs.
    pool
        (rank,): the SMs.
    merges
        Whether the packet manager is there.
    queue_packets
        Packets that a destination's queue holds; the plain queue has as many sectors as all of
        them have room for.
    timer
        How long a packet waits to become full.
    piece_bytes
        About how many bytes of a row travel as one message.
    rows
        Payload and other bytes of the rows that will be sent, one entry per kind of row.
    """

    def __init__(
        self,
        machine: Machine,
        blocks: BlockScheduler,
        pool: Pools,
        *,
        merges: bool,
        queue_packets: int,
        timer: Time,
        piece_bytes: int,
        rows: Sequence[tuple[int, int]],
    ) -> None:
        self._machine, self._blocks, self._pool = machine, blocks, pool
        self._merges, self._timer = merges, timer
        n, transfers = machine.num_ranks, machine.transfers
        self._packet_bytes = transfers.packet_bytes if merges else SECTOR_BYTES
        self._piece_bytes = piece_bytes
        largest_row = max(payload + meta for payload, meta in rows)
        if merges:
            depth = max(queue_packets, int(transfers.packets(largest_row)))
            self._queues = machine.buffers.pools("egress queue", depth, n).reshape(n, n)
            self._entries = machine.sms.units("egress entry", n, "fifo")
        else:
            sectors = queue_packets * (n - 1) * (transfers.packet_bytes // SECTOR_BYTES)
            depth = max(sectors, -(-largest_row // SECTOR_BYTES))
            self._queues = np.repeat(machine.buffers.pools("egress queue", depth)[:, None], n, axis=1)
            self._entries = np.repeat(machine.sms.units("egress entry", 1, "fifo"), n, axis=1)
        # What one destination's queue holds is one line for the uplink.
        self._lines = [
            machine.buffers.reserve_unlisted(f"egress line {{rank}}->{dst}", 1) for dst in range(n) if merges
        ]

    def send(
        self,
        kinds: PhaseKinds,
        src: Ranks,
        dst: Ranks,
        row_bytes: int,
        after: Tasks | None,
        *,
        meta_bytes: int = 0,
        resident: Ints | None = None,
        making: Time = NO_TIME,
    ) -> RowsInFlight:
        """Store rows to their destinations, or into the sender's own memory.

        Parameters
        ----------
        src, dst
            (row,) ranks.
        row_bytes, meta_bytes
            Payload of a row, and what travels behind it.
        after
            (row,): when the block that stores is offered; None where a gate will say.
        resident
            (row,): see `BlockScheduler.hold`.
        making
            (row,) or the same for all: what the block does before it stores.
        """
        machine = self._machine
        far = np.flatnonzero(src != dst)
        total = row_bytes + meta_bytes
        stored = machine.serve(
            self._pool[src],
            machine.costs.sm_store(np.full(len(src), total)) + making,
            late=Time.where(src == dst, machine.costs.visible(), NO_TIME),
            priority=STORES_FIRST,
            kind=kinds.send,
            rank=src,
        )
        first = stored.copy()
        first[far] = machine.serve(  # waits for room in the queue, in its SM
            self._entries[src[far], dst[far]], NO_TIME, kind=kinds.sync, rank=src[far]
        )
        machine.order(first[far], stored[far])
        claims = self._blocks.hold(first, stored, src, after, priority=STORES_FIRST, resident=resident)
        cut = self._cut(row_bytes, meta_bytes)
        pieces = np.full((len(src), len(cut)), -1, np.int64)
        packets = np.zeros((len(src), len(cut)), np.int64)
        pieces[:, 0], packets[:, 0] = stored, 1  # in its own memory a row is one piece
        # All pieces of the rows go to the same destinations.
        fan_out = machine.transfers.fan_out(src[far], dst[far])
        for index, (payload, meta) in enumerate(cut):
            ready, is_late = stored[far], self._merges and (payload + meta) % self._packet_bytes
            if is_late:
                ready = machine.delay(kinds.sync, self._timer, ready, src[far])
            pieces[far, index] = self._piece(
                kinds, src[far], dst[far], payload, meta, ready, first[far], bool(is_late), fan_out
            )
            packets[far, index] = machine.transfers.packets(payload + meta, self._packet_bytes)
        machine.notes.count("egress sectors", src[far], -(-total // SECTOR_BYTES))
        machine.notes.count("egress packets", src[far], packets[far].sum(axis=1))
        machine.notes.ratio("sectors a packet", "egress sectors", "egress packets")
        return RowsInFlight(claims, stored, pieces, packets)

    def _cut(self, row_bytes: int, meta_bytes: int) -> list[tuple[int, int]]:
        """Payload and other bytes of each piece of a row, the last packet apart if it must wait."""
        total = row_bytes + meta_bytes
        full = total - total % self._packet_bytes if self._merges else total
        packets = -(-full // self._packet_bytes)
        count = min(max(1, round(full / self._piece_bytes)), max(1, packets))
        step = -(-packets // count) * self._packet_bytes
        bounds = sorted({*range(0, full, max(1, step)), full, total})
        payload = np.diff(np.minimum(bounds, row_bytes)).tolist()
        return list(zip(payload, (np.diff(bounds) - payload).tolist(), strict=True))

    def _piece(
        self,
        kinds: PhaseKinds,
        src: Ranks,
        dst: Ranks,
        payload: int,
        meta: int,
        ready: Tasks,
        room: Ints,
        is_late: bool,
        fan_out: FanOut,
    ) -> Ints:
        """One piece of every row over its two links, with the room that it takes."""
        graph, transfers = self._machine.graph, self._machine.transfers
        up, down = transfers.store(
            kinds,
            src,
            dst,
            payload,
            ready,
            fan_out=fan_out,
            meta_bytes=meta,
            packet_bytes=self._packet_bytes,
            priority=BYPASS if is_late else 0,
            ack_priority=BYPASS,
        )
        packets = transfers.packets(payload + meta, self._packet_bytes)
        graph.take(room, self._queues[src, dst], packets, released_by=up)
        if self._lines and not is_late:
            graph.take(up, np.array(self._lines)[dst, src])
        return down
