"""Pairs of results of two files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel

from replay.experiments.base.names import row_names
from replay.experiments.base.result import TimedResult
from replay.experiments.layer.result import Result
from replay.measure.parts import CriticalPathTimes, Exposure, OverheadTasks
from replay.measure.result import ChainResult, LayerResult, Measures


class Pair(NamedTuple):
    """Results of one scheme in two files, `alike`, under the name it has in tables."""

    name: str
    before: TimedResult
    after: TimedResult


LATER: dict[type, tuple[str, ...]] = {
    LayerResult: ("token_latency_from_start_us", "memory"),
    ChainResult: ("memory",),
    Measures: ("exposure", "sm_time_us"),
    Exposure: ("copying_us", "gaps_us", "launches_us"),
    CriticalPathTimes: ("behind_by_kind_us", "overhead", "latencies", "by_place_us", "beside"),
    OverheadTasks: ("values", "places"),
}
"""What results of older versions do not have."""
OF_CODE: set[tuple[type, str]] = {(CriticalPathTimes, "by_place_us"), (OverheadTasks, "places")}
"""What tells of the code, and not of what came out."""


def alike(before: Any, after: Any) -> tuple[Any, Any]:
    """Leave out of two results what one, of an older version, does not record."""
    lacking = _lacking(before) | _lacking(after)
    return (_without(before, lacking), _without(after, lacking)) if lacking else (before, after)


def without_code(value: Any) -> Any:
    """Copy of a result, or of a part of it, that does not tell which code asked for its tasks."""
    return _without(value, OF_CODE)


def _lacking(value: Any) -> set[tuple[type, str]]:
    """Fields of `LATER` that parts of a value do not have, by their class."""
    if isinstance(value, list):
        return {one for each in value for one in _lacking(each)}
    if not isinstance(value, BaseModel):
        return set()
    kind = type(value)
    own = {(kind, name) for name in LATER.get(kind, ()) if getattr(value, name) is None}
    return own.union(*(_lacking(getattr(value, name)) for name in kind.model_fields))


def _without(value: Any, lacking: set[tuple[type, str]]) -> Any:
    """Copy of a value without some fields of its parts."""
    if isinstance(value, list):
        return [_without(one, lacking) for one in value]
    if not isinstance(value, BaseModel):
        return value
    kind = type(value)
    fields = {
        name: None if (kind, name) in lacking else _without(getattr(value, name), lacking) for name in kind.model_fields
    }
    return value.model_copy(update=fields)


class ResultPairs(NamedTuple):
    """Pairs of results, and names of those that one file alone has."""

    pairs: list[Pair]
    only_before: list[str]
    only_after: list[str]


class _Row(NamedTuple):
    """A result, and its name in the tables of its file."""

    name: str
    result: TimedResult

    @property
    def scheme(self) -> str:
        return self.result.name

    @property
    def placement(self) -> str:
        return self.result.placement if isinstance(self.result, Result) else ""


SAME: tuple[Callable[[_Row], tuple[str, ...]], ...] = (
    lambda row: (row.name, row.placement),
    lambda row: (row.scheme, row.placement),
    lambda row: (row.scheme,),
)
"""What two results have in common that belong together. Rows of one name are one; else only one
row on either side may have it, or it would be a guess."""


def pair(before: Sequence[TimedResult], after: Sequence[TimedResult]) -> ResultPairs:
    """Pair results of the same name and placement, and then of the same scheme if one is left.

    Two files of one result each are about this one, whatever its scheme.
    """
    left, right = _rows(before), _rows(after)
    if len(left) == len(right) == 1:
        return ResultPairs([Pair(_both(*left, *right), *alike(before[0], after[0]))], [], [])
    found = []
    for key in SAME:
        for one in list(left):
            others = [row for row in right if key(row) == key(one)]
            alone = len(others) == 1 == sum(key(row) == key(one) for row in left)
            if alone or (others and key is SAME[0]):
                found.append(Pair(_both(one, others[0]), *alike(one.result, others[0].result)))
                left = [row for row in left if row is not one]
                right = [row for row in right if row is not others[0]]
    return ResultPairs(found, [row.name for row in left], [row.name for row in right])


def _rows(results: Sequence[TimedResult]) -> list[_Row]:
    return [_Row(name, result) for name, result in zip(names_of(results), results, strict=True)]


def names_of(results: Sequence[TimedResult]) -> list[str]:
    """Names of results beside each other: of layers with placements and options, as in tables."""
    layers = [one for one in results if isinstance(one, Result)]
    return row_names(layers, marked=False) if layers else [one.name for one in results]


def _both(one: _Row, other: _Row) -> str:
    """Name of two: the scheme's, with what tells it from others in the file where there are any."""
    if one.scheme != other.scheme:
        return " -> ".join(names_of([one.result, other.result]))
    return one.name if other.name == other.scheme else other.name
