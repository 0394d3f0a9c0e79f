"""Reading quantities out of the JSON of results, and putting seeds together."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from replay.errors import UserError, unknown

if TYPE_CHECKING:
    from replay.studies.sweeps.study import QuantityColumn

REDUCE: dict[str, Callable[[list[float]], float]] = {
    "min": min,
    "max": max,
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
}


def geometric_mean(values: Sequence[float]) -> float | None:
    """Geometric mean of numbers above zero; None where there is none, or one is not."""
    if not values or min(values) <= 0:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def value_of(column: QuantityColumn, result: Mapping[str, Any]) -> float | None:
    """The quantity that a column shows, without regard to a baseline.

    Parameters
    ----------
    result
        The JSON of a result, as objects.

    Returns
    -------
    None where the result has no such thing, as a scheme that has no tables has no hit rate.

    Raises
    ------
    UserError
        If what stands there is not a number, or a list of them that nothing reduces, or the value
        is beyond what a number holds.
    """
    found = [_number(column, path, result) for path in paths_of(column)]
    there = [one for one in found if one is not None]
    if not there:
        return None
    value = sum(there) if len(found) > 1 else there[0]
    if column.per is not None:
        per = _number(column, column.per, result)
        if not per:
            return None
        value /= per
    value *= column.scale
    if not math.isfinite(value):
        paths = " + ".join(paths_of(column))
        message = f"column {column.header!r}: {paths} times {column.scale:g} is {value}"
        raise UserError(message)
    return value


def paths_of(column: QuantityColumn) -> list[str]:
    """Paths whose values a column adds."""
    return [column.path] if isinstance(column.path, str) else column.path


def is_time(column: QuantityColumn) -> bool:
    """Tell whether a column is a time, of which less is better."""
    return column.baseline is None and column.per is None and all(path.endswith("_us") for path in paths_of(column))


def _number(column: QuantityColumn, path: str, result: Mapping[str, Any]) -> float | None:
    found = [value for value in _find(result, path.split(".")) if value is not None]
    values: list[Any] = []
    is_list = "*" in path.split(".")
    for value in found:
        is_list = is_list or isinstance(value, list)
        values += value if isinstance(value, list) else [value]
    if not values:
        return None
    if not all(isinstance(value, int | float) for value in values):
        what = next(value for value in values if not isinstance(value, int | float))
        message = f"column {column.header!r}: {path} is {type(what).__name__}, not a number"
        raise UserError(message)
    if column.reduce is not None:
        return float(REDUCE[column.reduce](values))
    if is_list:
        message = f"column {column.header!r}: {path} holds {len(values)} values; say reduce = {' or '.join(REDUCE)}"
        raise UserError(message)
    return float(values[0])


def _find(value: Any, parts: Sequence[str]) -> list[Any]:
    """All that a path leads to; nothing where it leads nowhere."""
    if not parts:
        return [value]
    first, rest = parts[0], parts[1:]
    if isinstance(value, list):
        if first == "*":
            return [found for entry in value for found in _find(entry, rest)]
        if not first.lstrip("-").isdecimal() or not -len(value) <= int(first) < len(value):
            return []
        return _find(value[int(first)], rest)
    if isinstance(value, dict):
        if first == "*":
            return [found for key in sorted(value) for found in _find(value[key], rest)]
        # Names may hold dots, as those of hardware values do.
        for end in range(1, len(parts) + 1):
            name = ".".join(parts[:end])
            if name in value:
                return _find(value[name], parts[end:])
    return []


def check_path(column: QuantityColumn, kind_of_result: type[BaseModel], where: str) -> None:
    """Refuse a path that no result can have, before the work that would fill it.

    Parameters
    ----------
    kind_of_result
        The class of what is replayed.
    where
        What to call the grid in errors.

    Raises
    ------
    UserError
        Naming the part that does not exist and what does.
    """
    for path in (*paths_of(column), column.per):
        if path is None:
            continue
        try:
            kind = _walk(kind_of_result, path.split("."))
        except UserError as error:
            message = f"{where}: column {column.header!r}: path {path!r}: {error}"
            raise UserError(message) from None
        is_list = typing.get_origin(kind) in (list, tuple) or "*" in path.split(".")
        if is_list and column.reduce is None:
            message = f"{where}: column {column.header!r}: {path} is a list; say reduce = {' or '.join(REDUCE)}"
            raise UserError(message)
        has = None
        if kind is str or typing.get_origin(kind) is dict:
            has = ""
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            has = f"; it has {', '.join(kind.model_fields)}"
        if has is not None:
            message = f"{where}: column {column.header!r}: {path} is not a number{has}"
            raise UserError(message)


def _walk(kind: Any, parts: Sequence[str]) -> Any:
    """Type of what a path through a result leads to, as far as the types say what there is."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not type(None)]
        return _walk(kinds[0], parts) if len(kinds) == 1 else Any
    if not parts:
        return kind
    if origin in (list, tuple):
        if parts[0] != "*" and not parts[0].lstrip("-").isdecimal():
            message = f"{parts[0]!r} stands at a list; write a position, or * for all"
            raise UserError(message)
        return _walk(arguments[0], parts[1:])
    if origin is dict:
        # A name may hold dots, but only where the values are of no particular kind.
        return Any if arguments[1] is Any else _walk(arguments[1], parts[1:])
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if parts[0] == "*":
            return next(_walk(one.annotation, parts[1:]) for one in kind.model_fields.values())
        if parts[0] not in kind.model_fields:
            raise unknown("entry", parts[0], kind.model_fields)
        return _walk(kind.model_fields[parts[0]].annotation, parts[1:])
    if kind in (int, float, str, bool):
        message = f"{parts[0]!r} stands after a value that has no parts"
        raise UserError(message)
    return Any
