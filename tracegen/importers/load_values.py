"""Loads in what a file holds: arrays, lists, and dictionaries of them under names of tools."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tracegen.importers.values import numbers_in
from tracegen.shared.errors import UserError, value_text
from tracegen.trace.arrays import Array

LOGICAL = ("logical_count", "tokens_per_expert", "expert_counts", "expert_count", "counts", "loads", "load")
"""Names of counts of the model's experts."""
PHYSICAL = (
    "expert_load",
    "expert_load_window",
    "global_expert_load_window",
    "expert_load_pass",
    "physical_count",
    "global_physical_count",
)
"""Names of counts of slots, which a map of slots says the experts of."""
MAPS = ("p2l_map", "physical_to_logical_map")
"""Names of that map: (layer, slot)."""
OTHERS = {
    "records": "it is a recording of passes: `moereplay trace import --format sglang` reads it",
    "physical_to_logical_map": "it is a map of experts: --placement file:PATH reads it",
    "initial_global_assignments": "it is a map of experts: --placement file:PATH reads it",
    "layer_list": "it is a map of experts: --placement file:PATH reads it",
    "expert_ids": "it holds tokens: `moereplay trace import --format arrays` reads it",
    "routed_experts": "it holds tokens: `moereplay trace import --format vllm` reads it",
}
"""Names that say what else a file is."""
MOST_EXPERTS = 2**16
LARGEST_COUNT = 2**48
"""Tokens of an expert: a thousand times what the longest training run has."""
WHAT = "counts of (layer, expert) or (step, layer, expert), {layer: {expert: count}}, or one of these as logical_count"
"""Where loads are expected, in words."""


class LoadPart(NamedTuple):
    """Loads of one file, or of one rank of it."""

    counts: Array
    """int64 (step, layer, expert)."""
    layers: tuple[int, ...] | None = None
    """Numbers of the layers, ascending, where the file has them."""
    rank: int | None = None
    """Rank whose tokens alone were counted; None for those of all."""
    source: int | None = None
    """Rank that wrote the counts of all."""
    is_sparse: bool = False
    """Whether experts that no token chose may be absent."""
    notices: tuple[str, ...] = ()


def part_of(value: Any, where: str) -> LoadPart | None:
    """Loads in a value of a file.

    Parameters
    ----------
    value
        As loaded: an array, lists of numbers, or a dictionary.
    where
        For errors.

    Returns
    -------
    None if it is a dictionary without loads, or no container.

    Raises
    ------
    UserError
        If it holds loads and they are impossible.
    """
    if isinstance(value, np.ndarray | list):
        return LoadPart(_steps(whole(value, where), where))
    if not isinstance(value, Mapping) or not value:
        return None
    name = next((name for name in (*LOGICAL, *PHYSICAL) if name in value), None)
    if name is None:
        numbers = numbers_in(list(value))
        if numbers is not None:
            return _of_layers(value, numbers, where)
        only = [inner for inner in value.values() if isinstance(inner, np.ndarray)]
        is_one = len(value) == len(only) == 1 and not set(OTHERS) & set(value)
        return LoadPart(_steps(whole(only[0], where), where)) if is_one else None
    part = part_of(value[name], f"{where}: {name}")
    if part is None:
        msg = f"{where}: {name} is {value_text(value[name])}; expected {WHAT}"
        raise UserError(msg)
    if name in PHYSICAL:
        part = _logical(part, value, f"{where}: {name}")
    rank = value.get("rank")
    if isinstance(rank, int | np.integer) and not isinstance(rank, bool):
        part = part._replace(source=int(rank))
    return part


def no_loads(value: Any, where: str) -> UserError:
    """Error for a value without loads, saying what it has.

    Parameters
    ----------
    value
        As loaded.
    where
        Of it.
    """
    if not isinstance(value, Mapping):
        return UserError(f"{where}: {value_text(value)}; expected {WHAT}")
    for name, told in OTHERS.items():
        if name in value:
            return UserError(f"{where}: no loads; {told}")
    names = ", ".join(sorted(map(str, value))[:8]) or "nothing"
    return UserError(f"{where}: no loads in {names}; expected {WHAT}")


def parts_of_lines(lines: list[tuple[str, dict[str, Any]]], where: str) -> list[LoadPart]:
    """Loads of JSON lines, a step each; lines without loads say other things.

    Parameters
    ----------
    lines
        Objects, each with where it stands.
    where
        The file.

    Raises
    ------
    UserError
        If no line has loads, or lines differ in layers or experts.
    """
    parts = [part for place, line in lines if (part := part_of(line, place)) is not None]
    if not parts:
        first = lines[0][1] if lines else {}
        raise no_loads(first, where)
    if len({(part.counts.shape[1:], part.layers) for part in parts}) != 1:
        msg = f"{where}: lines differ in layers or experts"
        raise UserError(msg)
    notices = tuple(dict.fromkeys(note for part in parts for note in part.notices))
    counts = np.concatenate([part.counts for part in parts])
    return [LoadPart(counts, parts[0].layers, notices=notices)]


