"""Rows of a dump that are no tokens: found, counted, and left out or kept.

A row without a route, of zeros alone, or whose weights are all zero is left out. A row that is
there several times in a row may be real: it is counted and kept, unless the user says otherwise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tracegen.importers import files
from tracegen.importers.options import ImportOptions
from tracegen.importers.routed_rows import RoutedRows
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

MASKED = "masked (padding)"
"""Reason for rows that a mask marks."""
REPEAT_SHARE = 0.05
"""Share of rows equal to the row before, in all layers, from which it is worth a notice. Two
tokens that agree in all layers are rare; published vLLM logs have 31 to 87 % of them."""


def drop_missing(routed: RoutedRows) -> None:
    """Leave rows out that have no route.

    Zero in every slot would be expert 0 several times, which no router does; with one slot it
    cannot be told from a real choice.

    Parameters
    ----------
    routed
        Changed in place; reasons and numbers are kept.
    """
    routed.keep(np.asarray((routed.ids >= 0).any(axis=(1, 2))), "no expert in any layer (missing)")
    if routed.ids.shape[2] > 1 and len(routed.ids):
        zero = np.all(routed.ids <= 0, axis=(1, 2))
        routed.keep(~zero, "zero in every slot of every layer (padding)")
    if routed.weights is not None and len(routed.ids):
        idle = np.all(routed.weights == 0, axis=(1, 2))
        if idle.all():
            routed.weights = None
            routed.notices.append("All weights are zero: they were not recorded, and left out.")
        else:
            routed.keep(~idle, "zero weight in every slot of every layer (masked)")


def tell_repeats(routed: RoutedRows, options: ImportOptions) -> None:
    """Notice rows that repeat others; leave them out if that was asked for.

    Parameters
    ----------
    routed
        Changed in place.
    options
        ``drop_repeats``.
    """
    if routed.drawn:
        return
    drop = options.drop_repeats
    if len(routed.ids) < 2:
        return
    same = np.zeros(len(routed.ids), np.bool_)
    same[1:] = (routed.ids[1:] == routed.ids[:-1]).all(axis=(1, 2))
    tail = _tails(routed, same)
    if drop:
        why = "one row again and again up to the end of a step (padding)"
        routed.keep(~tail, why)
        routed.keep(~same[~tail], "repeats of the row before in every layer (warm-up, padding)")
        return
    if tail.any():
        steps = len(np.unique(routed.step[tail]))
        routed.notices.append(
            f"{int(tail.sum())} rows at the end of steps ({steps}) are one row again and again: "
            "padding to a fixed size? They were kept; a mask tells them, or --drop-repeats leaves "
            "them out."
        )
    share = float(same.mean())
    if share >= REPEAT_SHARE:
        before, after = _imbalance(routed.ids), _imbalance(routed.ids[~same])
        routed.notices.append(
            f"{int(same.sum())} of {same.size} rows ({share:.0%}) repeat the row before in every "
            f"layer: warm-up or padding? Without them the busiest expert has {after:.2f} times "
            f"the mean, with them {before:.2f}; --drop-repeats leaves them out."
        )


def _tails(routed: RoutedRows, same: Array) -> Array:
    """Rows of runs of one row, at least two, that end a step on a rank but are not all of it."""
    group = np.zeros(len(same), np.bool_)
    group[1:] = routed.step[1:] != routed.step[:-1]
    if routed.rank is not None:
        group[1:] |= routed.rank[1:] != routed.rank[:-1]
    group[0] = True
    begin_run = ~same | group
    first = np.flatnonzero(begin_run)
    behind = np.append(first[1:], len(same))
    length = behind - first
    ends = behind == len(same)
    ends[~ends] = group[behind[~ends]]
    is_tail: Array = np.repeat(ends & ~group[first] & (length > 1), length)
    return is_tail


def _imbalance(ids: Array) -> float:
    """Largest load over mean load, the median over layers."""
    ratios = []
    for layer in range(ids.shape[1]):
        chosen = ids[:, layer][ids[:, layer] >= 0]
        if chosen.size:
            counts = np.bincount(chosen)
            ratios.append(float(counts.max() * counts.size / chosen.size))
    return float(np.median(ratios)) if ratios else 0.0


def load_mask(path: Path, num_files: int) -> Array:
    """Attention mask of a file of its own.

    Parameters
    ----------
    path
        ``.npy`` or ``.pt``.
    num_files
        Files whose rows it could mark; which of several it belongs to is not known.

    Raises
    ------
    UserError
        If there is no such file, it holds no array of yes or no, or there are several files.
    """
    if num_files > 1:
        msg = f"--mask {path}: it is of one file, {num_files} were given: put a mask into each"
        raise UserError(msg)
    if not regular.exists(path):
        msg = f"{path}: no such file"
        raise UserError(msg)
    found = files.load_array(path, str(path)) if path.suffix == ".npy" else files.load_tensors(path)
    mask: Array = np.asarray(found)
    if mask.dtype.kind not in "iufb" or not ((mask == 0) | (mask == 1)).all():
        msg = f"{path}: {mask.dtype} {mask.shape}; a mask of ones, and zeros for padding, is expected"
        raise UserError(msg)
    return mask
