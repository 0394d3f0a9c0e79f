"""Thread blocks of CCFuser's two kernels: which rows each has, and its steps one after the other.

Rows of an expert are cut by their source: 64 rows at a time, and the rest of each (expert, source)
apart (``divide_into_block``). Full tiles of a rank's own rows are *local*; all others, the rests of
its own rows among them, are *remote*. Block i has the i-th local and the i-th remote tile; what is
left over of either sort goes in twos. A block has its SM to itself, since its 256 threads take
more than half of the registers, and keeps it until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.compute.footprints import BlockFootprint, resident_blocks
from replay.model.machine.block_scheduler import BlockScheduler
from replay.model.work.ragged import firsts, places
from replay.schemes.ep.flashdmoe.packets import Packets, PacketTiles

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.arrays import Ints, Ranks, Tasks
    from replay.model.compute.gemm_tiles import TileTasks
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

TILE_ROWS, TILE_COLUMNS = 64, 512
BLOCK = BlockFootprint(threads=256, registers=129, shared_bytes=0)  # more than half of an SM's

NOBODY = -1


@dataclass(frozen=True)
class BlockPairs:
    """The thread blocks of a layer, in the order of each rank's grid.

    Attributes
    ----------
    packets, tiles
        Rows by expert and source, and the row tiles that they are cut into.
    source
        (tile,): whose rows they are.
    local, remote
        (block,): its tile of either sort, or `NOBODY`.
    other
        (block,): a second tile of the sort that it has alone, or `NOBODY`.
    rank
        (block,): GPU that it runs on.
    """

    packets: Packets
    tiles: PacketTiles
    source: Ints
    local: Ints
    remote: Ints
    other: Ints
    rank: Ranks

    @classmethod
    def of(cls, work: LayerWork, *, padded: bool) -> BlockPairs:
        """Cut a layer's rows into tiles and pair them.

        Parameters
        ----------
        padded
            Whether partial tiles are multiplied in full.
        """
        packets = Packets.of(work)
        tiles = PacketTiles.of(work, packets, TILE_ROWS, TILE_COLUMNS, padded=padded)
        source, rank = packets.source[tiles.packet], tiles.grid.rank
        is_full = tiles.rows == TILE_ROWS
        is_local = is_full & (source == rank)
        # Rests come behind all full tiles, by expert and the fewest rows first.
        index = np.arange(len(rank))
        order = np.lexsort((np.where(is_full, index, tiles.rows), tiles.grid.expert, ~is_full))
        of_rank = [order[rank[order] == one] for one in range(work.num_ranks)]
        found = [_pairs(each[is_local[each]], each[~is_local[each]]) for each in of_rank]
        local, remote, other = (np.concatenate([part[k] for part in found]) for k in range(3))
        blocks_of_rank = [len(part[0]) for part in found]
        of_block = np.repeat(np.arange(work.num_ranks), blocks_of_rank)
        return cls(packets, tiles, source, local, remote, other, of_block)

    @property
    def is_remote(self) -> npt.NDArray[np.bool_]:
        """(tile,): whether it is of the remote sort, which partial tiles of own rows are too."""
        remote: npt.NDArray[np.bool_] = self.source != self.tiles.grid.rank
        return remote | (self.tiles.rows < TILE_ROWS)

    @property
    def has_pair(self) -> npt.NDArray[np.bool_]:
        """(block,): whether it has a tile of either sort."""
        paired: npt.NDArray[np.bool_] = (self.local != NOBODY) & (self.remote != NOBODY)
        return paired


def _pairs(local: Ints, remote: Ints) -> tuple[Ints, Ints, Ints]:
    """Tiles of a rank's blocks: local, remote, and the second of a sort that is left over."""
    both = min(len(local), len(remote))
    left = max(local[both:], remote[both:], key=len)
    first, second = left[::2], np.full(len(left[::2]), NOBODY)
    second[: len(left[1::2])] = left[1::2]
    none = np.full(len(first), NOBODY)
    is_local = len(local) > len(remote)
    return (
        np.concatenate((local[:both], first if is_local else none)),
        np.concatenate((remote[:both], none if is_local else first)),
        np.concatenate((np.full(both, NOBODY), second)),
    )


class BlockStep(NamedTuple):
    """A step of some blocks, which each does in turn with its other steps.

    Attributes
    ----------
    block
        (step,): blocks that do it.
    entry, exit
        (step,) tasks with which it begins and ends.
    """

    block: Ints
    entry: Ints
    exit: Ints


def run(machine: Machine, blocks: BlockPairs, steps: Sequence[BlockStep], after: Tasks) -> None:
    """Let blocks do their steps in this order, on an SM of their own each.

    Parameters
    ----------
    after
        (rank,): the kernel has begun.
    """
    first, last = np.full(len(blocks.rank), NOBODY), np.full(len(blocks.rank), NOBODY)
    for step in steps:
        goes_on = last[step.block] != NOBODY
        machine.order(last[step.block[goes_on]], step.entry[goes_on])
        begins = step.block[~goes_on]
        first[begins] = step.entry[~goes_on]
        last[step.block] = step.exit
    scheduler = BlockScheduler(machine, machine.sms.count, resident_blocks(machine, BLOCK))
    scheduler.hold(first, last, blocks.rank, after[blocks.rank])


def tile_steps(machine: Machine, tasks: TileTasks) -> tuple[Ints, Ints]:
    """Let the columns of each tile follow one another: (tile,) first and last column."""
    counts = np.bincount(tasks.column_tile, minlength=len(tasks.done))
    order = np.lexsort((tasks.column_index, tasks.column_tile))
    begins, ends, place = tasks.begins[order], tasks.columns[order], places(counts)
    follows = np.flatnonzero(place > 0)
    machine.order(ends[follows - 1], begins[follows])
    first = firsts(counts)
    return begins[first], ends[first + counts - 1]
