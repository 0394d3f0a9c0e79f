"""Groups of different sizes in one flat array: positions in a group, runs cut into pieces."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Counts, Ints
from tracegen.trace.arrays import place_in_group as places

__all__ = ["Ints", "RunPieces", "cut_runs", "firsts", "order_by", "pieces_from", "places", "places_in_runs"]


def firsts(counts: Counts) -> Ints:
    """First entry of each group, where groups of `counts` (group,) follow one another: (group,)."""
    begin: Ints = counts.cumsum() - counts
    return begin


def order_by(*keys: Ints) -> Ints:
    """Order of entries by keys from 0 on, two or more as in `numpy.lexsort`; equal ones stay in order: (entry,).

    NumPy puts numbers of 16 bits in order in a time that grows with their count alone.

    Examples
    --------
    >>> order_by(np.array([5, 3, 5, 0]), np.array([1, 0, 0, 1])).tolist()
    [1, 2, 3, 0]
    """
    order: Ints = np.lexsort([key.astype(np.min_scalar_type(key.max(initial=0))) for key in keys])
    return order


def places_in_runs(key: Ints) -> Ints:
    """Position of every entry within its run of equal keys: (entry,).

    Examples
    --------
    >>> places_in_runs(np.array([7, 7, 4, 7])).tolist()
    [0, 1, 0, 0]
    """
    index = np.arange(len(key), dtype=np.int64)
    is_new = np.ones(len(key), np.bool_)
    is_new[1:] = key[1:] != key[:-1]
    place: Ints = index - np.maximum.accumulate(np.where(is_new, index, 0))
    return place


class RunPieces(NamedTuple):
    """Entries of runs, cut into pieces.

    Attributes
    ----------
    first
        (piece,): its first entry.
    size
        (piece,): how many entries it has.
    of_entry
        (entry,): the piece of each entry.
    """

    first: Ints
    size: Ints
    of_entry: Ints


def cut_runs(key: Ints, most: int) -> RunPieces:
    """Cut runs of equal keys (entry,) into pieces of `most` entries; a run's last may be shorter.

    Examples
    --------
    >>> cut_runs(np.array([7, 7, 7, 4]), 2).size.tolist()
    [2, 1, 1]
    """
    return pieces_from(places_in_runs(key) % most == 0)


def pieces_from(is_first: npt.NDArray[np.bool_]) -> RunPieces:
    """Pieces that begin where `is_first` (entry,) says; the first entry begins one."""
    first = np.flatnonzero(is_first)
    size: Ints = np.diff(np.append(first, len(is_first)))
    of_entry: Ints = np.cumsum(is_first) - 1
    return RunPieces(first, size, of_entry)
