"""Rows between nodes under DeepEP's normal kernels: once per (token, node), in chunks of channels.

A row goes from its owner to the GPU of the same index in the node (the *forwarder*), and back. For
its own node both are one GPU. Chunks are counted per (owner, node, channel), and each has a ring
of its own in the forwarder's memory, or on the way back in the owner's. How chunks cross, and how
their room comes back, is in `transport`.

Source: deepseek-ai/DeepEP at dd758ca, ``csrc/kernels/legacy/internode.cu``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine import rings
from replay.model.work.ragged import places, places_in_runs

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.domains import Domains
    from replay.model.machine.machine import Machine
    from replay.model.machine.sms import Split
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.deepep.configs import Config


class NormalKernel(NamedTuple):
    """A dispatch or combine kernel.

    Attributes
    ----------
    config
        Chunks and rings.
    num_channels, sms
        Channels, and the SMs of the kernel.
    begun
        (rank,): it has begun.
    """

    work: LayerWork
    machine: Machine
    config: Config
    num_channels: int
    sms: Split
    begun: Tasks

    @property
    def channel(self) -> Ints:
        """(token,): each channel takes a contiguous share of its rank's tokens."""
        tokens = np.diff(self.work.tokens_of_rank)
        per_channel = np.maximum(-(-tokens // self.num_channels), 1)[self.work.source_rank]
        channel: Ints = places(tokens) // per_channel
        return channel


@dataclass(frozen=True)
class Crossings:
    """Rows and their chunks, in the order in which owners send chunks of equal progress.

    Attributes
    ----------
    token, node
        (row,): each token once for each node that has an expert of it.
    chunk, place
        (row,): chunk that each row is in, and its place there.
    of_copy
        (copy,): row that each copy of the layer is forwarded from.
    owner, forwarder, channel, rows
        (chunk,): ranks at the two ends, channel, and rows.
    lane, turn
        (chunk,): number of its ring, and place among the chunks of that.
    first, number
        (lane,): place of its first chunk in the order of lanes; (chunk,): chunks in that order.
    chunk_rows
        Rows of a full chunk.
    num_channels
        Channels of an owner, those without rows included.
    """

    token: Ints
    node: Ints
    chunk: Ints
    place: Ints
    of_copy: Ints
    owner: Ranks
    forwarder: Ints
    channel: Ints
    rows: Counts
    lane: Ints
    turn: Ints
    first: Ints
    number: Ints
    chunk_rows: int
    num_channels: int

    @classmethod
    def of_kernel(cls, kernel: NormalKernel) -> Crossings:
        """Crossings of the chunks and channels of a kernel."""
        domains, chunk_rows = kernel.machine.domains, kernel.config.rdma_chunk
        return cls.of(kernel.work, domains, kernel.channel, chunk_rows, kernel.num_channels)

    @classmethod
    def of(cls, work: LayerWork, domains: Domains, channel: Ints, chunk_rows: int, num_channels: int) -> Crossings:
        """Count each token once per node, however many of the node's GPUs want it.

        Parameters
        ----------
        channel
            (token,): channel of each token at its owner.
        """
        key = work.copy_token * domains.num + domains.of(work.copy_rank)
        once, of_copy = np.unique(key, return_inverse=True)
        token, node = np.divmod(once, domains.num)
        owner = work.source_rank[token].astype(np.int64)
        chunks = rings.cut(owner, domains.peer(owner, node), channel[token], chunk_rows)
        # A channel's coordinator looks at the nodes in turn and begins with another in each.
        turn = domains.of(chunks.dst) - domains.of(chunks.src) - chunks.channel
        in_lane = places_in_runs(chunks.lane)
        order = np.lexsort((chunks.lane, turn % domains.num, in_lane))
        number = np.empty(len(order), np.int64)
        number[order] = np.arange(len(order))
        of_row = number[chunks.of_row]
        by_chunk = np.argsort(of_row, kind="stable")
        place = np.empty(len(of_row), np.int64)
        place[by_chunk] = places_in_runs(of_row[by_chunk])
        return cls(
            token,
            node,
            of_row,
            place,
            of_copy,
            chunks.src[order],
            chunks.dst[order],
            chunks.channel[order],
            chunks.rows[order],
            chunks.lane[order],
            in_lane[order],
            np.flatnonzero(in_lane == 0),
            number,
            chunk_rows,
            num_channels,
        )

    def room_from(self, row: Ints, ring_rows: int) -> Ints:
        """Chunk whose room in a ring of so many rows each row takes: (row,); -1 for none.

        Parameters
        ----------
        row
            (row,): numbers of the rows.
        """
        chunk = self.chunk[row]
        place = self.turn[chunk] * self.chunk_rows + self.place[row] - ring_rows
        number = self.number[np.maximum(self.first[self.lane[chunk]] + place // self.chunk_rows, 0)]
        return np.where(place < 0, -1, number)
