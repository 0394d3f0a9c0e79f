"""DeepEP's normal dispatch kernel between nodes.

A channel has two SMs. On one, seven warps copy tokens, each token once for every node that has an
expert of it, into send buffers (or, for its own node, straight into the receive buffer); a warp
that coordinates puts whole chunks through the NIC, to the GPU of the same index. On the other SM
eight warps forward, one for each GPU of the node: each walks through all chunks that come, from
whichever node, looks at every row for whether its GPU wants it, and copies it through shared memory
into that GPU's ring. On the first SM again, eight warps copy out of the rings of the eight GPUs.

Rings of the network return room chunk by chunk when all eight warps have passed; rings inside the
node when their rows are copied out. Before the rows, a message per (node, channel) says how many
they will be.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode.cu`` (``dispatch``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine import rings
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.times import NO_TIME, Time
from replay.model.work.ragged import cut_runs, places_in_runs
from replay.schemes.ep.deepep.crossings import Crossings, NormalKernel
from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.deepep.transport import WarpTransport, others

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.machine import Machine

SENDER_WARPS = 7  # kNumDispatchRDMASenderWarps
UNROLL = 5  # loads of a lane in flight (UNROLLED_WARP_COPY)
META_BYTES, ID_BYTES, WEIGHT_BYTES = 8, 4, 4  # SourceMeta; expert ids and weights of a row
ALIGNMENT = 16
COUNTS = 2 * NODE_GPUS + 2  # of rows, in the message before them
COUNT_BYTES = 4
WAYS = (Kind.SIGNAL_UP, Kind.SIGNAL_DOWN)


def row_bytes(payload: int, beside: int) -> tuple[int, int]:
    """Payload of a row, and what travels beside it until the row is aligned."""
    return payload, -(-(payload + beside) // ALIGNMENT) * ALIGNMENT - payload


def dispatch(kernel: NormalKernel, transport: WarpTransport) -> Ints:
    """Add the dispatch kernel: (rank,) marks of its end."""
    work, machine, config, channels, sms, begun = kernel
    crossings = Crossings.of_kernel(kernel)
    row = row_bytes(
        work.dispatch_row_bytes,
        META_BYTES + work.expert_ids.shape[1] * (ID_BYTES + WEIGHT_BYTES),
    )
    counted = _counts(machine, transport, channels, begun)
    sent, ready = _send(kernel, transport, crossings)
    # Tokens are read, and written into the buffer that a card reads, or that of its own node.
    machine.charge_copy(DISPATCH, 2 * crossings.rows * sum(row), crossings.owner, ready)
    ends = crossings.owner, crossings.forwarder
    posting = sms.channels("deepep-rdma-post", channels, on="deepep-rdma-send")
    posted, arrived = transport.cross(
        machine,
        DISPATCH,
        crossings,
        ends,
        row,
        ready,
        posting[crossings.owner, crossings.channel],
    )
    forwarded = _forward(kernel, crossings, row, arrived, counted[1])
    emptied = machine.join(forwarded.passed, forwarded.chunk, crossings.forwarder, arrived)
    # A row waits for the room of one before it; a warp, for that of all rows of its token.
    room = crossings.room_from(np.arange(len(crossings.token)), config.rdma_ring)
    taken = room >= 0
    back = transport.room_back(machine, DISPATCH, WAYS, crossings, ends, emptied, np.unique(room[taken]))
    machine.order(back[room[taken]], sent[crossings.token[taken]])
    return machine.gather(
        np.concatenate((sent, posted, forwarded.passed, forwarded.received)),
        np.concatenate((work.source_rank, crossings.owner, forwarded.by, forwarded.at)),
        counted[0],
    )


def _counts(machine: Machine, transport: WarpTransport, channels: int, begun: Tasks) -> tuple[Ints, Ints]:
    """Say how many rows will come: (rank,) and (rank, channel) marks when that is known."""
    ranks, (rank, to) = machine.ranks, others(machine)
    rank, to = np.repeat(rank, channels), np.repeat(to, channels)
    channel = np.tile(np.arange(channels), len(rank) // channels)
    come = transport.announce(machine, WAYS, (rank, to), channel, COUNTS * COUNT_BYTES, begun[rank])
    of = np.repeat(ranks, channels)
    known = machine.join(come, to * channels + channel, of, begun[of])
    return machine.gather(known, of, begun), known.reshape(-1, channels)


def _send(kernel: NormalKernel, transport: WarpTransport, crossings: Crossings) -> tuple[Ints, Ints]:
    """Copy tokens: (token,) tasks, and (chunk,) marks when all rows of a chunk are copied.

    Every warp first tells nodes how many rows will come (`_counts`), which they wait for together;
    then it looks at all tokens of the channel, and copies its own.
    """
    work, machine, _, channels, sms, begun = kernel
    costs, rank, channel = machine.costs, work.source_rank, kernel.channel
    place = places_in_runs(rank * channels + channel)
    copies = np.zeros(work.num_tokens, np.bool_)
    copies[crossings.token] = True
    looks = np.minimum(place + 1, SENDER_WARPS)
    a_row = costs.warp_copy(work.dispatch_row_bytes, unroll=UNROLL)
    told = machine.delay(DISPATCH.sync, transport.issue(machine) * -(-machine.num_domains // SENDER_WARPS), begun)
    warps = sms.warp_lanes("deepep-rdma-send", channels, SENDER_WARPS)
    sent = machine.serve(
        warps[rank, channel, place % SENDER_WARPS],
        costs.warp_scan(looks) + Time.where(copies, a_row, NO_TIME),
        kind=Kind.DISPATCH_SEND,
        rank=rank,
        after=told[rank],
    )
    machine.notes.follow("sent", crossings.token, sent[crossings.token])
    ready = machine.join(sent[crossings.token], crossings.chunk, crossings.owner, begun[crossings.owner])
    return sent, ready


class _ForwardedRows(NamedTuple):
    """Rows that forwarding warps have passed on.

    Attributes
    ----------
    passed, chunk, by
        (task,): a warp has passed rows of a chunk; the chunk; the rank.
    received, at
        (piece,): rows are copied out; the rank.
    """

    passed: Ints
    chunk: Ints
    by: Ints
    received: Ints
    at: Ints


def _forward(
    kernel: NormalKernel, crossings: Crossings, row: tuple[int, int], arrived: Tasks, counted: Ints
) -> _ForwardedRows:
    """Walk through chunks, copy rows into rings of the node's GPUs, and out of these.

    Parameters
    ----------
    row
        Payload of a row, and what travels beside it.
    arrived, counted
        (chunk,) and (rank, channel): it is there, its rows are known.
    """
    work, machine, config, channels, sms, begun = kernel
    costs, domains = machine.costs, machine.domains
    num_chunks = len(crossings.rows)
    # Copies by (chunk, GPU of its node), in the order of rows.
    of_row = crossings.of_copy
    lane = crossings.chunk[of_row] * NODE_GPUS + domains.local(work.copy_rank)
    order = np.lexsort((crossings.place[of_row], lane))
    lane, copy = lane[order], order
    cut = cut_runs(lane, config.chunk)
    first = cut.first
    chunk, local = np.divmod(lane[first], NODE_GPUS)
    # Rows looked at for a piece: from behind the one before to its last, or to the chunk's end.
    last = crossings.place[of_row[copy[np.append(first[1:], len(copy))[: len(first)] - 1]]] + 1
    is_last = np.append(lane[first][1:] != lane[first][:-1], True)[: len(first)]
    last = np.where(is_last, crossings.rows[chunk], last)
    is_first = np.append(True, lane[first][1:] != lane[first][:-1])[: len(first)]
    looks = last - np.where(is_first, 0, np.append(0, last[:-1])[: len(first)])

    # Rows have just come, and are in the cache: what is read of each to look at it, and all of it.
    look = costs.warp_scan(1) + costs.cache_load()
    tail = costs.poll() + costs.cache_load()  # how far rows have come, and then all of the rest
    lanes = sms.warp_lanes("deepep-forward", channels, NODE_GPUS)
    by, to = crossings.forwarder[chunk], work.copy_rank[copy[first]].astype(np.int64)
    # A row is loaded, stored, and waited for until it is there, before the next is.
    through = costs.cache_load() + Time.where(by != to, costs.write_through(), costs.visible())
    pieces = rings.Chunks(
        by,
        to,
        crossings.channel[chunk],
        cut.size,
        (crossings.lane[chunk] * NODE_GPUS + local),
        cut.of_entry,
    )
    sent = rings.send(
        machine,
        DISPATCH,
        pieces,
        lanes[by, pieces.channel, local],
        tail + look * looks + through * pieces.rows,
        row[0],
        begun,
        meta_bytes=row[1],
    )
    machine.order(arrived[chunk], sent.send)
    machine.order(counted[by, pieces.channel], sent.send)

    # Nothing for a GPU: its warp looks all the same.
    wanted = np.zeros(num_chunks * NODE_GPUS, np.bool_)
    wanted[lane[first]] = True
    nothing, other = np.divmod(np.flatnonzero(~wanted), NODE_GPUS)
    idle = crossings.forwarder[nothing]
    looked = machine.serve(
        lanes[idle, crossings.channel[nothing], other],
        look * crossings.rows[nothing],
        kind=Kind.DISPATCH_SEND,
        rank=idle,
        after=arrived[nothing],
    )
    machine.order(counted[idle, crossings.channel[nothing]], looked)
    received = _receive(kernel, row, pieces, sent)
    return _ForwardedRows(
        np.concatenate((sent.send, looked)),
        np.concatenate((chunk, nothing)),
        np.concatenate((by, idle)),
        received,
        to,
    )


def _receive(kernel: NormalKernel, row: tuple[int, int], pieces: rings.Chunks, sent: rings.RingTasks) -> Tasks:
    """Copy rows out of rings, with their ids and weights: (piece,) tasks."""
    _, machine, config, channels, sms, begun = kernel
    costs = machine.costs
    moved = 2 * pieces.rows * sum(row)
    copied = machine.stream(DISPATCH.memory, moved, pieces.dst, sent.arrived)
    receivers = sms.warp_lanes("deepep-recv", channels, NODE_GPUS, on="deepep-rdma-send")
    # Its source, the row through shared memory, and then its ids, one load after the other.
    a_row = costs.memory_load() + costs.cache_load() * 3
    received = machine.serve(
        receivers[pieces.dst, pieces.channel, machine.domains.local(pieces.src)],
        a_row * pieces.rows,
        kind=DISPATCH.receive,
        rank=pieces.dst,
        after=copied,
    )
    machine.order(begun[pieces.dst], received)
    lane = (pieces.src * machine.num_ranks + pieces.dst) * channels + pieces.channel
    pools = machine.buffers.lane_rings("nvlink dispatch", lane, config.ring)
    rings.return_room(machine, DISPATCH, pieces, sent, received, config.ring, pools=pools)
    return received
