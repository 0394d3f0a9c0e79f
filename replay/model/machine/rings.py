"""Chunks of rows through ring buffers in the receiver's memory (DeepEP's normal kernels).

A *lane* is one ring: source rank, destination rank, channel. An SM of the source stores chunks of
rows into the ring, an SM of the destination copies them out and returns the room. Chunks of a
lane stay in order; lanes of one SM do not wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.times import Time
from replay.model.work.ragged import cut_runs, order_by

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Pools, Ranks, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import IntsLike, Machine


@dataclass(frozen=True)
class Chunks:
    """Chunks, those of a lane in order.

    Attributes
    ----------
    src, dst, channel, rows
        (chunk,): lane and size.
    lane
        (chunk,): number of the lane.
    of_row
        (row,): the chunk each row travels in, in the order in which the rows were given.
    """

    src: Ranks
    dst: Ranks
    channel: Ints
    rows: Counts
    lane: Ints
    of_row: Ints

    def __len__(self) -> int:
        return len(self.src)


def cut(src: Ranks, dst: Ranks, channel: Ints, chunk_rows: int) -> Chunks:
    """Cut rows into chunks, lane by lane; rows of a lane keep their order.

    Parameters
    ----------
    src, dst, channel
        (row,): the lane of each row.
    chunk_rows
        Rows in a chunk; the last chunk of a lane may have fewer.
    """
    num_channels = int(channel.max(initial=0)) + 1
    num_ranks = int(max(src.max(initial=0), dst.max(initial=0))) + 1
    key = (src * num_ranks + dst) * num_channels + channel
    order = order_by(key)
    key = key[order]
    pieces = cut_runs(key, chunk_rows)
    of_row = np.empty(len(key), np.int64)
    of_row[order] = pieces.of_entry
    first = order[pieces.first]
    new_lane = np.diff(key, prepend=-1) != 0
    return Chunks(
        src=src[first],
        dst=dst[first],
        channel=channel[first],
        rows=pieces.size,
        lane=(np.cumsum(new_lane) - 1)[pieces.first],
        of_row=of_row,
    )


@dataclass(frozen=True)
class RingTasks:
    """(chunk,) tasks: the sending SM's, and the one whose end makes the chunk readable."""

    send: Ints
    arrived: Tasks


def send(
    machine: Machine,
    kinds: PhaseKinds,
    chunks: Chunks,
    servers: Ints,
    time: Time,
    row_bytes: int,
    start: Tasks,
    *,
    meta_bytes: IntsLike = 0,
) -> RingTasks:
    """Read the chunks and store them into the receivers' rings.

    Parameters
    ----------
    servers
        (chunk,): the SM, or the warps, that serve the chunk's lane and store it.
    time
        (chunk,): how long they take.
    row_bytes, meta_bytes
        Payload of a row, and what travels with it.
    start
        (rank,): when each rank's kernel runs.
    """
    stored = machine.serve(servers, time, kind=kinds.send, rank=chunks.src, after=start[chunks.src])
    # The lane's server takes them in this order anyway; as edges, bounds know of it too.
    order = np.argsort(chunks.lane, kind="stable")
    follows = np.diff(chunks.lane[order]) == 0
    machine.order(stored[order[:-1][follows]], stored[order[1:][follows]])

    nbytes = chunks.rows * (row_bytes + meta_bytes)
    machine.charge_copy(kinds, nbytes, chunks.src, stored)
    remote, num_channels = chunks.src != chunks.dst, int(chunks.channel.max(initial=0)) + 1
    landed = np.empty(len(chunks), np.int64)
    src, dst = chunks.src[remote], chunks.dst[remote]
    # Each lane has warps of its own, which hold on to what cannot leave.
    lane = (chunks.src * machine.num_ranks + chunks.dst) * num_channels + chunks.channel
    landed[remote] = machine.transfers.store(
        kinds,
        src,
        dst,
        row_bytes,
        stored[remote],
        rows=chunks.rows[remote],
        meta_bytes=meta_bytes,
        on=lane[remote],
        lanes=True,
    ).arrived
    own = ~remote
    landed[own] = stored[own]
    machine.charge_copy(kinds, nbytes[own], chunks.dst[own], stored[own])
    # The tail of the ring is stored with release order: only after the rows are acknowledged.
    costs = machine.costs
    release = Time.where(remote, costs.flag("each"), costs.poll())
    return RingTasks(stored, machine.delay(kinds.sync, release, landed, chunks.dst))


def return_room(
    machine: Machine,
    kinds: PhaseKinds,
    chunks: Chunks,
    sent: RingTasks,
    emptied_by: Ints,
    ring_rows: int,
    *,
    pools: Pools | None = None,
) -> None:
    """Give each lane a ring of `ring_rows` rows, whose room comes back after `emptied_by`.

    Parameters
    ----------
    emptied_by
        (chunk,): the task that reads the last row of the chunk out of the ring.
    pools
        (chunk,): the rings, where they are not those of all (source, destination, channel).
    """
    if not len(chunks):
        return
    if pools is None:
        rings = machine.buffers.rings(int(chunks.channel.max()) + 1, ring_rows)
        pools = rings[chunks.src, chunks.dst, chunks.channel]
    remote = chunks.src != chunks.dst
    back = Time.where(remote, machine.costs.flag(), machine.costs.poll())
    returned = machine.delay(kinds.sync, back, emptied_by, chunks.dst)
    machine.graph.take(
        sent.send,
        pools,
        chunks.rows,
        released_by=returned,
    )