def whole(value: Any, where: str) -> Array:
    """Counts as integers.

    Parameters
    ----------
    value
        Array or lists of numbers; fractions are none, whole numbers of any type will do.
    where
        For errors.

    Raises
    ------
    UserError
        If a value is no count, or lists are of unequal length.
    """
    try:
        # As objects, since numpy takes True for 1 among numbers and "1" for text among all.
        array = value if isinstance(value, np.ndarray) else np.array(value, dtype=object)
    except ValueError as error:
        msg = f"{where}: rows of unequal length"
        raise UserError(msg) from error
    if array.ndim > 3:
        msg = f"{where}: an array of {array.ndim} dimensions; expected {WHAT}"
        raise UserError(msg)
    if array.dtype == object:
        kinds = {type(one) for one in array.flat}
        if list in kinds:
            msg = f"{where}: rows of unequal length"
            raise UserError(msg)
        if not kinds <= {int, float}:
            odd = next(one for one in array.flat if type(one) not in (int, float))
            raise _no_count(odd, where)
        largest = max(map(abs, array.flat), default=0)
        if largest > LARGEST_COUNT and float not in kinds:
            raise _no_count(largest, where)
        array = array.astype(np.float64 if float in kinds else np.int64)
    if array.dtype.kind not in "iuf":
        msg = f"{where}: values of type {array.dtype}; counts are whole numbers"
        raise UserError(msg)
    with np.errstate(invalid="ignore"):
        is_count = (array >= 0) & (array <= LARGEST_COUNT) & (array == np.floor(array))
    if not is_count.all():
        raise _no_count(array[~is_count].flat[0], where)
    found: Array = array.astype(np.int64)
    return found


def _no_count(value: Any, where: str) -> UserError:
    told = value.item() if isinstance(value, np.generic) else value
    return UserError(f"{where}: {value_text(told)} is no count; counts are whole numbers from 0")


def _steps(array: Array, where: str) -> Array:
    """Counts of (step, layer, expert) from those of fewer dimensions."""
    if not array.ndim or not array.size:
        msg = f"{where}: an array {array.shape}; expected {WHAT}"
        raise UserError(msg)
    return array.reshape((1,) * (3 - array.ndim) + array.shape)


def _of_layers(value: Mapping[Any, Any], numbers: list[int], where: str) -> LoadPart | None:
    """Loads of a dictionary with an entry for each layer: counts by expert, or lists of them."""
    if all(isinstance(inner, int | float) for inner in value.values()):
        return LoadPart(_steps(_by_expert(value, numbers, where), where), is_sparse=True)
    rows: dict[int, Array] = {}
    for number, (name, inner) in zip(numbers, value.items(), strict=True):
        place = f"{where}: {name}"
        if isinstance(inner, Mapping):
            experts = numbers_in(list(inner))
            if experts is None:
                return None
            counts = _by_expert(inner, experts, place)
        elif isinstance(inner, np.ndarray | list):
            counts = whole(inner, place)
        else:
            return None
        if counts.ndim != 1:
            return None
        rows[number] = counts
    widest = max(row.size for row in rows.values())
    layers = tuple(sorted(rows))
    table = np.stack([np.pad(rows[number], (0, widest - rows[number].size)) for number in layers])
    is_sparse = any(isinstance(inner, Mapping) for inner in value.values())
    return LoadPart(_steps(table, where), layers, is_sparse=is_sparse)


def _by_expert(value: Mapping[Any, Any], experts: list[int], where: str) -> Array:
    """Counts of one layer from a dictionary by expert, zero for experts that are not there."""
    if max(experts) >= MOST_EXPERTS:
        msg = f"{where}: an expert {max(experts)}; at most {MOST_EXPERTS} experts are read"
        raise UserError(msg)
    counts = np.zeros(max(experts) + 1, np.int64)
    counts[experts] = whole(list(value.values()), where)
    return counts


def _logical(part: LoadPart, value: Mapping[str, Any], where: str) -> LoadPart:
    """Counts of slots as those of their experts."""
    name = next((name for name in MAPS if name in value), None)
    if name is None:
        note = "These counts are of slots, and no map of slots is there: they were taken for experts."
        return part._replace(notices=(note,))
    experts = whole(value[name], f"{where}: {name}")
    steps, layers, slots = part.counts.shape
    if experts.shape != (layers, slots):
        msg = f"{where}: counts of {(layers, slots)} (layer, slot), {name} is {experts.shape}"
        raise UserError(msg)
    if experts.max() >= slots:
        msg = f"{where}: {name} has an expert {experts.max()}, there are {slots} slots"
        raise UserError(msg)
    counts = np.zeros((steps, layers, int(experts.max()) + 1), np.int64)
    for layer in range(layers):
        for slot, expert in enumerate(experts[layer]):
            counts[:, layer, expert] += part.counts[:, layer, slot]
    return part._replace(counts=counts)
