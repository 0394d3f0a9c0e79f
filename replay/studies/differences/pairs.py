"""Pairs of results of two files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from replay.experiments.base.names import row_names
from replay.experiments.layer.result import Result

if TYPE_CHECKING:
    from replay.experiments.base.result import TimedResult


class Pair(NamedTuple):
    """Results of one scheme in two files, under the name it has in tables."""

    name: str
    before: TimedResult
    after: TimedResult


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
        return ResultPairs([Pair(_both(*left, *right), before[0], after[0])], [], [])
    found = []
    for key in SAME:
        for one in list(left):
            others = [row for row in right if key(row) == key(one)]
            alone = len(others) == 1 == sum(key(row) == key(one) for row in left)
            if alone or (others and key is SAME[0]):
                found.append(Pair(_both(one, others[0]), one.result, others[0].result))
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
