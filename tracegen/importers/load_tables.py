"""Loads in tables: a row for each layer and expert, or a column for each expert."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers import files
from tracegen.importers.columns import ParquetColumns
from tracegen.importers.load_values import LoadPart, whole
from tracegen.shared.errors import UserError

NAMES = {
    "layer": ("layer_id", "layer", "layer_idx", "layer_index", "moe_layer", "moe_layer_id"),
    "expert": ("expert_id", "expert", "expert_idx", "expert_index", "logical_expert"),
    "count": (
        "count",
        "counts",
        "load",
        "tokens",
        "num_tokens",
        "token_count",
        "hits",
        "activations",
        "count_all_topk",
    ),
    "step": ("step", "iteration", "iter", "forward_pass_id", "pass"),
    "rank": ("rank", "rank_id", "ep_rank", "dp_rank"),
}
"""Names of columns, in any case; the first is SGLang's."""
INDEX = ("", "unnamed: 0", "index", "__index_level_0__")
"""Names that pandas gives to the numbers of rows."""
LARGEST = 10_000_000
"""Cells of a table, and of what its numbers of steps, layers and experts span."""


def parts_of_table(path: Path, suffix: str) -> list[LoadPart]:
    """Loads of a table, separate for each rank that it names.

    Parameters
    ----------
    path
        Of a ``.csv``, ``.tsv`` or ``.parquet`` file.
    suffix
        One of these suffixes.

    Raises
    ------
    UserError
        If it has no columns of loads, a pair of layer and expert twice, or cells that are no
        counts.
    """
    where = str(path)
    if suffix == ".parquet":
        return parts_of_columns(ParquetColumns(path), where)
    columns, notices = _text(path)
    return [part._replace(notices=notices) for part in parts_of_columns(columns, where)]


def columns_of(value: Any) -> dict[str, list[Any]] | None:
    """Columns of a table that stands in JSON: a list of rows, or a dictionary of columns.

    Parameters
    ----------
    value
        As loaded.

    Returns
    -------
    None if it is no table with a row for each layer and expert.
    """
    columns: dict[str, list[Any]] = {}
    if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
        if all(row.keys() == value[0].keys() for row in value):
            columns = {name: [row[name] for row in value] for name in value[0]}
    elif isinstance(value, dict) and all(isinstance(part, list) for part in value.values()):
        columns = value
    lower = {name.lower() for name in map(str, columns)}
    is_table = all(lower & set(NAMES[what]) for what in ("layer", "expert", "count"))
    return columns if is_table and len(set(map(len, columns.values()))) == 1 else None


def parts_of_columns(columns: Any, where: str) -> list[LoadPart]:
    """Loads of the columns of a table, separate for each rank that it names.

    Parameters
    ----------
    columns
        By name.
    where
        The file.

    Raises
    ------
    UserError
        As :func:`parts_of_table`.
    """
    present = list(columns.keys())
    known = {what: next((name for name in present if name.lower() in names), None) for what, names in NAMES.items()}
    if known["layer"] and known["expert"] and known["count"]:
        return _long(columns, known, where)
    experts = _expert_columns(present, known)
    if not experts:
        msg = (
            f"{where}: columns {', '.join(present[:8])}; expected "
            f"{NAMES['layer'][0]},{NAMES['expert'][0]},{NAMES['count'][0]}, or a column for each "
            "expert, such as expert_0"
        )
        raise UserError(msg)
    table = np.stack([whole(columns[name], f"{where}: {name}") for name in experts], axis=1)
    layers = known["layer"] or next((name for name in present if name.lower() in INDEX), None)
    if layers is None:
        return [LoadPart(table[None])]
    numbers = whole(columns[layers], f"{where}: {layers}")
    if len(set(numbers.tolist())) < numbers.size:
        msg = f"{where}: a layer is there twice; with a column for each expert, a row is a layer"
        raise UserError(msg)
    order = np.argsort(numbers)
    return [LoadPart(table[order][None], tuple(numbers[order].tolist()))]


