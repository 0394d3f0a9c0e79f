"""NCCL's grouped sends and receives: an all-to-all of any sizes, between any nodes.

What one rank sends another is cut into parts, one a channel, and each part into chunks. A channel
is a block of each rank. Some of its warps store a chunk into the connection's FIFO, in the
receiver's memory; after its last byte the receiver's warps learn of it, copy it out and return its
room. How many channels a pair gets, and by which protocol it sends, follows from its bytes alone,
so that the pairs of one kernel differ where their bytes do. Under protocol LL the receiver copies
while the data come. A rank's own share is copied in memory.

Chunks for another node are stored into a buffer from which a network card sends them; the rest is
`replay.model.collectives.proxies`.

Sources, all of NVIDIA/nccl: ``src/device/sendrecv.h`` (warps that send and warps that receive) and
``prims_simple.h``, ``prims_ll.h``; `replay.model.collectives.pair_rules` for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.collectives.pair_rules import PairRules, Parcels, cut, cut_pairs, up
from replay.model.collectives.proxies import CrossingTasks, NodeCrossing, cross, return_room
from replay.model.machine.communicators import communicators
from replay.model.machine.times import Time
from replay.model.work.ragged import firsts, places

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Ints, Ranks, Tasks
    from replay.model.machine.communicators import Group
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.machine.machine import Machine


@dataclass(frozen=True)
class ExchangeTasks:
    """Tasks of an all-to-all.

    Attributes
    ----------
    done
        (rank,): marks when a rank's sends and receives are through.
    """

    done: Ints
    _own: Ints
    _sent: Ints
    _parcels: Parcels

    def leaves(self, src: Ranks, dst: Ranks, offset: Ints) -> Ints:
        """Task in which each byte (byte,) leaves, `offset` bytes into what `src` sends `dst`."""
        parcels, num_ranks = self._parcels, len(self.done)
        if not len(self._sent):
            return self._own[src]
        width = int(max(offset.max(initial=0), parcels.offset.max())) + 1
        lane = parcels.lane_of_piece
        place = (parcels.src[lane] * num_ranks + parcels.dst[lane]) * width + parcels.offset
        order = place.argsort(kind="stable")
        wanted = (src * num_ranks + dst) * width + offset
        piece = order[place[order].searchsorted(wanted, "right") - 1]
        return np.where(src == dst, self._own[src], self._sent[piece])


def all_to_all(
    machine: Machine,
    kinds: PhaseKinds,
    channels: Ints,
    rules: PairRules,
    nbytes: Bytes,
    begun: Tasks,
    *,
    payload: bool,
    group: Group = "all",
) -> ExchangeTasks:
    """Send to, and receive from, every peer at once.

    Parameters
    ----------
    channels
        (rank, channel): their SMs, of `rules.num_channels` channels.
    nbytes
        (source, destination): bytes that go from rank to rank.
    begun
        (rank,): when each rank's kernel runs.
    payload
        Whether the bytes are token rows.
    group
        Who is in a communicator together; ranks of different ones send each other nothing.
    """
    away = nbytes * ~np.eye(machine.num_ranks, dtype=bool)
    parcels = cut_pairs(away, rules, communicators(machine.domains, group))
    started = _start(machine, kinds, parcels, begun)
    leaving, crossed = _leaving(machine, rules, parcels), None
    sent, landed = _send(machine, kinds, channels, parcels, started, leaving, payload=payload)
    if leaving:
        last = landed[leaving.last]
        rows = leaving.crossing.nbytes if payload else 0
        crossed = cross(machine, kinds, leaving.crossing, last, rows)
    received, rank, out = _receive(machine, kinds, channels, parcels, started, sent, landed, rules.slots, crossed)
    if leaving and crossed:
        filling, emptied = sent[leaving.first], out[leaving.chunk]
        return_room(machine, kinds, rules, leaving.crossing, crossed, begun, filling, emptied)
    own, copied, own_rank = _copy_own(machine, kinds, channels, rules, np.diagonal(nbytes), begun)
    done = machine.gather(
        np.concatenate((sent, received, copied)),
        np.concatenate((parcels.src[parcels.lane_of_piece], rank, own_rank)),
        begun,
    )
    return ExchangeTasks(done, own, sent, parcels)


# ---- the kernel --------------------------------------------------------------------------------


def _start(machine: Machine, kinds: PhaseKinds, parcels: Parcels, begun: Tasks) -> tuple[Ints, Ints]:
    """Tasks before a lane's first access: (lane,) of its source, and of its destination."""
    by_source, by_target = np.empty((2, len(parcels.src)), np.int64)
    for is_ll, chosen in ((True, parcels.is_ll), (False, ~parcels.is_ll)):
        src, dst = parcels.src[chosen], parcels.dst[chosen]
        takes_part, started = np.zeros(machine.num_ranks, np.bool_), np.empty(machine.num_ranks, np.int64)
        takes_part[src] = takes_part[dst] = True
        rank = takes_part.nonzero()[0]
        started[rank] = machine.delay(kinds.sync, machine.costs.pair_start(is_ll=is_ll), begun[rank], rank)
        by_source[chosen], by_target[chosen] = started[src], started[dst]
    return by_source, by_target


class _LeavingChunks(NamedTuple):
    """Chunks that leave their nodes.

    Attributes
    ----------
    crossing
        The chunks.
    chunk, first, last
        (chunk,): which of the parcels' chunks it is, and its first and last piece.
    """

    crossing: NodeCrossing
    chunk: Ints
    first: Ints
    last: Ints


