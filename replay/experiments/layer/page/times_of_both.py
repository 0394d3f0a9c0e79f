"""Times of two results that belong together, and the errors that were stated of them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from replay.experiments.base.result import ComparisonBase, TimedResult
from replay.experiments.layer.page.merged_content import SAME
from replay.experiments.layer.page.validity import is_without_error, reach_of
from replay.experiments.layer.result import Result
from replay.experiments.layer.tables.times import time_us, unit_of
from replay.report.comparisons import star
from replay.report.tables import table, time_unit
from replay.studies.uncertainty.reach import between
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.studies.differences.pairs import Pair, ResultPairs
    from tracegen.shared.display.content import Cell

ARROW = " -> "
"""What the name of a pair has between two names of schemes."""
LONG_US = 1e4
"""Time from which on milliseconds have digits enough."""


class TimeRow(NamedTuple):
    """One scheme in both: its times in microseconds, and the error of their difference as a share.

    Attributes
    ----------
    error
        None where none is stated.
    """

    name: str
    before_us: float
    after_us: float
    error: float | None

    @property
    def change(self) -> float | None:
        """Difference as a share of the first."""
        return self.after_us / self.before_us - 1 if self.before_us else None

    @property
    def exceeds(self) -> str | None:
        """Comparison with the error, as yes or no; None where none is stated."""
        if self.error is None or self.change is None:
            return None
        return "yes" if abs(self.change) > self.error else "no"


def results_of(one: Any) -> list[Any]:
    """Results of a comparison, or the one result."""
    return list(one.results) if isinstance(one, ComparisonBase) else [one]


def time_rows(paired: ResultPairs, given: Sequence[Any]) -> list[TimeRow]:
    """Pair the times of two results or comparisons, in the order of the first's."""
    return [
        TimeRow(pair_name(one), _time(one.before), _time(one.after), _error(one, given))
        for one in sorted(paired.pairs, key=lambda each: _time(each.before))
    ]


def pair_name(both: Pair) -> str:
    """Name of a pair, with a star behind schemes whose hardware a machine lacks."""
    parts = both.name.split(ARROW)
    sides = both[1:] if len(parts) == 2 else (both.before if _lacks(both.before) else both.after,)
    return ARROW.join(_star(part, side) for part, side in zip(parts, sides, strict=True))


def _lacks(result: TimedResult) -> bool:
    return any(scheme.lacking for scheme in result.schemes)


def _star(name: str, result: TimedResult) -> str:
    """Name that begins with that of a scheme, with a star behind this where its hardware is lacking."""
    for one in sorted(result.schemes, key=lambda scheme: -len(scheme.name)):
        if one.lacking and name.startswith(one.name):
            return star(one.name, one) + name[len(one.name) :]
    return name


def _time(result: TimedResult) -> float:
    return time_us(result) if isinstance(result, Result) else result.headline_us


def _error(both: Pair, given: Sequence[Any]) -> float | None:
    """Share by which errors of the predictions move the ratio of two times, in nine of ten cases; of layers alone."""
    layers = [one for one in both[1:] if isinstance(one, Result) and not is_without_error(one.scheme.name)]
    if len(layers) < len(given):
        return None
    drawn = [_spread(one, of) for one, of in zip(layers, given, strict=True)]
    known = [one for one in drawn if one is not None]
    if len(known) < len(drawn):
        return between(*map(reach_of, layers))
    return math.hypot(*known)  # of draws that know nothing of one another


def _spread(result: Result, of: Any) -> float | None:
    """Share by which the time was off in draws; None without any."""
    uncertainty = getattr(of, "uncertainty", None)
    for band in () if uncertainty is None else uncertainty.bands:
        if (band.scheme, band.placement) == (result.scheme.name, result.placement):
            return float(max(abs(one / band.nominal_us - 1) for one in (band.low_us, band.high_us)))
    return None


def times_table(rows: Sequence[TimeRow], given: Sequence[Any]) -> Table:
    """Table of both times in microseconds, or milliseconds where they are long, and their errors."""
    longest = max(max(one.before_us, one.after_us) for one in rows)
    unit, per = time_unit(longest) if longest >= LONG_US else ("us", 1.0)
    first = results_of(given[0])[0]
    of = f" per {unit_of(first)}" if isinstance(first, Result) else ""
    notes = [
        "Error: by how much errors of the predictions move the ratio of both times, in nine of ten cases. What both "
        "times share of them cancels; drawn errors are of both alone."
        if any(one.error is not None for one in rows)
        else "No error is stated of times of this kind: validation is of whole layers and collectives.",
    ]
    return table(
        "times-of-both",
        f"Times of A and B{of}",
        rows,
        (Column("scheme"), lambda one: one.name),
        (Column("A", unit, ",.1f"), lambda one: one.before_us / per),
        (Column("B", unit, ",.1f"), lambda one: one.after_us / per),
        (Column("B - A", unit, "+,.1f"), lambda one: _difference(one.before_us, one.after_us, per)),
        (Column("B over A", "", "+.1%"), lambda one: one.change if one.change else SAME),
        (Column("error", "", ".1%", 1), lambda one: one.error),
        (Column("more than it", rank=1), lambda one: one.exceeds),
        notes=notes,
    )


def _difference(before: float, after: float, per: float = 1.0) -> Cell:
    return SAME if before == after else (after - before) / per