def _long(columns: Any, known: dict[str, str | None], where: str) -> list[LoadPart]:
    """Loads of a table with a row for each layer and expert, and maybe step and rank."""
    read = {what: whole(columns[name], f"{where}: {name}") for what, name in known.items() if name}
    zero = np.zeros(read["layer"].size, np.int64)
    ranks = read.get("rank", zero)
    steps, step = np.unique(read.get("step", zero), return_inverse=True)
    layers, layer = np.unique(read["layer"], return_inverse=True)
    if not layers.size:
        msg = f"{where}: no rows"
        raise UserError(msg)
    experts = int(read["expert"].max()) + 1
    if steps.size * layers.size * experts > LARGEST:
        msg = f"{where}: {steps.size} steps, {layers.size} layers and an expert {experts - 1}"
        raise UserError(f"{msg}; at most {LARGEST} counts are read")
    place = np.stack([ranks, step, layer, read["expert"]])
    _, first, times = np.unique(place, axis=1, return_index=True, return_counts=True)
    if (times > 1).any():
        row = int(first[np.argmax(times > 1)])
        msg = (
            f"{where}: layer {read['layer'][row]}, expert {read['expert'][row]} is there "
            f"{times.max()} times: files of several ranks or steps in one? Name a column rank or "
            "step"
        )
        raise UserError(msg)
    stem = re.search(r"rank[_-]?(\d+)", Path(where).name)
    parts = []
    for rank in np.unique(ranks).tolist():
        own = ranks == rank
        counts = np.zeros((steps.size, layers.size, experts), np.int64)
        counts[step[own], layer[own], read["expert"][own]] = read["count"][own]
        number = rank if known["rank"] else int(stem[1]) if stem else None
        parts.append(LoadPart(counts, tuple(layers.tolist()), number, is_sparse=True))
    return parts


def _expert_columns(present: list[str], known: dict[str, str | None]) -> list[str]:
    """Names of the columns of experts 0, 1, ... in their order; none where one is missing."""
    found = {}
    for name in present:
        match = re.fullmatch(r"(?:expert|exp|e)?[_ -]?(\d{1,6})", name.lower())
        if match and name not in known.values():
            found[int(match[1])] = name
    whole_range = sorted(found) == list(range(len(found)))
    return [found[number] for number in sorted(found)] if whole_range else []


def _text(path: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Columns of a table of text, and what to tell; numbers where they are, else text."""
    text = files.load_text(path).splitlines()
    delimiter = max(",;\t", key=(text or [""])[0].count)
    lines = [
        (number, [cell.strip() for cell in line])
        for number, line in enumerate(csv.reader(text, delimiter=delimiter), 1)
        if any(line)
    ]
    if not lines:
        msg = f"{path}: no rows"
        raise UserError(msg)
    names, notices = lines[0][1], []
    counted = [str(place) for place in range(len(names))]
    if names == counted and len(lines) > 1 and len(names) > 1:
        lines = lines[1:]  # as pandas names the columns of a matrix
        notices.append(f"The first line, 0 to {names[-1]}, was taken for the names of experts.")
    elif all(_is_number(cell) for cell in names):  # a matrix without a header
        names = counted
    else:
        names[0] = names[0].removeprefix("\ufeff")
        lines = lines[1:]
    if len(set(names)) < len(names) or len(lines) * len(names) > LARGEST:
        msg = f"{path}: columns of the same name, or more than {LARGEST} cells"
        raise UserError(msg)
    for number, cells in lines:
        if len(cells) != len(names):
            msg = f"{path}, line {number}: {len(cells)} fields of {len(names)}"
            raise UserError(msg)
    columns = {name: [_value(cells[place]) for _, cells in lines] for place, name in enumerate(names)}
    return columns, tuple(notices)


def _is_number(text: str) -> bool:
    return not isinstance(_value(text), str)


def _value(text: str) -> int | float | str:
    """A cell as a number, where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
