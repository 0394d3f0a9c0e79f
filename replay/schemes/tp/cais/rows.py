"""Rows of all tokens in pieces that have one home."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from replay.model.arrays import Counts, Ints


class Cut(NamedTuple):
    """Consecutive rows: (piece,).

    Attributes
    ----------
    part
        The part of all rows that a piece belongs to, such as the row tile.
    home
        The GPU that owns its rows.
    first, rows
        Number of its first row, and how many it has.
    """

    part: Ints
    home: Ints
    first: Ints
    rows: Counts


def cut_rows(part: Ints, owned: int, most: int) -> Cut:
    """Cut rows into pieces that lie in one part and one GPU.

    Parameters
    ----------
    part
        (row,): part of each row; those of a part are consecutive.
    owned
        Rows that each GPU owns, in order of the GPUs.
    most
        Most rows of a piece.
    """
    row = np.arange(len(part))
    home = row // owned
    begins = (np.diff(part, prepend=-1) != 0) | (row % owned == 0)
    place = row - np.maximum.accumulate(np.where(begins, row, 0))
    first = np.flatnonzero(place % most == 0)
    return Cut(part[first], home[first], first, np.diff(first, append=len(part)))


def overlaps(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Parts of one division of the rows (row,) and of another that share rows: two (pair,)."""
    pairs = np.unique(np.stack((one, other)), axis=1)
    return pairs[0], pairs[1]
