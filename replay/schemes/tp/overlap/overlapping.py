"""Schemes that overlap products with the collectives beside them.

They overlap a product with the sums behind it, and with sequence parallelism a product with the
gather before it, where nothing lies between the two and the product is one matrix. In front of
experts, and behind them, rows are gathered and sums added up by a kernel alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from replay.schemes.tp.base import TensorScheme
from replay.schemes.tp.traffic import one_way

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.model.arrays import Counts, Ints, Ranks, Tasks
    from replay.model.machine.machine import Machine
    from replay.schemes.options import Options

WITHOUT_GATHERS = (
    "the sources overlap a product with the all-reduce behind it; with sequence_parallel=true the "
    "all-reduce's first half is overlapped with the product before it, and the gather, which they "
    "do not have, with the product behind it, as its mirror"
)


class OverlapScheme(TensorScheme):
    """Products and collectives at the same time.

    The option ``sequence_parallel`` decides whether there are gathers, and with them the classes of
    payload.

    Parameters
    ----------
    moves
        Class of payload of gathers and of sums.
    options
        See `TensorScheme`.
    """

    def __init__(self, moves: str, options: Options | None = None) -> None:
        self._moves = moves
        super().__init__(options)
        self._settle()

    def with_options(self, given: Mapping[str, Any]) -> Self:
        """See `TensorScheme`."""
        changed = super().with_options(given)
        changed._settle()
        return changed

    def _settle(self) -> None:
        """Take over what follows from the options."""
        self.sequence_parallel = self.options.sequence_parallel
        self.traffic = one_way(self._moves, sequence_parallel=self.sequence_parallel)


# ---- rows of owners ------------------------------------------------------------------------------


class OverlapBlocks(NamedTuple):
    """Rows of all tokens, cut into blocks: each owner's share into equal parts.

    Attributes
    ----------
    first
        (block + 1,): first row of each, and the number of rows; the blocks of owner o are ``[o p,
        (o + 1) p)`` with p parts.
    parts
        Of each share.
    """

    first: Ints
    parts: int

    @classmethod
    def of(cls, tokens: int, num_ranks: int, parts: int = 1) -> OverlapBlocks:
        """Cut; row r belongs to owner ``r num_ranks // tokens``."""
        share = -(-np.arange(num_ranks + 1) * tokens // num_ranks)
        size = np.diff(share)[:, None]
        inside = share[:-1, None] + size * np.arange(parts) // parts
        return cls(np.append(inside.ravel(), tokens), parts)

    def block_range(self, first_row: Ints, rows: Counts) -> tuple[Ints, Ints]:
        """Blocks in which tiles have rows: two (tile,), the first and the last; some are empty."""
        found = np.searchsorted(self.first, (first_row, first_row + rows - 1), side="right") - 1
        return found[0], found[1]


def pairs_of(first: Ints, last: Ints) -> tuple[Ints, Ints]:
    """All pairs of an entry and a number in its ``[first, last]``: two (pair,)."""
    count = last - first + 1
    entry = np.repeat(np.arange(len(first)), count)
    return entry, np.arange(len(entry)) - np.repeat(np.cumsum(count) - count, count) + first[entry]


def when_rows_are_known(
    machine: Machine,
    blocks: OverlapBlocks,
    rank: Ranks,
    first_row: Ints,
    rows: Counts,
    begun: Tasks,
    known: Ints,
) -> Ints:
    """Marks at which a GPU knows of all rows of each tile: (tile,).

    Parameters
    ----------
    rank, first_row, rows
        (tile,).
    begun
        (rank,): when the product's kernel runs.
    known
        (rank, block): when a GPU knows of the rows of a block.
    """
    ready = machine.mark(rank, begun[rank])
    tile, block = pairs_of(*blocks.block_range(first_row, rows))
    machine.order(known[rank[tile], block], ready[tile])
    return ready
