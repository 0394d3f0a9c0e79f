"""Loads in tables: a row for each layer and expert, or a column for each expert."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.errors import UserError
from tracegen.importers import files
from tracegen.importers.columns import ParquetColumns
from tracegen.importers.load_values import LoadPart, whole

NAMES = {
    "layer": ("layer_id", "layer", "layer_idx", "layer_index", "moe_layer", "moe_layer_id"),
    "expert": ("expert_id", "expert", "expert_idx", "expert_index", "logical_expert"),
    "count": ("count", "counts", "load", "tokens", "num_tokens", "token_count", "hits",
              "activations", "count_all_topk"),
    "step": ("step", "iteration", "iter", "forward_pass_id", "pass"),
    "rank": ("rank", "rank_id", "ep_rank", "dp_rank"),
}  # fmt: skip
"""Names of columns, in any case; the first is SGLang's."""
LARGEST = 10_000_000
"""Cells of a table, and of what its numbers of steps, layers and experts span."""


def parts_of_table(path: Path, suffix: str) -> list[LoadPart]:
    """Loads of a table, apart for each rank that it tells.

    Parameters
    ----------
    path
        Of a ``.csv``, ``.tsv`` or ``.parquet`` file.
    suffix
        Which of them it is.

    Raises
    ------
    UserError
        If it has no columns of loads, a pair of layer and expert twice, or cells that are no
        counts.
    """
    where = str(path)
    columns: Any = _text(path, suffix) if suffix != ".parquet" else ParquetColumns(path)
    present = list(columns.keys())
    known = {
        what: next((name for name in present if name.lower() in names), None)
        for what, names in NAMES.items()
    }
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
    layers = known["layer"]
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


def _text(path: Path, suffix: str) -> dict[str, Any]:
    """Columns of a table of text: numbers where they are, text where they are not."""
    delimiter = "\t" if suffix == ".tsv" else ","
    lines = [
        (number, [cell.strip() for cell in line])
        for number, line in enumerate(
            csv.reader(files.load_text(path).splitlines(), delimiter=delimiter), 1
        )
        if any(line)
    ]
    if not lines:
        msg = f"{path}: no rows"
        raise UserError(msg)
    names = lines[0][1]
    if all(_is_number(cell) for cell in names):  # a matrix without a header
        names = [str(place) for place in range(len(names))]
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
    return {name: [_value(cells[place]) for _, cells in lines] for place, name in enumerate(names)}


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
