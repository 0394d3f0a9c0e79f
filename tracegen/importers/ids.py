"""Expert ids of an array, whatever type a program has given them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tracegen.importers.routed_rows import RoutedRows
from tracegen.importers.values import as_array
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

EXACT = {2: 2**11, 4: 2**24, 8: 2**53}
"""Bytes of a float, and the number up to which it holds every whole number."""
LEAST_OF_MAP = 3
"""Columns from which rows of zeros and ones cannot be ids, since they would repeat one."""


class ExpertIds(NamedTuple):
    """Ids of rows, and what had to be made of the array to get them."""

    ids: Array
    """Expert ids, int64 (..., layer, k); -1 where a slot is empty."""
    experts: int | None = None
    """Experts of a layer, where the array tells."""
    empty: int | None = None
    """Largest value of an unsigned type: an empty slot, where it is no expert."""
    note: str = ""
    """What to tell the user."""
    weights: Array | None = None
    """Weights of the slots, where they came as a map too."""


def expert_ids(array: Any, where: str, weights: Array | None = None) -> ExpertIds:
    """Ids from integers, whole floats, or a map of zeros and ones.

    Parameters
    ----------
    array
        Integers (..., k). Floats that are whole, where a gap (NaN) is an empty slot, as pandas
        makes of a column with gaps. A map (..., expert) of booleans, or of zeros and ones alone.
    where
        Names the array in errors.
    weights
        Of the same shape as the array, or None.

    Raises
    ------
    UserError
        If they are none of these.
    """
    found = as_array(array, where)
    kind = found.dtype.kind
    if kind == "b" or (kind in "iuf" and _is_map(found)):
        return _of_map(found, where, weights)
    if kind in "iu":
        if found.size and int(found.max()) > np.iinfo(np.int64).max:
            msg = f"{where}: {found.max()} is no expert id"  # signed, it would be negative
            raise UserError(msg)
        empty = int(np.iinfo(found.dtype).max) if kind == "u" and found.itemsize < 8 else None
        return ExpertIds(found.astype(np.int64), empty=empty, weights=weights)
    if kind != "f":
        msg = f"{where}: {found.dtype} {found.shape}; expert ids are integers"
        raise UserError(msg)
    gaps = np.isnan(found)
    whole = np.where(gaps, -1, found)
    strange = (whole != np.floor(whole)) | (np.abs(whole) > EXACT.get(found.itemsize, 0))
    if strange.any():
        first = found[tuple(np.argwhere(strange)[0])]
        msg = (
            f"{where}: {found.dtype} {found.shape} with {first}; expert ids are integers, and "
            "floats only where they are whole (scores, or weights?)"
        )
        raise UserError(msg)
    note = f"Expert ids came as {found.dtype}, all of them whole"
    note += f"; gaps ({int(gaps.sum())}) are empty slots." if gaps.any() else "."
    return ExpertIds(whole.astype(np.int64), note=note, weights=weights)


def tell(routed: RoutedRows, found: list[ExpertIds]) -> None:
    """Keep in the rows what arrays said beside their ids: experts, empty slots, notices.

    Parameters
    ----------
    routed
        Changed in place.
    found
        Of all arrays.
    """
    routed.num_experts = max((ids.experts for ids in found if ids.experts), default=None)
    routed.empty = max((ids.empty for ids in found if ids.empty), default=None)
    routed.notices += dict.fromkeys(ids.note for ids in found if ids.note)


def _is_map(found: Array) -> bool:
    """Tell whether numbers are zeros and ones that cannot be ids."""
    if found.ndim < 2 or found.shape[-1] < LEAST_OF_MAP or not found.size:
        return False
    # The first rows alone tell nearly every array of ids.
    few = all(bool(((part == 0) | (part == 1)).all()) for part in (found[:16], found))
    return few and bool((found == 1).any())


def _of_map(found: Array, where: str, weights: Array | None) -> ExpertIds:
    """Ids of a map (..., expert), ascending in each row."""
    if found.ndim < 2:
        msg = f"{where}: {found.dtype} {found.shape}; expert ids are integers, a map has experts"
        raise UserError(msg)
    chosen = found.astype(np.bool_)
    experts, most = found.shape[-1], int(chosen.sum(axis=-1).max(initial=0))
    if not most:
        msg = f"{where}: a map of {experts} experts in which no row has one"
        raise UserError(msg)
    order = np.argsort(~chosen, axis=-1, kind="stable")[..., :most]
    ids = np.where(np.take_along_axis(chosen, order, axis=-1), order, -1)
    if weights is not None and weights.shape == found.shape:
        weights = np.take_along_axis(weights, order, axis=-1)
    note = f"Expert ids came as a map of {found.dtype} over {experts} experts: ids ascend in each row."
    return ExpertIds(ids.astype(np.int64), experts, note=note, weights=weights)
