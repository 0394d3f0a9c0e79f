"""Rules of NCCL for the bytes that ranks send one another: channels, protocol, parts, chunks.

A communicator of several nodes has fewer channels for each peer and smaller chunks, within a node
too; what leaves a node goes by protocol Simple, since connections of the network have no buffers
for LL unless NCCL_ALLOC_P2P_NET_LL_BUFFERS is set.

Sources, all of NVIDIA/nccl: ``src/enqueue.cc`` (``scheduleP2pTasksToPlan``, ``addP2pToPlan``),
``src/include/device.h`` and ``channel.h`` (which channels a peer has), ``src/init.cc`` (chunks),
``src/transport/net.cc`` (buffers and steps of what leaves a node); issue 1041 (twice as many
channels as the search finds) and the log of issue 1453 (16 channels on 3 x 8 H100).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replay.model.machine.communicators import communicators
from replay.model.machine.domains import Domains
from replay.model.work.ragged import places

if TYPE_CHECKING:
    import numpy.typing as npt

    from hwmodel import System
    from replay.model.arrays import Bytes, Ints, Ranks
    from replay.model.machine.communicators import Communicators, Group
    from replay.model.machine.machine import IntsLike, Machine

    Bools = npt.NDArray[np.bool_]

PART_ALIGNMENT = 4096  # bytes: parts begin at multiples (ncclP2pPartBounds)
NET_CHUNK_BYTES = 128 * 1024  # of communicators of several nodes (NCCL_P2P_NET_CHUNKSIZE)
NET_CHANNELS_PER_PEER = 2  # NCCL_NCHANNELS_PER_NET_PEER
CHANNELS_OF_NIC, MOST_CHANNELS = 2, 32  # of communicators of several nodes
BATCH = 8  # peers that a channel serves at once (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)
SHARED_SLOTS_OF_SLOT = 2  # NCCL_SHARED_STEPS, 16, for NCCL_STEPS, 8
CONNECTION_BYTES = 12 << 20
"""Memory of a (peer, channel): what comes has 4 KiB and a buffer for each protocol (LL 512 KiB,
LL128 4800 KiB, Simple 4 MiB) in steps of 2 MiB, what goes 2 MiB (``src/transport/p2p.cc``)."""
LL_CHUNK_BYTES = 32 * 1024  # data of one of the 8 steps of LL's buffer of 512 KiB
PIECE_BYTES = 128 * 1024
"""A chunk's stores are modelled as messages of so many bytes, so that it enters the target while it
is still leaving the source."""


@dataclass(frozen=True)
class PairRules:
    """Rules by which NCCL cuts what one rank sends to another.

    Attributes
    ----------
    channels
        Channels of the kernel, rounded up to a power of two.
    chunk_bytes
        Data of a slot of the FIFO under protocol Simple (NCCL_P2P_NVL_CHUNKSIZE).
    slots
        Slots of the FIFO (NCCL_STEPS).
    ll_bytes
        Up to so many bytes a channel, protocol LL is used (NCCL_P2P_LL_THRESHOLD).
    pxn
        Whether what goes to another node is stored to the GPU of its own node on the rail of its
        target, which sends it (NCCL_PXN_DISABLE, NCCL_P2P_PXN_LEVEL).
    """

    channels: int
    chunk_bytes: int = 512 * 1024
    slots: int = 8
    ll_bytes: int = 16 * 1024
    pxn: bool = True

    @property
    def num_channels(self) -> int:
        """Channels of the kernel."""
        return int(1 << (self.channels - 1).bit_length())

    def of_pairs(self, nbytes: Bytes, num_ranks: int, *, is_one_node: bool = True) -> tuple[Ints, Bools]:
        """Channels of each pair (pair,), and whether it uses protocol LL inside a node.

        Parameters
        ----------
        nbytes
            (pair,): what a rank sends another, at least one byte.
        num_ranks, is_one_node
            Ranks of the communicator, and whether they are in one NVLink domain.
        """
        if is_one_node:
            most, least_part, most_part = (self.num_channels, -(-self.chunk_bytes // 8), 32 * self.chunk_bytes)
        else:
            most, least_part, most_part = (
                min(NET_CHANNELS_PER_PEER, self.num_channels),
                NET_CHUNK_BYTES // 2,
                NET_CHUNK_BYTES,
            )
        usual = most
        while usual * num_ranks > self.num_channels and usual > 1:
            usual //= 2
        channels = np.minimum(usual, -(-nbytes // least_part))
        while (more := (-(-nbytes // channels) > most_part) & (2 * channels <= most)).any():
            channels = np.where(more, 2 * channels, channels)
        return channels, nbytes <= channels * self.ll_bytes

    def net_chunk_bytes(self, nbytes: Bytes) -> Bytes:
        """Data of a chunk that leaves its node, of a pair's bytes (pair,)."""
        parts = np.where(nbytes < NET_CHUNK_BYTES, 4, np.where(nbytes < 8 * NET_CHUNK_BYTES, 2, 1))
        return NET_CHUNK_BYTES // parts

    def net_slots(self, sharing: Ints) -> Ints:
        """Chunks under way of each connection between nodes (connection,).

        Parameters
        ----------
        sharing
            (connection,): connections of one channel that one thread of the host sees to, and that
            share its buffer.
        """
        shared = SHARED_SLOTS_OF_SLOT * self.slots // np.minimum(sharing, BATCH)
        slots: Ints = np.clip(shared, 1, self.slots)
        return slots

    def fifo_bytes(self, num_ranks: int, ranks_of_node: int) -> int:
        """Bytes that a rank allocates for its peers at most.

        Inside a node, peers have buffers on all their channels. Of chunks that go between nodes,
        16 of each channel share one: those that come to a rank, and for each rank of its node
        those that it sends for it (all alike with PXN, its own alone without).
        """
        if num_ranks <= ranks_of_node:
            return (num_ranks - 1) * self.num_channels * CONNECTION_BYTES
        inside = (ranks_of_node - 1) * NET_CHANNELS_PER_PEER * CONNECTION_BYTES
        shared = SHARED_SLOTS_OF_SLOT * self.slots * self.num_channels * NET_CHUNK_BYTES
        return inside + shared * (1 + (ranks_of_node if self.pxn else 1))

    def first_channel(self, place: Ints) -> Ints:
        """First channel of the peer at each place (pair,): the bits of the place reversed."""
        num_bits = self.num_channels.bit_length() - 1
        bit = np.arange(num_bits)
        channel: Ints = ((place[:, None] >> bit & 1) << (num_bits - 1 - bit)).sum(axis=1)
        return channel


