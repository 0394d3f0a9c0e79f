"""Blocks of computing kernels that load the rows they multiply, and push the sums they make."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.machine.kinds import Kind
from replay.model.machine.merging import ENTRY_BYTES
from replay.model.work.transformer_layer import BF16
from replay.schemes.tp import matrices
from replay.schemes.tp.base import GATHER, REDUCE
from replay.schemes.tp.cais.rows import Cut, cut_rows

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints, Tasks
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.machine.kinds import PhaseKinds
    from replay.model.work.transformer_layer import Product
    from replay.schemes.tp.cais.moves import Moves, SumTasks
    from replay.schemes.tp.cais.options import CaisOptions
    from replay.schemes.tp.kernels import TensorKernels

PART_ROWS = 128  # of a block that only moves rows: the height of most tiles


class PushingBlocks(NamedTuple):
    """Blocks that make partial sums and push them.

    Attributes
    ----------
    part
        (row,): row tile of each row.
    cut
        Rows in pieces.
    tile
        (block,): row tile of each block, in the order of the grid.
    place
        (rank, block): places in the order of the grid.
    made
        (rank, tile): marks; a GPU has made its own partial sums of the rows.
    added
        Sums are in the memory of their homes.
    first, end
        (rank, block): the first and the last task of each block.
    resident
        Blocks that are on an SM at a time.
    """

    part: Ints
    cut: Cut
    tile: Ints
    place: Ints
    made: Ints
    added: SumTasks
    first: Ints
    end: Ints
    resident: int


class LoadingBlocks(NamedTuple):
    """Blocks that load rows, and multiply them.

    Attributes
    ----------
    part
        (row,): part of each row, such as its row tile.
    ready
        (rank, part): tasks that a block waits in, for flags, before it loads.
    tile
        (block,): part of each block, in the order of the grid.
    place
        (rank, block): places in the order of the grid.
    first, end
        (rank, block): the first and the last task of each block.
    resident
        Blocks that are on an SM at a time.
    """

    part: Ints
    ready: Tasks
    tile: Ints
    place: Ints
    first: Ints
    end: Ints
    resident: int


class CaisBlocks:
    """Blocks of the kernels of one layer.

    Parameters
    ----------
    is_coordinated
        Whether blocks of all GPUs wait for one another before they access addresses.
    order
        In which order GPUs go through the rows; see `CaisOptions.order`.
    """

    def __init__(
        self,
        kernels: TensorKernels,
        moves: Moves,
        options: CaisOptions,
        *,
        is_coordinated: bool,
        order: str,
    ) -> None:
        self._kernels, self._moves, self._options = kernels, moves, options
        self._machine, self._layer = kernels.machine, kernels.layer
        self._is_coordinated, self._order = is_coordinated, order

    # ---- rows in ---------------------------------------------------------------------------------

    def load_and_multiply(self, product: Product) -> LoadingBlocks:
        """Blocks that multiply rows of all GPUs.

        The first block of a row tile loads its rows; the others find them in the L2 cache.
        """
        machine = self._machine
        cuts = matrices.cut(machine, product, Kind.GEMM1, machine.sms.compute)
        tiles = cuts[0]
        part = np.repeat(np.arange(len(tiles) // machine.num_ranks), self._rows_of_one(tiles.rows))
        num_slices = min(self._options.slices, -(-self._layer.row_bytes // ENTRY_BYTES))
        entry, ready, there = self._load(part, num_slices)
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM1,
            self._kernels.pool,
            there[-1].ravel(),
            cuts=cuts,
            steps=there[:-1].reshape(num_slices - 1, there[0].size) if num_slices > 1 else None,
        )
        end = tiled.tasks.columns.reshape(machine.num_ranks, -1)
        tile = tiled.tasks.column_tile[: end.shape[1]]
        column = tiled.tasks.column_index[: end.shape[1]]
        first = tiled.tasks.begins.reshape(end.shape).copy()
        place = self.places(part, tile, column)
        for rank, order in enumerate(np.argsort(place, axis=1)):
            which, begin = np.unique(tile[order], return_index=True)
            first[rank, order[begin]] = entry[rank, which]
        return LoadingBlocks(part, ready, tile, place, first, end, self._resident(tiles))

    def load_alone(self) -> LoadingBlocks:
        """Blocks that only load rows, for kernels that follow."""
        part = np.arange(self._layer.tokens) // PART_ROWS
        entry, ready, there = self._load(part, 1)
        tile = np.arange(entry.shape[1])
        place = self.places(part, tile, np.zeros_like(tile))
        return LoadingBlocks(part, ready, tile, place, entry, there[0], self._resident())

    def _load(self, part: Ints, num_slices: int) -> tuple[Ints, Ints, Ints]:
        """Load rows of parts (row,), slice by slice.

        Returns
        -------
        (rank, part) marks of a block's begin and of its wait, and (slice, rank, part) of the rows.
        """
        machine, layer = self._machine, self._layer
        packets = np.arange(num_slices + 1) * -(-layer.row_bytes // ENTRY_BYTES) // num_slices
        widths = np.diff(np.minimum(packets * ENTRY_BYTES, layer.row_bytes))
        cut = cut_rows(part, layer.own_rows, max(1, self._options.piece_bytes // int(widths.max())))
        shape = machine.num_ranks, int(part[-1]) + 1
        rank = np.repeat(machine.ranks, shape[1])
        entry = machine.mark(rank)
        ready = machine.mark(rank, entry).reshape(shape)
        opened = self._meet(GATHER, ready)
        there = np.stack([machine.mark(rank, opened.ravel()) for _ in widths])
        there = there.reshape(len(widths), *shape)
        rows = self._moves.load(cut, widths, opened)
        machine.order(rows.tasks, there[rows.slice, rows.rank, rows.part])
        return entry.reshape(shape), ready, there

    # ---- sums out --------------------------------------------------------------------------------

    def multiply_and_push(self, product: Product, begun: Tasks) -> PushingBlocks:
        """Blocks that make partial sums and push each tile when it is complete."""
        machine = self._machine
        num = machine.num_ranks
        cuts = matrices.cut(machine, product, Kind.GEMM2, machine.sms.compute)
        tiles = cuts[0]
        part = np.repeat(np.arange(len(tiles) // num), self._rows_of_one(tiles.rows))
        tiled = matrices.tiles_of(
            machine,
            product,
            Kind.GEMM2,
            self._kernels.pool,
            begun[tiles.rank],
            cuts=cuts,
            kept=self._own_rows(part)[tiles.rank, np.arange(len(tiles)) % (len(tiles) // num)] > 0,
        )
        made = tiled.tasks.columns.reshape(num, -1)
        tile, column = (each[: made.shape[1]] for each in (tiled.tasks.column_tile, tiled.tasks.column_index))
        widths = np.zeros(int(column.max()) + 1, np.int64)
        widths[column] = tiled.columns[: made.shape[1]] * BF16
        first, done = tiled.tasks.begins.reshape(num, -1), tiled.tasks.done.reshape(num, -1)
        return self._push(part, widths, tile, column, first, made, done, self._resident(tiles))

    def push_alone(self) -> PushingBlocks:
        """Blocks that read partial sums from memory and push them."""
        machine, layer = self._machine, self._layer
        part = np.arange(layer.tokens) // PART_ROWS
        rows = np.bincount(part)
        rank = np.repeat(machine.ranks, len(rows))
        entry = machine.mark(rank)
        nbytes = np.tile(rows, machine.num_ranks) * layer.row_bytes
        read = machine.stream(REDUCE.memory, nbytes, rank, entry).reshape(machine.num_ranks, -1)
        entry, tile = entry.reshape(read.shape), np.arange(len(rows))
        widths = np.array([layer.row_bytes])
        column = np.zeros_like(tile)
        return self._push(part, widths, tile, column, entry, read, read, self._resident())

    def _push(
        self,
        part: Ints,
        widths: Ints,
        tile: Ints,
        column: Ints,
        first: Ints,
        made: Ints,
        complete: Ints,
        resident: int,
    ) -> PushingBlocks:
        """Push what blocks (rank, block) have `made`; see `PushingBlocks`."""
        machine, layer = self._machine, self._layer
        num, most = machine.num_ranks, max(1, self._options.piece_bytes // int(widths.max()))
        cut = cut_rows(part, layer.own_rows, most)
        abroad = np.bincount(part) - self._own_rows(part)
        rank = np.repeat(machine.ranks, len(tile))
        issued = machine.serve(
            self._kernels.pool[rank],
            machine.costs.sm_store((abroad[:, tile] * widths[column]).ravel()),
            kind=REDUCE.send,
            rank=rank,
            after=self._meet(REDUCE, made).ravel(),
        )
        sent = np.empty((num, abroad.shape[1], len(widths)), np.int64)
        sent[:, tile, column] = issued.reshape(num, -1)
        pushed = self._moves.push(cut, widths, sent)
        end, place = pushed.left[:, tile, column], self.places(part, tile, column)
        return PushingBlocks(part, cut, tile, place, complete, pushed.added, first, end, resident)

    # ---- SMs -------------------------------------------------------------------------------------

    def _resident(self, tiles: RowTiles | None = None) -> int:
        """Count the blocks on an SM, of a product with tiles or of a kernel that only moves rows.

        A block of the latter keeps an SM to itself if the option does not say anything else.
        """
        by_footprint = 1 if tiles is None else matrices.blocks_on_an_sm(self._machine, tiles)
        return self._options.resident_blocks or by_footprint

    # ---- order -----------------------------------------------------------------------------------

    def places(self, part: Ints, tile: Ints, column: Ints) -> Ints:
        """(rank, block): places of blocks in the order of the grid.

        Parameters
        ----------
        part
            (row,): row tile of each row.
        tile, column
            (block,): of each block, in the order of the kernel's raster. It goes through groups of
            row tiles column by column; here these groups have other tiles.
        """
        changes = np.flatnonzero(column != column[0])
        together = int(changes[0]) if len(changes) else len(tile)
        group, within = np.divmod(self._sequence(part), together)
        keys = within[:, tile], np.tile(column, (len(group), 1)), group[:, tile]
        places: Ints = np.argsort(np.lexsort(keys, axis=1), axis=1)
        return places

    def _sequence(self, part: Ints) -> Ints:
        """(rank, tile): places of row tiles in the order in which each GPU goes through them."""
        machine, owned = self._machine, self._layer.own_rows
        first = np.flatnonzero(np.diff(part, prepend=-1))
        tiles = np.arange(len(first))
        if self._order == "rotated":
            begin = part[(machine.ranks + 1) % machine.num_ranks * owned]
            return (tiles - begin[:, None]) % len(tiles)
        if self._order == "spread":
            tiles = np.argsort(np.lexsort((first // owned, first % owned)))
        return np.tile(tiles, (machine.num_ranks, 1))

    def _meet(self, kinds: PhaseKinds, after: Tasks) -> Tasks:
        """Let all GPUs wait for one another, if they do: (rank, block) tasks."""
        return self._machine.merging.meet(kinds, after).released if self._is_coordinated else after

    def _own_rows(self, part: Ints) -> Ints:
        """(rank, part): rows of each part (row,) that each GPU owns."""
        own = np.zeros((self._machine.num_ranks, int(part[-1]) + 1), np.int64)
        np.add.at(own, (np.arange(len(part)) // self._layer.own_rows, part), 1)
        return own

    def _rows_of_one(self, rows: Counts) -> Ints:
        """Rows of the row tiles of one GPU; all have the same."""
        return rows[: len(rows) // self._machine.num_ranks]
