"""NCCL's broadcast and reduce: chunks that pass once along a ring, from its root or to it.

A rank waits for a chunk from the one before, copies it to where it is wanted or adds its own to it,
and stores it to the next; chunks follow one another, so that all ranks are busy once the first has
come through. Both exist as rings alone. The protocol is that which the formula says is quickest.
Memory is charged where chunks come out of a FIFO, as for sends and receives: read and written by a
copy; read beside its own summand on the way of a sum, which the root writes.

Sources: NVIDIA/nccl ``src/device/broadcast.h`` and ``reduce.h`` (the order of ranks),
``src/include/collectives.h`` (chunks of one of the 8 steps of a buffer), ``src/include/device.h``
(sizes of the buffers).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from replay.model.collectives.ring_chunks import (
    LEAST_BYTES,
    STEP_OF_BUFFER,
    block_times,
    message_ps,
    most_channels,
    notice_time,
    pieces_of,
)
from replay.model.machine.times import Time

if TYPE_CHECKING:
    from hwmodel.nccl import Protocol
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine

Chain = Literal["broadcast", "reduce"]


def run(
    machine: Machine,
    kinds: PhaseKinds,
    chain: Chain,
    nbytes: int,
    root: int,
    begun: Tasks,
    *,
    channels: int = 0,
) -> Tasks:
    """Run a broadcast or a reduce: (rank,) the last task of every rank.

    Parameters
    ----------
    nbytes
        What every rank has in the end, or has a summand of.
    root
        The rank that has it first, or has the sum.
    begun
        (rank,): when each rank's kernel begins.
    channels
        Channels at most; 0 for those that NCCL opens for rings.
    """
    most = most_channels(machine)
    used = max(1, min(channels or most, most, nbytes // LEAST_BYTES))
    protocol = min(machine.system.nccl.protocols, key=lambda one: _estimate_ps(machine, one, nbytes, used))
    started = machine.delay(kinds.sync, machine.costs.library_start(protocol), begun)
    chunks = _chunks(nbytes, protocol, used)
    passing, copying = block_times(machine, protocol, int(chunks[0]), used)
    # The ring goes up from the root; a sum begins behind the root and ends at it.
    order = (root + (chain == "reduce") + machine.ranks) % machine.num_ranks
    came, done = np.repeat(started[order[:1]], len(chunks)), started.copy()
    for place, rank in enumerate(order.tolist()):
        at, following = np.full(len(chunks), rank), came
        begins: list[Ints] = []
        ends: list[Ints] = []
        if place:
            begins.append(machine.delay(kinds.receive, copying, came, at))
            touched = 3 if chain == "reduce" and rank == root else 2
            memory = machine.stream(kinds.memory, touched * chunks, at, came)
            ends += [begins[0], memory]
        if rank != order[-1]:
            block = machine.delay(kinds.send, passing, came, at)
            peer = int(order[place + 1])
            sent, following = _pass_on(machine, kinds, protocol, chunks, rank, peer, block)
            begins.append(block)
            ends.append(sent)
        for begin in begins:
            # A chunk's turn comes when the rank runs, and has copied and stored the one before.
            machine.order(started[at[:1]], begin[:1])
            for end in ends:
                machine.order(end[:-1], begin[1:])
        last = np.concatenate([end[-1:] for end in ends])
        done = machine.gather(last, np.full(len(last), rank), done)
        came = following
    return done


def _chunks(nbytes: int, protocol: Protocol, channels: int) -> Ints:
    """(chunk,): bytes of what all channels pass together."""
    count = max(1, -(-nbytes // (channels * STEP_OF_BUFFER[protocol.name])))
    return np.diff(np.arange(count + 1) * nbytes // count)[::-1]


def _pass_on(
    machine: Machine,
    kinds: PhaseKinds,
    protocol: Protocol,
    chunks: Ints,
    rank: int,
    peer: int,
    block: Ints,
) -> tuple[Ints, Ints]:
    """Store chunks to a rank: (chunk,) tasks of the last stores, and when it knows of each."""
    stored = np.asarray(protocol.stored_bytes(chunks))
    pieces, _ = pieces_of(int(stored[0]))
    of = np.repeat(np.arange(len(chunks)), pieces)
    src, dst = np.full(len(of), rank), np.full(len(of), peer)
    piece = -(-stored // pieces)
    sent, landed = machine.transfers.store(kinds, src, dst, 0, block[of], meta_bytes=piece[of])
    last = np.arange(1, len(chunks) + 1) * pieces - 1
    known = machine.delay(kinds.sync, notice_time(machine, protocol), landed[last], dst[last])
    return sent[last], known


def _estimate_ps(machine: Machine, protocol: Protocol, nbytes: int, channels: int) -> int:
    """Time on idle ports: all chunks one after the other, the last on its way through all ranks."""
    chunks = _chunks(nbytes, protocol, channels)
    passing, copying = block_times(machine, protocol, int(chunks[0]), channels)
    pieces, each = pieces_of(int(protocol.stored_bytes(int(chunks[0]))))
    of_piece, way = message_ps(machine, each)
    chunk = passing + Time(pieces * of_piece)
    hop = chunk + Time(of_piece + way) + notice_time(machine, protocol)
    hops = max(machine.num_ranks - 1, 1)
    return protocol.start_ps + int(((len(chunks) - 1) * chunk + hops * hop + copying).ps)