def rules_of(machine: Machine, *, group: Group = "all", **settings: Any) -> PairRules:
    """NCCL's rules on a machine, for schemes, which do not see its system; see `rules_on`."""
    return _rules(machine.system, machine.domains, group, **settings)


def rules_on(
    system: System,
    num_ranks: int | None = None,
    *,
    group: Group = "all",
    channels: int = 0,
    **settings: Any,
) -> PairRules:
    """NCCL's rules on a system; `channels` of 0 are as many as it opens there.

    Parameters
    ----------
    num_ranks
        Ranks that exchange; None for all GPUs.
    group
        Which of them are in a communicator together.
    settings
        Other fields of `PairRules`.
    """
    domains = Domains(system.fabric, num_ranks or system.num_gpus)
    return _rules(system, domains, group, channels=channels, **settings)


def _rules(system: System, domains: Domains, group: Group, *, channels: int = 0, **settings: Any) -> PairRules:
    of = communicators(domains, group)
    opened = min(CHANNELS_OF_NIC * of.ranks_of_node, MOST_CHANNELS)
    if of.num_nodes == 1:
        opened = system.nccl.pair_channels
    return PairRules(channels or opened, **settings)


def most_rails(machine: Machine) -> int:
    """Rails that the channels of a communicator of several nodes reach."""
    return min(machine.domains.size, MOST_CHANNELS // CHANNELS_OF_NIC)


class Parcels(NamedTuple):
    """Parcels of pairs: lanes (a pair's part on one channel), their chunks, and messages of these.

    Attributes
    ----------
    src, dst, channel, is_ll
        (lane,): its pair, its channel, and whether its protocol is LL.
    leaves_node
        (lane,): whether it goes over the network.
    chunk_lane, chunk_bytes
        (chunk,): its lane, and its size.
    piece_chunk, piece_bytes, offset
        (piece,): its chunk, its size, and where in what the pair sends it begins.
    """

    src: Ranks
    dst: Ranks
    channel: Ints
    is_ll: Bools
    leaves_node: Bools
    chunk_lane: Ints
    chunk_bytes: Bytes
    piece_chunk: Ints
    piece_bytes: Bytes
    offset: Ints

    @property
    def lane_of_piece(self) -> Ints:
        """(piece,): the lane of each."""
        return self.chunk_lane[self.piece_chunk]


def up(nbytes: Bytes, multiple: IntsLike) -> Ints:
    """Round up to a multiple."""
    return -(-nbytes // multiple) * multiple


def cut(nbytes: Bytes, most: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut wholes of `nbytes` (whole,) into pieces of `most`: (piece,) whole, offset, size."""
    count = -(-nbytes // most)
    whole = np.arange(len(nbytes)).repeat(count)
    offset = places(count) * most[whole]
    return whole, offset, np.minimum(most[whole], nbytes[whole] - offset)


def cut_pairs(away: Ints, rules: PairRules, ranks: Communicators) -> Parcels:
    """Cut what pairs (source, destination) send one another."""
    src, dst = away.nonzero()
    # In NCCL's order: everybody's next neighbour first, so that the blocks do not meet at one rank.
    order = ranks.distance(src, dst).argsort(kind="stable")
    src, dst = src[order], dst[order]
    nbytes, leaves_node = away[src, dst], ranks.node[src] != ranks.node[dst]
    channels, is_ll = rules.of_pairs(nbytes, ranks.size, is_one_node=ranks.is_one_node)
    is_ll &= ~leaves_node
    part = up(up(nbytes, channels) // channels, PART_ALIGNMENT)
    pair, in_pair, lane_bytes = cut(nbytes, part)
    first = rules.first_channel(ranks.place(src, dst, BATCH))
    simple = rules.chunk_bytes if ranks.is_one_node else NET_CHUNK_BYTES
    most = np.where(leaves_node, rules.net_chunk_bytes(nbytes), simple)
    chunk_lane, in_lane, chunk_bytes = cut(lane_bytes, np.where(is_ll, LL_CHUNK_BYTES, most)[pair])
    of, in_chunk, piece_bytes = cut(chunk_bytes, np.full(len(chunk_bytes), PIECE_BYTES))
    return Parcels(
        src[pair],
        dst[pair],
        (first[pair] + in_pair // part[pair]) % rules.num_channels,
        is_ll[pair],
        leaves_node[pair],
        chunk_lane,
        chunk_bytes,
        of,
        piece_bytes,
        (in_pair[chunk_lane] + in_lane)[of] + in_chunk,
    )
