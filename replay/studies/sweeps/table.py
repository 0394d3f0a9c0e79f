"""A grid as a table: seeds put together, baselines divided by, axes as rows and columns."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown
from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.layer.result import Result
from replay.studies.differences.path import by_phase
from replay.studies.sweeps.columns import check_path, geometric_mean, is_time
from replay.studies.sweeps.contest import longest_numeric, numbers
from replay.studies.sweeps.points import Choice, axes_of, check_labels, fill, is_meant, place, show
from replay.studies.sweeps.study import LAYER, QuantityColumn, Rivalry
from replay.studies.sweeps.sweep_file import SavedAnswer
from replay.studies.uncertainty import residuals
from replay.studies.uncertainty.parts import parts_of
from replay.studies.uncertainty.reach import Reach, reach
from tracegen.shared.display import escape

if TYPE_CHECKING:
    from replay.experiments.base.experiment import AnyExperiment
    from replay.studies.sweeps.study import Grid, Study

Labels = tuple[str, ...]

DEFAULT_COLUMN = QuantityColumn(header="layer us", path="totals.mean_layer_us")
"""What is shown of layers where nothing is asked for; of other experiments, their headline."""


@dataclass(frozen=True)
class Cell:
    """A quantity over the seeds that have it: mean, least, largest, and how many."""

    mean: float
    least: float
    largest: float
    count: int

    def to_json(self) -> dict[str, float | int]:
        """The cell as a JSON object."""
        return {"mean": self.mean, "min": self.least, "max": self.largest, "count": self.count}

    def is_spread(self, digits: int) -> bool:
        """Tell whether so many digits tell the seeds apart."""
        return f"{self.least:.{digits}f}" != f"{self.largest:.{digits}f}"

    def text(self, digits: int) -> str:
        """Mean, and the range where the shown digits tell the seeds apart."""
        span = f" ({self.least:,.{digits}f}-{self.largest:,.{digits}f})"
        span = span if self.is_spread(digits) else ""
        return f"{self.mean:,.{digits}f}{span}"


class GridTable:
    """One grid of a study, before and after it has run.

    Parameters
    ----------
    study, number
        The grid.

    Raises
    ------
    UserError
        If a column asks for something that no result has, or a baseline that the grid lacks.
    """

    def __init__(self, study: Study, number: int) -> None:
        self.grid: Grid = study.grids[number]
        self.where = place(study, number)
        is_alone = len(study.grids) == 1
        self.title: str = self.grid.title or (study.title if is_alone else f"Table {number + 1}")
        self.axes: dict[str, list[Choice]] = axes_of(self.grid, self.where)
        experiment = EXPERIMENTS.find(self.grid.experiment)
        self.columns = self.grid.columns or [_default_column(experiment, self.where)]
        # By labels and seed: one value a column; None for a point that was refused.
        self.values: dict[tuple[Labels, int | None], list[float | None]] = {}
        self.errors: dict[Labels, Reach] = {}
        self.assumes: dict[Labels, str] = {}
        self.refused: dict[Labels, str] = {}
        self.failed: dict[Labels, str] = {}
        headers = [column.header for column in self.columns]
        for column in self.columns:
            if headers.count(column.header) > 1:
                message = f"{self.where}: two columns are called {column.header!r}"
                raise UserError(message)
            check_path(column, experiment.result, self.where)
            self._check_baseline(column)
        is_told = self.grid.answer is not None or not any(one.answer for one in study.grids)
        self.answer = self._answer() if is_told else None

    def _answer(self) -> SavedAnswer | None:
        """The race that decides, with what the study leaves to us; None where the grid has none."""
        asked = self.grid.answer or self._race()
        if asked is None:
            return None
        where = f"{self.where}: answer"
        times = [column for column in self.columns if is_time(column)]
        headers = [column.header for column in self.columns if column.baseline is None]
        header = asked.column or next((column.header for column in times), None)
        if header not in headers:
            message = f"{where}: {unknown('column without a baseline', str(header), headers)}"
            raise UserError(message)
        others = {axis: [one.label for one in self.axes[axis]] for axis in self.axes if axis != asked.rivals}
        for axis in (asked.rivals, *filter(None, [asked.along]), *asked.assumed):
            if axis not in self.axes:
                message = f"{where}: {unknown('axis', axis, self.axes)}"
                raise UserError(message)
        if asked.base is not None:
            check_labels({asked.rivals: asked.base}, self.axes, where)
        fixed = self.grid.fixed
        families = {
            str(fill(name, fixed)): [str(fill(label, fixed)) for label in family]
            for name, family in asked.families.items()
        }
        members = [label for family in families.values() for label in family]
        for label in members:
            check_labels({asked.rivals: label}, self.axes, where)
        if len(set(members)) < len(members) or (members and asked.base is not None):
            message = f"{where}: families: a rival is in one family at most, and of families there is no base"
            raise UserError(message)
        for part in asked.errors:
            if part not in residuals.table():
                message = f"{where}: errors: {unknown('part', part, residuals.table())}"
                raise UserError(message)
        along = asked.along or longest_numeric({a: b for a, b in others.items() if a not in asked.assumed})
        if along is not None and numbers(others.get(along, [""])) is None:
            message = f"{where}: along = {along!r} has labels that are no numbers, or is what competes"
            raise UserError(message)
        return SavedAnswer(
            rivals=asked.rivals,
            column=header,
            base=asked.base,
            most=asked.most,
            along=along,
            assumed=asked.assumed,
            under=asked.under,
            errors=asked.errors,
            families=families,
        )

    def _race(self) -> Rivalry | None:
        """The race of a grid that names none: of its schemes, or of what stands across."""
        rivals = "scheme" if "scheme" in self.axes else self.grid.across
        has_rivals = rivals is not None and len(self.axes[rivals]) > 1
        return Rivalry(rivals=rivals) if rivals and has_rivals and any(map(is_time, self.columns)) else None

    @property
    def seeds(self) -> list[int | None]:
        """Seeds of every point, or the one that is not named."""
        return list(self.grid.seeds) or [None]

    def _check_baseline(self, column: QuantityColumn) -> None:
        where = f"{self.where}: column {column.header!r}"
        if column.speedup_over is not None and column.relative_to is not None:
            message = f"{where}: speedup_over and relative_to exclude each other"
            raise UserError(message)
        check_labels(column.baseline or {}, self.axes, where)

    def _baseline(self, column: QuantityColumn, labels: Labels) -> Labels | None:
        """Labels of the point that a column divides by or that is divided by it."""
        if column.baseline is None:
            return None
        chosen = dict(zip(self.axes, labels, strict=True))
        chosen |= {name: show(value) for name, value in column.baseline.items()}
        return tuple(chosen.values())

    def cell(self, labels: Labels, column: QuantityColumn) -> Cell | None:
        """A column of a point over all seeds; None where there is nothing to show."""
        position = self.columns.index(column)
        baseline = self._baseline(column, labels)
        found = []
        for seed in self.seeds:
            value = self._value(labels, seed, position)
            if value is not None and baseline is not None:
                base = self._value(baseline, seed, position)
                above, below = (base, value) if column.relative_to is None else (value, base)
                value = above / below if above is not None and below else None
            if value is not None:
                found.append(value)
        if not found:
            return None
        # Rounding must not put the mean of equal values beside them.
        mean = min(max(sum(found) / len(found), min(found)), max(found))
        return Cell(mean, min(found), max(found), len(found))

    def _value(self, labels: Labels, seed: int | None, position: int) -> float | None:
        values = self.values.get((labels, seed))
        return None if values is None else values[position]

    def rows(self) -> list[Labels]:
        """Labels of all points, in order."""
        names = [[choice.label for choice in choices] for choices in self.axes.values()]
        return [
            labels
            for labels in itertools.product(*names)
            if not any(is_meant(one, self.axes, labels) for one in self.grid.leave_out)
        ]

    def empty_columns(self) -> list[str]:
        """Headers of the columns that no point of the grid has a value for."""
        return [
            column.header
            for position, column in enumerate(self.columns)
            if self.values and all(row[position] is None for row in self.values.values())
        ]

    def to_json(self) -> dict[str, Any]:
        """Axes, columns, and for each point its labels, cells, and why it has none."""
        return {
            "title": self.grid.title,
            "notes": self.grid.notes,
            **({} if self.grid.experiment == LAYER else {"experiment": self.grid.experiment}),
            "fixed": dict(self.grid.fixed),
            "seeds": list(self.grid.seeds),
            "axes": {
                name: [{"label": one.label, "settings": dict(one.settings)} for one in choices]
                for name, choices in self.axes.items()
            },
            "columns": [column.model_dump(exclude_none=True) for column in self.columns],
            **({} if self.answer is None else {"answer": self.answer.model_dump()}),
            "rows": [
                {
                    "labels": dict(zip(self.axes, labels, strict=True)),
                    "cells": {
                        column.header: cell.to_json() if cell else None
                        for column in self.columns
                        for cell in [self.cell(labels, column)]
                    },
                    "refused": self.refused.get(labels),
                    **self._rests_on(labels),
                    **({"failed": self.failed[labels]} if labels in self.failed else {}),
                }
                for labels in self.rows()
            ],
        }

    def rest_on(self, labels: Labels, result: Mapping[str, Any]) -> None:
        """Note the error of a point's time, the largest of its seeds, and what its scheme assumes."""
        if self.answer is None or self.grid.experiment != LAYER:
            return
        layer = Result.model_validate(result)
        if layer.scheme.assumes:
            self.assumes[labels] = layer.scheme.assumes
        found = reach(parts_of(layer), by_phase(layer))
        if found.parts and found.share >= self.errors.get(labels, found).share:
            self.errors[labels] = found

    def _rests_on(self, labels: Labels) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if labels in self.errors:
            share, parts = self.errors[labels]
            found["error"] = {"share": share, "parts": list(parts)}
        if labels in self.assumes:
            found["assumes"] = self.assumes[labels]
        return found

    def parts(
        self,
    ) -> tuple[list[str], list[tuple[str, QuantityColumn]], list[tuple[Labels, list[Cell | str]]], list[str]]:
        """Parts of a table of the grid.

        Returns
        -------
        Names of the axes whose labels begin each row; headings of the other columns, and what they
        show; rows of labels and cells, texts where there is no value; footnotes.
        """
        across = self.grid.across
        names = list(self.axes)
        down = [name for name in names if name != across]
        blocks = [choice.label for choice in self.axes[across]] if across else [""]
        shown = [
            (block, column)
            for block in blocks
            for column in self.columns
            if not (across and self._is_own_baseline(column, across, block))
        ]
        notes: list[str] = []
        rows: dict[Labels, list[Cell | str]] = {}
        for each in self.rows():
            at = dict(zip(names, each, strict=True))
            rows.setdefault(tuple(at[name] for name in down), [])
        for key, row in rows.items():
            chosen = dict(zip(down, key, strict=True))
            for block, column in shown:
                labels = tuple(block if name == across else chosen[name] for name in names)
                row.append(self.cell(labels, column) or self._nothing(labels, notes))
        if self.grid.geomean:
            rows |= self._geometric_means(down, [column for _, column in shown], rows)
        headings = [(f"{block} {column.header}".strip(), column) for block, column in shown]
        return down, headings, list(rows.items()), notes

    def _geometric_means(
        self,
        down: Sequence[str],
        columns: Sequence[QuantityColumn],
        rows: Mapping[Labels, Sequence[Cell | str]],
    ) -> dict[Labels, list[Cell | str]]:
        """Rows of means over the values of some axes, of columns that are ratios."""
        groups: dict[Labels, list[Sequence[Cell | str]]] = {}
        for key, row in rows.items():
            over = (
                "geometric mean" if name in self.grid.geomean else label for name, label in zip(down, key, strict=True)
            )
            groups.setdefault(tuple(over), []).append(row)
        is_ratio = [bool(one.baseline or one.per) for one in columns]
        return {
            key: [
                _geometric_mean(cells) if ratio else ""
                for cells, ratio in zip(zip(*group, strict=True), is_ratio, strict=True)
            ]
            for key, group in groups.items()
        }

    def lines(self) -> tuple[list[str], list[list[str]], list[str]]:
        """Headings, rows of text, and footnotes, as pages have them.

        A value stands for its baseline alone where the ratios to it say as much of the others.
        """
        down, shown, rows, notes = self.parts()
        spared = self._redundant_columns(shown, [cells for _, cells in rows])
        texts = [
            [
                *key,
                *(
                    one if isinstance(one, str) else one.text(column.digits)
                    for place, (one, (_, column)) in enumerate(zip(cells, shown, strict=True))
                    if place not in spared
                ),
            ]
            for key, cells in rows
        ]
        headings = [heading for place, (heading, _) in enumerate(shown) if place not in spared]
        return [*down, *headings], texts, notes

    def products(self, shown: Sequence[tuple[str, QuantityColumn]]) -> dict[int, tuple[int, int]]:
        """Positions of columns that are a ratio times its baseline, each with the positions of these two.

        Parameters
        ----------
        shown
            Headings and columns, as `parts` gives them.
        """
        places = {heading: place for place, (heading, _) in enumerate(shown)}
        found: dict[int, tuple[int, int]] = {}
        across = self.grid.across
        for ratio in self.columns:
            if across is None or ratio.baseline is None or set(ratio.baseline) != {across}:
                continue
            base = show(ratio.baseline[across])
            for value in self.columns:
                is_of = (value.path, value.reduce, value.per) == (ratio.path, ratio.reduce, ratio.per)
                if value.baseline is not None or not is_of:
                    continue
                at = places[f"{base} {value.header}"]
                for block in (choice.label for choice in self.axes[across] if choice.label != base):
                    found[places[f"{block} {value.header}"]] = (places[f"{block} {ratio.header}"], at)
        return found

    def _redundant_columns(
        self, shown: Sequence[tuple[str, QuantityColumn]], rows: Sequence[Sequence[Cell | str]]
    ) -> set[int]:
        """Places of the columns that every row has in a ratio of three digits and the value of its baseline.

        None where the answer sets rows against each other: their difference is lost in the digits of ratios.
        """
        if self.answer is not None and self.answer.rivals != self.grid.across:
            return set()

        def is_told(cell: Cell | str, digits: int) -> bool:
            return isinstance(cell, Cell) and abs(round(cell.mean, digits)) >= 10.0 ** (2 - digits)

        return {
            place
            for place, (ratio, _) in self.products(shown).items()
            if all(isinstance(row[place], str) or is_told(row[ratio], shown[ratio][1].digits) for row in rows)
        }

    def _is_own_baseline(self, column: QuantityColumn, across: str, block: str) -> bool:
        """Tell whether a column would hold nothing but ones."""
        given = column.baseline
        return given is not None and set(given) == {across} and show(given[across]) == block

    def _nothing(self, labels: Labels, notes: list[str]) -> str:
        for word, reasons in (("refused", self.refused), ("failed", self.failed)):
            if labels in reasons:
                if reasons[labels] not in notes:
                    notes.append(reasons[labels])
                return f"{word} [{notes.index(reasons[labels]) + 1}]"
        return "-"


