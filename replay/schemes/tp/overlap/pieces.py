"""Rows and sums cut into the pieces that travel as one message each.

The rows that one GPU owns are a *chunk*. A piece lies within one chunk, so that all of it has the
same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.model.work.ragged import places
from replay.model.work.transformer_layer import BF16

if TYPE_CHECKING:
    from replay.model.arrays import Bytes, Counts, Ints
    from replay.model.compute.row_tiles import RowTiles
    from replay.model.work.transformer_layer import TensorLayer
    from replay.schemes.tp.matrices import TiledProduct


@dataclass(frozen=True)
class RowPieces:
    """Pieces of the rows of all tokens, the same on every GPU.

    Attributes
    ----------
    chunk
        (piece,): GPU that owns the rows.
    first_row, rows
        (piece,): number of the first row among those of all tokens, and how many.
    row_bytes
        (piece,): bytes of a row that are in the piece.
    """

    chunk: Ints
    first_row: Ints
    rows: Counts
    row_bytes: Bytes

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def nbytes(self) -> Bytes:
        """(piece,): payload."""
        return self.rows * self.row_bytes


def whole_rows(layer: TensorLayer, most_bytes: int) -> RowPieces:
    """Whole rows of every chunk, as many to a piece as fit `most_bytes`, at least one."""
    most = max(1, most_bytes // layer.row_bytes)
    of_chunk = -(-layer.own_rows // most)
    chunk = np.repeat(np.arange(layer.num_ranks), of_chunk)
    start = np.tile(np.arange(of_chunk), layer.num_ranks) * most
    rows = np.minimum(most, layer.own_rows - start)
    width = np.full(len(chunk), layer.row_bytes)
    return RowPieces(chunk, chunk * layer.own_rows + start, rows, width)


def pieces_between(pieces: RowPieces, first_row: Ints, rows: Counts) -> tuple[Ints, Ints]:
    """Find the pieces of whole rows that runs of rows lie in: (entry,) runs and pieces.

    Parameters
    ----------
    first_row, rows
        (run,).
    """
    ends = pieces.first_row + pieces.rows
    begin = np.searchsorted(ends, first_row, side="right")
    count = np.searchsorted(pieces.first_row, first_row + rows) - begin
    run = np.repeat(np.arange(len(first_row)), count)
    return run, begin[run] + places(count)


class Sums(NamedTuple):
    """Partial sums that a product makes, in pieces.

    Attributes
    ----------
    pieces
        A column tile each, or its part in one chunk.
    made
        (rank, piece): task that makes it on each GPU.
    """

    pieces: RowPieces
    made: Ints


def sums_of(tiled: TiledProduct, layer: TensorLayer) -> Sums:
    """Cut the result of a product into pieces, by its column tiles and the chunks."""
    tiles, tasks, n = tiled.tiles, tiled.tasks, layer.num_ranks
    num_tiles = len(tiles) // n  # every GPU multiplies as many rows
    first, rows = tiled.first_row[:num_tiles], tiles.rows[:num_tiles]
    num_columns = len(tasks.columns) // len(tiles)
    task = np.empty((n, num_tiles, num_columns), np.int64)
    width = np.empty((num_tiles, num_columns), np.int64)
    rank, tile = np.divmod(tasks.column_tile, num_tiles)
    task[rank, tile, tasks.column_index] = tasks.columns
    width[tile, tasks.column_index] = tiled.columns
    begin, end = chunks_of(tiles, tiled.first_row, layer)
    count = (end - begin + 1)[:num_tiles]
    part = np.repeat(np.arange(num_tiles), count)
    chunk = begin[part] + places(count)
    start = np.maximum(first[part], chunk * layer.own_rows)
    stop = np.minimum((first + rows)[part], (chunk + 1) * layer.own_rows)
    part, column = np.repeat(part, num_columns), np.tile(np.arange(num_columns), len(part))
    each = np.repeat(np.arange(len(chunk)), num_columns)
    pieces = RowPieces(chunk[each], start[each], (stop - start)[each], width[part, column] * BF16)
    return Sums(pieces, task[:, part, column])


def chunks_of(tiles: RowTiles, first_row: Ints, layer: TensorLayer) -> tuple[Ints, Ints]:
    """First and last chunk that each row tile has rows of: two (tile,)."""
    return first_row // layer.own_rows, (first_row + tiles.rows - 1) // layer.own_rows