def _leaving(machine: Machine, rules: PairRules, parcels: Parcels) -> _LeavingChunks | None:
    """Chunks that leave their nodes; None if there are none."""
    chunk = parcels.leaves_node[parcels.chunk_lane].nonzero()[0]
    if not len(chunk):
        return None
    lane = parcels.chunk_lane[chunk]
    src, dst = parcels.src[lane], parcels.dst[lane]
    domains = machine.domains
    via = domains.peer(dst, domains.of(src)) if rules.pxn else src
    pieces = np.bincount(parcels.piece_chunk, minlength=len(parcels.chunk_lane))
    first = firsts(pieces)[chunk]
    crossing = NodeCrossing(src, via, dst, parcels.channel[lane], lane, parcels.chunk_bytes[chunk])
    return _LeavingChunks(crossing, chunk, first, first + pieces[chunk] - 1)


def _send(
    machine: Machine,
    kinds: PhaseKinds,
    channels: Ints,
    parcels: Parcels,
    started: tuple[Ints, Ints],
    leaving: _LeavingChunks | None,
    *,
    payload: bool,
) -> tuple[Ints, Ints]:
    """Store everything: (piece,) tasks of the sending warps, and of the arrivals.

    What leaves the node arrives where a network card sends it.
    """
    ll_protocol, lane, nbytes = machine.system.nccl.ll, parcels.lane_of_piece, parcels.piece_bytes
    src, to, is_ll = parcels.src[lane], parcels.dst[lane], parcels.is_ll[lane]
    storing = Time.where(is_ll, Time(ll_protocol.pass_ps(nbytes)), machine.costs.sm_store(nbytes))
    sent = machine.serve(
        channels[src, parcels.channel[lane]],
        storing,
        kind=kinds.send,
        rank=src,
        after=started[0][lane],
    )
    follows = lane[1:] == lane[:-1]
    machine.order(sent[:-1][follows], sent[1:][follows])
    if leaving:
        via = parcels.dst[parcels.chunk_lane]
        via[leaving.chunk] = leaving.crossing.via
        to = via[parcels.piece_chunk]
    landed, moves = sent.copy(), (src != to).nonzero()[0]
    rows = nbytes if payload else 0 * nbytes
    stored = np.where(is_ll, ll_protocol.stored_bytes(nbytes), nbytes)
    landed[moves] = machine.transfers.store(
        kinds,
        src[moves],
        to[moves],
        rows[moves],
        sent[moves],
        meta_bytes=(stored - rows)[moves],
    ).arrived
    return sent, landed


def _receive(
    machine: Machine,
    kinds: PhaseKinds,
    channels: Ints,
    parcels: Parcels,
    started: tuple[Ints, Ints],
    sent: Ints,
    landed: Ints,
    slots: int,
    crossed: CrossingTasks | None,
) -> tuple[Ints, Ints, Ints]:
    """Copy everything out and return its room.

    Returns
    -------
    (task,): what the ranks wait for, and which rank. (chunk,): tasks that copy it out.
    """
    costs, lane = machine.costs, parcels.chunk_lane
    is_ll, dst, inside = parcels.is_ll[lane], parcels.dst[lane], ~parcels.leaves_node[lane]
    known, near = np.empty(len(lane), np.int64), inside.nonzero()[0]
    told = Time.where(is_ll[near], costs.poll(), costs.flag("each"))
    known[near] = machine.delay(kinds.sync, told, started[1][lane[near]], dst[near])
    stays = inside[parcels.piece_chunk]
    machine.order(landed[stays], known[parcels.piece_chunk[stays]])
    if crossed:
        known[~inside] = crossed.known
    simple = (~is_ll).nonzero()[0]
    copied = known.copy()
    copied[simple] = machine.serve(
        channels[dst[simple], parcels.channel[lane[simple]]],
        Time(machine.system.nccl.copy_rate.duration_ps(parcels.chunk_bytes[simple])),
        kind=kinds.receive,
        rank=dst[simple],
        after=known[simple],
    )
    machine.order(started[1][lane[~inside]], copied[~inside])
    memory = machine.stream(kinds.memory, 2 * parcels.chunk_bytes, dst, known)
    # A chunk takes the room of the one that was sent so many slots before it.
    of_lane = np.bincount(lane, minlength=len(parcels.src))
    late = ((places(of_lane) >= slots) & inside).nonzero()[0]
    if len(late):
        returned = machine.delay(kinds.sync, costs.flag(), copied[late - slots], dst[late])
        first_piece = firsts(np.bincount(parcels.piece_chunk, minlength=len(lane)))
        machine.order(returned, sent[first_piece[late]])
    return np.concatenate((copied, memory)), np.concatenate((dst, dst)), copied


def _copy_own(
    machine: Machine,
    kinds: PhaseKinds,
    channels: Ints,
    rules: PairRules,
    own_bytes: Bytes,
    begun: Tasks,
) -> tuple[Ints, Ints, Ints]:
    """Copy the ranks' own shares: (rank,) marks of the begin; (task,) the last ones, and whose."""
    rank = own_bytes.nonzero()[0]
    if not len(rank):
        return begun, rank, rank
    started = machine.delay(kinds.sync, machine.costs.pair_start(is_ll=True), begun[rank], rank)
    begins = begun.copy()
    begins[rank] = started
    share, _ = rules.of_pairs(own_bytes[rank], machine.num_ranks)
    part = up(own_bytes[rank], share) // share
    of, place, nbytes = cut(own_bytes[rank], part)
    channel = place // part[of]
    copied = machine.serve(
        channels[rank[of], channel],
        machine.costs.sm_copy(nbytes),
        kind=kinds.send,
        rank=rank[of],
        after=started[of],
    )
    memory = machine.stream(kinds.memory, 2 * own_bytes[rank], rank, started)
    return begins, np.concatenate((copied, memory)), np.concatenate((rank[of], rank))
