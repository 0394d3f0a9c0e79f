"""Bars, plots and tables that two pages have, each as one with the rows of both."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from tracegen.shared.display.content import BarPart, Bars, Column, Plot, Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tracegen.shared.display.content import Cell, Page

SAME = "="
"""Cell of a difference that is none."""
UNITS_US = {"us": 1.0, "ms": 1e3, "s": 1e6}
SIDES = ("A", "B")
MOST_LINES = 12
"""Lines of a plot that are still told apart."""


def charts_of_both(pages: Sequence[Page], again: Mapping[str, str]) -> dict[str, Bars | Plot]:
    """Bars and plots that both pages have, by name, on one scale each."""
    found: dict[str, Bars | Plot] = {}
    others = {chart.name: chart for chart in pages[1].charts()}
    for chart in pages[0].charts():
        other = others.get(chart.name)
        made: Bars | Plot | None = None
        if isinstance(chart, Bars) and isinstance(other, Bars):
            made = bars_of_both(chart, other, again)
        elif isinstance(chart, Plot) and isinstance(other, Plot):
            made = plot_of_both(chart, other)
        if made is not None:
            found[chart.name] = made
    return found


def bars_of_both(one: Bars, other: Bars, again: Mapping[str, str]) -> Bars | None:
    """Bars beside one another, a row of A above that of B; None where their units are not comparable."""
    per = _factor(other.unit, one.unit)
    if per is None:
        return None
    sides = [(one, 1.0), (other, per)]
    places = [{again.get(label, label): place for place, label in enumerate(each.labels)} for each, _ in sides]
    rows = [(label, k) for label in {**places[0], **places[1]} for k in (0, 1) if label in places[k]]
    named = [{part.name: part for part in each.parts} for each, _ in sides]

    def value(name: str, label: str, k: int) -> float:
        return named[k][name].values[places[k][label]] * sides[k][1] if name in named[k] else 0.0

    def mark(label: str, k: int) -> float | None:
        marks = sides[k][0].marks
        found = None if marks is None else marks[places[k][label]]
        return None if found is None else found * sides[k][1]

    ends = [each.longest or max(each.totals(), default=0.0) for each, _ in sides]
    longest = max(end * factor for end, (_, factor) in zip(ends, sides, strict=True))
    return dataclasses.replace(
        one,
        title=_both_titles(one.title, other.title),
        labels=[f"{sides[k][0].labels[places[k][label]]}, {SIDES[k]}" for label, k in rows],
        parts=[
            BarPart(name, [value(name, *row) for row in rows], part.is_hatched)
            for name, part in {**named[1], **named[0]}.items()
        ],
        marks=None if one.marks is None and other.marks is None else [mark(*row) for row in rows],
        longest=longest if any(each.longest for each, _ in sides) else None,
    )


def plot_of_both(one: Plot, other: Plot) -> Plot | None:
    """Lines of both over the same axes; None where they are not the same axes, or too many lines."""
    if (one.x, one.y) != (other.x, other.y) or len(one.lines) + len(other.lines) > MOST_LINES:
        return None
    sides = zip(SIDES, (one, other), strict=True)
    lines = [dataclasses.replace(line, name=f"{line.name}, {side}") for side, plot in sides for line in plot.lines]
    return dataclasses.replace(one, title=_both_titles(one.title, other.title), lines=lines)


def _both_titles(one: str, other: str) -> str:
    """Title of what both have, or both titles where they are not the same."""
    return one if one == other else f"A: {one}. B: {other}"


def _factor(unit: str, into: str) -> float | None:
    """Number of one unit in another; None where they measure different things."""
    if unit == into:
        return 1.0
    return UNITS_US[unit] / UNITS_US[into] if {unit, into} <= UNITS_US.keys() else None


def table_of_both(one: Table, other: Table, again: Mapping[str, str]) -> Table | None:
    """A table with each column of both and their difference; None where no cell differs.

    Rows belong together by their first cell, and columns by name. A column that is the same in both
    stands once.
    """
    rows = [_by_key(each, again) for each in (one, other)]
    keys = list({**rows[0], **rows[1]})
    places = {name: place for place, name in enumerate(_column_keys(other))}
    columns = [one.columns[0]]
    cells: list[Sequence[Cell]] = [[key[0] for key in keys]]
    is_one = one.title == other.title
    is_same = rows[0].keys() == rows[1].keys()
    for place, (key, column) in enumerate(zip(_column_keys(one), one.columns, strict=True)):
        if not place or key not in places:
            continue
        per = _factor(other.columns[places[key]].unit, column.unit)
        if per is None:
            continue
        first = [rows[0][key][place] if key in rows[0] else None for key in keys]
        second = [_scale(rows[1][row][places[key]], per) if row in rows[1] else None for row in keys]
        if first == second:
            columns.append(column)
            cells.append(first)
            continue
        is_same = False
        columns += [dataclasses.replace(column, name=f"{column.name}, {side}") for side in SIDES]
        cells += [first, second]
        if not column.is_text and (is_one or not column.name.startswith("speed-up")):  # over the same
            columns.append(Column("B - A", column.unit, f"+{column.form.lstrip('+')}", column.rank))
            cells.append([_change(*both) for both in zip(first, second, strict=True)])
    if is_same:
        return None
    title, notes = _both_titles(one.title, other.title), dict.fromkeys([*one.notes, *other.notes])
    return Table(one.name, title, columns, list(zip(*cells, strict=True)), tuple(notes))


def _column_keys(of: Table) -> list[tuple[str, int]]:
    """Name of each column, and how many of that name stand before it."""
    names = [column.name for column in of.columns]
    return [(name, names[:place].count(name)) for place, name in enumerate(names)]


def _by_key(of: Table, again: Mapping[str, str]) -> dict[tuple[str, int], Sequence[Cell]]:
    """Rows by the text of their first cell, and how many of that text stand before them."""
    texts = [again.get(row[0], row[0]) for row in of.texts()]
    return {(text, texts[:place].count(text)): of.rows[place] for place, text in enumerate(texts)}


def _scale(value: Cell, per: float) -> Cell:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value * per if is_number and per != 1 else value  # type: ignore[operator]  # a number


def _change(before: Cell, after: Cell) -> Cell:
    """Difference of two cells; None where one of them is no number."""
    if not isinstance(before, int | float) or not isinstance(after, int | float):
        return None
    return SAME if before == after else after - before
