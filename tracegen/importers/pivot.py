"""Tables with a row for each token and layer, or for each slot of these, as rows for tokens."""

from __future__ import annotations

import numpy as np

from tracegen.importers.values import whole_numbers
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

KEYS = ("rank", "step", "request", "position", "token")
"""Columns that name a token."""
OF_FILE = ("num_ranks", "layers")
"""Arrays that are no columns."""


def by_token(table: dict[str, Array], where: str) -> dict[str, Array]:
    """One row for each token.

    Parameters
    ----------
    table
        Columns, one value a row: ``layer``, ``ids`` with lists (row, k), or one id a row and
        ``slot``; columns that name the token, by which rows are matched where layers have them in
        another order.
    where
        Names the table in errors.

    Returns
    -------
    With ``ids`` (token, layer, k) and ``layers``.

    Raises
    ------
    UserError
        If a token lacks a layer or a slot, or rows cannot be matched.
    """
    rows = table["layer"].shape
    of_file = {name: part for name, part in table.items() if name in OF_FILE or (name == "rank" and part.ndim == 0)}
    table = {name: part for name, part in table.items() if name not in of_file}
    for name, part in {"layer": np.empty(rows), **table}.items():
        flat = name in ("layer", "slot", *KEYS)
        if len(rows) != 1 or part.shape[: part.ndim if flat else 1] != rows:
            msg = (
                f"{where}: {name} is {part.dtype} {part.shape}; with a column 'layer', all columns "
                f"have a value for each of {rows[0] if rows else 0} rows"
            )
            raise UserError(msg)
    keys = [name for name in KEYS if name in table]
    table |= {name: whole_numbers(table[name], f"{where}: {name}") for name in keys}
    if "slot" in table or table["ids"].ndim == 1:
        table = _joined_slots(table, keys, where)
    layer = whole_numbers(table.pop("layer"), f"{where}: layer")
    numbers, counts = np.unique(layer, return_counts=True)
    if len(set(counts.tolist())) != 1:
        told = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        msg = f"{where}: a row for each token and layer is expected; layers have rows {told}"
        raise UserError(msg)
    by_layer = np.argsort(layer, kind="stable").reshape(len(numbers), -1)
    if _disagreeing(table, by_layer, keys):
        order = np.lexsort((*(table[name] for name in reversed(keys)), layer))
        by_layer = order.reshape(len(numbers), -1)
        once = np.unique(np.stack([table[name][by_layer[0]] for name in keys]), axis=1)
        differs = _disagreeing(table, by_layer, keys)
        if differs or once.shape[1] != by_layer.shape[1]:
            msg = (
                f"{where}: the layers have their tokens in different order, and "
                f"{', '.join(keys)} do not name each token in every layer"
            )
            raise UserError(msg)
    pivoted = {name: part[by_layer[0]] for name, part in table.items()}
    for name in ("ids", "weights"):
        if name in table:
            pivoted[name] = np.stack([table[name][rows] for rows in by_layer], axis=1)
    return {**of_file, **pivoted, "layers": numbers}


def _disagreeing(table: dict[str, Array], by_layer: Array, keys: list[str]) -> bool:
    """Tell whether layers name their tokens differently, row by row."""
    return any((table[name][by_layer] != table[name][by_layer[0]]).any() for name in keys)


def _joined_slots(table: dict[str, Array], keys: list[str], where: str) -> dict[str, Array]:
    """Rows for slots as rows with lists of k."""
    if "slot" not in table or table["ids"].ndim != 1 or not keys:
        msg = f"{where}: with one id a row, a column 'slot' and one of {', '.join(KEYS)} are needed to place it"
        raise UserError(msg)
    slot = whole_numbers(table["slot"], f"{where}: slot")
    slots = np.unique(slot)
    order = np.lexsort((slot, *(table[name] for name in reversed(keys)), table["layer"]))
    if len(order) % len(slots) or (slot[order].reshape(-1, len(slots)) != slots).any():
        msg = f"{where}: each of slots {slots.tolist()[:8]} must be there once for each token and layer"
        raise UserError(msg)
    grid = order.reshape(-1, len(slots))
    return {
        name: part[grid if name in ("ids", "weights") else grid[:, 0]] for name, part in table.items() if name != "slot"
    }
