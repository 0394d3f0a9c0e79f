"""Packets: what one rank has for one expert, and the tiles that they are cut into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.model.compute.row_tiles import RowTiles
from replay.model.work.layer import LayerWork
from replay.model.work.ragged import firsts, order_by, places

if TYPE_CHECKING:
    import numpy.typing as npt

    from replay.model.arrays import Counts, Ints, Ranks


@dataclass(frozen=True)
class Packets:
    """Rows that a source has for an expert, by expert and then source.

    Attributes
    ----------
    expert, source, rank, rows
        (packet,): the expert, whose rows they are, the expert's rank, how many there are.
    order, packet, place
        (row,): pairs in the order of packets and tokens, the packet of each, its place in it.
    """

    expert: Ints
    source: Ints
    rank: Ranks
    rows: Counts
    order: Ints
    packet: Ints
    place: Ints

    @classmethod
    def of(cls, work: LayerWork) -> Packets:
        """All packets of a layer, those without rows too."""
        n, num_experts = work.num_ranks, work.num_experts
        cell = work.pair_expert * n + work.pair_source
        rows = np.bincount(cell, minlength=num_experts * n).astype(np.int64)
        order = order_by(cell)
        expert = np.repeat(np.arange(num_experts, dtype=np.int64), n)
        return cls(
            expert=expert,
            source=np.tile(np.arange(n, dtype=np.int64), num_experts),
            rank=work.placement.expert_rank.astype(np.int64)[expert],
            rows=rows,
            order=order,
            packet=cell[order],
            place=places(rows),
        )

    @property
    def is_remote(self) -> npt.NDArray[np.bool_]:
        """(packet,): whether it leaves its source."""
        remote: npt.NDArray[np.bool_] = self.source != self.rank
        return remote


@dataclass(frozen=True)
class PacketTiles:
    """Row tiles of all packets.

    Attributes
    ----------
    grid
        What the GEMMs work on.
    packet, rows
        (tile,): the packet, and how many of its rows are in the tile.
    of_row
        (row,): the tile of each pair, in the order of `Packets.order`.
    """

    grid: RowTiles
    packet: Ints
    rows: Counts
    of_row: Ints

    @classmethod
    def of(cls, work: LayerWork, packets: Packets, tile_rows: int, tile_columns: int, *, padded: bool) -> PacketTiles:
        """Cut every packet by itself; its last tile may be partial.

        Parameters
        ----------
        padded
            Whether a partial tile is multiplied and moved as if it were full.
        """
        count = -(-packets.rows // tile_rows)
        packet = np.repeat(np.arange(len(count), dtype=np.int64), count)
        rows = np.minimum(packets.rows[packet] - places(count) * tile_rows, tile_rows)
        expert = packets.expert[packet]
        multiplied = np.full(len(packet), tile_rows, np.int64) if padded else rows
        grid = RowTiles(
            expert=expert,
            rank=packets.rank[packet],
            rows=multiplied,
            moved_rows=multiplied,
            first_of_expert=np.searchsorted(expert, np.arange(work.num_experts + 1)),
            block_m=np.full(work.num_ranks, tile_rows, np.int64),
            block_n=np.full(work.num_ranks, tile_columns, np.int64),
        )
        of_row = firsts(count)[packets.packet] + packets.place // tile_rows
        return cls(grid, packet, rows, of_row)


def capacity_of(num_tokens: int, work: LayerWork, factor: float) -> int:
    """Rows that a packet of a source with so many tokens has room for."""
    each = -(-num_tokens // work.num_experts) * work.expert_ids.shape[1]
    enough = min(factor, len(work.pair_token))  # no packet holds more rows than there are
    return int(each * enough)


def within_capacity(work: LayerWork, factor: float) -> tuple[LayerWork, Ints]:
    """Drop the rows that a packet has no room for.

    A packet holds ``ceil(tokens of the source / experts) x k x factor`` rows, rounded down, the
    first in token order.

    Returns
    -------
    The work without them, and (dropped,) the rank that each belonged to.
    """
    tokens = np.diff(work.tokens_of_rank).tolist()
    capacity = np.array([capacity_of(each, work, factor) for each in tokens], np.int64)
    packets = Packets.of(work)
    dropped = packets.order[packets.place >= capacity[packets.source[packets.packet]]]
    ids = work.expert_ids.copy()
    token, slot = np.nonzero(ids >= 0)
    ids[token[dropped], slot[dropped]] = -1
    fitting = LayerWork(
        ids,
        work.source_rank.astype(np.int32),
        work.placement,
        work.shape,
        work.precision,
        is_backward=work.is_backward,
        shared=work.shared,
    )
    return fitting, work.pair_source[dropped]
