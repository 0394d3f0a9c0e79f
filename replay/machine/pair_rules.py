"""What NCCL makes of the bytes that ranks send one another: channels, protocol, parts, chunks.

Sources, all of NVIDIA/nccl: ``src/enqueue.cc`` (``scheduleP2pTasksToPlan``, ``addP2pToPlan``),
``src/include/device.h`` and ``channel.h`` (which channels a peer has), ``src/init.cc`` (chunks).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.work.ragged import places

if TYPE_CHECKING:
    import numpy.typing as npt

    from hwmodel import System
    from replay.machine.machine import Ints, IntsLike, Machine

    Bools = npt.NDArray[np.bool_]

PART_ALIGNMENT = 4096  # bytes: parts begin at multiples (ncclP2pPartBounds)
NET_CHUNK_BYTES = 128 * 1024  # of communicators of several nodes (NCCL_P2P_NET_CHUNKSIZE)
NET_CHANNELS_PER_PEER = 2  # NCCL_NCHANNELS_PER_NET_PEER
CONNECTION_BYTES = 12 << 20
"""Memory of a (peer, channel): what comes has 4 KiB and a buffer for each protocol (LL 512 KiB,
LL128 4800 KiB, Simple 4 MiB) in steps of 2 MiB, what goes 2 MiB (``src/transport/p2p.cc``)."""
LL_CHUNK_BYTES = 32 * 1024  # data of one of the 8 steps of LL's buffer of 512 KiB
PIECE_BYTES = 128 * 1024
"""A chunk's stores are modelled as messages of so many bytes, so that it enters the target while it
is still leaving the source."""


@dataclass(frozen=True)
class PairRules:
    """How NCCL cuts what one rank sends to another.

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
    """

    channels: int
    chunk_bytes: int = 512 * 1024
    slots: int = 8
    ll_bytes: int = 16 * 1024

    @property
    def num_channels(self) -> int:
        """Channels of the kernel."""
        return int(1 << (self.channels - 1).bit_length())

    def of_pairs(
        self, nbytes: Ints, num_ranks: int, *, is_one_node: bool = True
    ) -> tuple[Ints, Bools]:
        """Channels of each pair (pair,), and whether it uses protocol LL.

        Parameters
        ----------
        nbytes
            (pair,): what a rank sends another, at least one byte.
        num_ranks, is_one_node
            Ranks of the communicator, and whether they are in one NVLink domain.
        """
        if is_one_node:
            most, least_part, most_part = (
                self.num_channels, -(-self.chunk_bytes // 8), 32 * self.chunk_bytes
            )  # fmt: skip
        else:
            most, least_part, most_part = (
                min(NET_CHANNELS_PER_PEER, self.num_channels), NET_CHUNK_BYTES // 2, NET_CHUNK_BYTES
            )  # fmt: skip
        usual = most
        while usual * num_ranks > self.num_channels and usual > 1:
            usual //= 2
        channels = np.minimum(usual, -(-nbytes // least_part))
        while (more := (-(-nbytes // channels) > most_part) & (2 * channels <= most)).any():
            channels = np.where(more, 2 * channels, channels)
        return channels, nbytes <= channels * self.ll_bytes

    def fifo_bytes(self, num_ranks: int) -> int:
        """Bytes that a rank allocates for its peers in an NVLink domain, on all channels."""
        return (num_ranks - 1) * self.num_channels * CONNECTION_BYTES

    def first_channel(self, distance: Ints) -> Ints:
        """First channel of the peer at each distance (pair,): the bits of the distance reversed."""
        num_bits = self.num_channels.bit_length() - 1
        bit = np.arange(num_bits)
        channel: Ints = ((distance[:, None] >> bit & 1) << (num_bits - 1 - bit)).sum(axis=1)
        return channel


def rules_of(machine: Machine, *, channels: int = 0, **settings: int) -> PairRules:
    """NCCL's rules on a machine; see `rules_on`."""
    return rules_on(machine.system, channels=channels, **settings)


def rules_on(system: System, *, channels: int = 0, **settings: int) -> PairRules:
    """NCCL's rules on a system; `channels` of 0 are as many as it opens there.

    Parameters
    ----------
    settings
        Other fields of `PairRules`.
    """
    return PairRules(channels or system.nccl.pair_channels, **settings)


class Parcels(NamedTuple):
    """What pairs send: lanes (a pair's part on one channel), their chunks, and messages of these.

    Attributes
    ----------
    src, dst, channel, is_ll
        (lane,): its pair, its channel, and whether its protocol is LL.
    chunk_lane, chunk_bytes
        (chunk,)
    piece_chunk, piece_bytes, offset
        (piece,): its chunk, its size, and where in what the pair sends it begins.
    """

    src: Ints
    dst: Ints
    channel: Ints
    is_ll: Bools
    chunk_lane: Ints
    chunk_bytes: Ints
    piece_chunk: Ints
    piece_bytes: Ints
    offset: Ints

    @property
    def lane_of_piece(self) -> Ints:
        """(piece,): the lane of each."""
        return self.chunk_lane[self.piece_chunk]


def up(nbytes: Ints, multiple: IntsLike) -> Ints:
    """Round up to a multiple."""
    return -(-nbytes // multiple) * multiple


def cut(nbytes: Ints, most: Ints) -> tuple[Ints, Ints, Ints]:
    """Cut wholes of `nbytes` (whole,) into pieces of `most`: (piece,) whole, offset, size."""
    count = -(-nbytes // most)
    whole = np.repeat(np.arange(len(nbytes)), count)
    offset = places(count) * most[whole]
    return whole, offset, np.minimum(most[whole], nbytes[whole] - offset)


def cut_pairs(away: Ints, rules: PairRules, *, is_one_node: bool) -> Parcels:
    """Cut what pairs (source, destination) send one another."""
    src, dst = np.nonzero(away)
    # In NCCL's order: everybody's next neighbour first, so that the blocks do not meet at one rank.
    order = np.argsort((dst - src) % len(away), kind="stable")
    src, dst = src[order], dst[order]
    channels, is_ll = rules.of_pairs(away[src, dst], len(away), is_one_node=is_one_node)
    part = up(up(away[src, dst], channels) // channels, PART_ALIGNMENT)
    pair, in_pair, lane_bytes = cut(away[src, dst], part)
    first = rules.first_channel((dst - src) % len(away))
    simple = rules.chunk_bytes if is_one_node else NET_CHUNK_BYTES
    chunk_lane, in_lane, chunk_bytes = cut(
        lane_bytes, np.where(is_ll[pair], LL_CHUNK_BYTES, simple)
    )
    of, in_chunk, piece_bytes = cut(chunk_bytes, np.full(len(chunk_bytes), PIECE_BYTES))
    return Parcels(
        src[pair],
        dst[pair],
        (first[pair] + in_pair // part[pair]) % rules.num_channels,
        is_ll[pair],
        chunk_lane,
        chunk_bytes,
        of,
        piece_bytes,
        (in_pair[chunk_lane] + in_lane)[of] + in_chunk,
    )