def _geometric_mean(cells: Iterable[Cell | str]) -> Cell | str:
    """Geometric mean of the means that are there; empty where there is none."""
    means = [cell.mean for cell in cells if not isinstance(cell, str)]
    mean = geometric_mean(means)
    return "" if mean is None else Cell(mean, mean, mean, len(means))


def _default_column(experiment: AnyExperiment, where: str) -> QuantityColumn:
    """Column that is shown where nothing is asked for."""
    if experiment.name == LAYER:
        return DEFAULT_COLUMN
    if not experiment.headline:
        message = f"{where}: a {experiment.title} has no single time to show: give columns"
        raise UserError(message)
    return QuantityColumn(header=experiment.headline.replace("_us", " us"), path=experiment.headline)


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]], *, labels: int) -> list[str]:
    """Lines of a Markdown table, the first columns to the left and the others to the right.

    Parameters
    ----------
    labels
        How many columns are labels.
    """
    headings, *rows = [[escape.markdown(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(3, *(len(line[column]) for line in [headings, *rows])) for column in range(len(headings))]
    rule = ["-" * w if column < labels else "-" * (w - 1) + ":" for column, w in enumerate(widths)]
    lines = [list(headings), rule, *rows]
    return [f"| {_pad(line, widths, labels, ' | ')} |" for line in lines]


def _pad(line: Sequence[str], widths: Sequence[int], labels: int, between: str) -> str:
    return between.join(
        cell.ljust(width) if column < labels else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
