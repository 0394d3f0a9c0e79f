"""A study as a page: its answer, curves over what was varied, and the table of every point."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from replay.report.command import command_words
from replay.report.provenance import NO_COMMAND, provenance
from replay.studies.sweeps.answer import answers, races
from replay.studies.sweeps.contest import OF_SCHEMES, longest_numeric, numbers
from replay.studies.sweeps.free import TITLE, free_table, verdict
from replay.studies.sweeps.study import fix_words, study_names
from replay.studies.sweeps.sweep_file import SavedSweep
from replay.studies.sweeps.words import fixed_text, words
from tracegen.shared.display.content import (
    Axis,
    BarPart,
    Bars,
    Column,
    Line,
    Page,
    Plot,
    Section,
    Table,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replay.studies.sweeps.result import SweepResult
    from replay.studies.sweeps.sweep_file import SavedCell, SavedFree, SavedGrid, SavedRow
    from tracegen.shared.display.content import Cell, Chart, Item

MOST_LINES = 10
"""Lines that one picture takes where an axis may be chosen for them."""

MOST_CHARTS = 24
"""Charts of one grid; further ones are left to the table."""

SHORT = 12
"""Rows up to which a table of who wins where stands before the lines that go into it."""

SPREAD = 8
"""Ratio of the largest to the smallest value from which an axis is logarithmic."""

OWN_FILE = f"{NO_COMMAND}the study was a file that its result does not name."


def page(result: SweepResult | SavedSweep, command: str = "") -> Page:
    """Make the page of a study.

    Parameters
    ----------
    command
        The command line that made it, where that is known; that of a study that comes with the
        package is.
    """
    study = result if isinstance(result, SavedSweep) else _as_saved(result)
    grids = study.shown_grids
    points = sum(len(grid.rows) for grid in study.grids)
    several = len(grids) > 1
    entries: dict[str, Cell] = {"study": study.name, "points": points}
    if not command and study.name in study_names():
        command = command_words(["moereplay", "sweep", study.name, *fix_words(study.held), "-o", "FOLDER"])
    answer = _answer(grids)
    table = free_table(study.free.claims)
    heads = [verdict(table.texts()), *(head for head, _ in answers(races(grids)))]
    headline = next(filter(None, heads), "")
    return Page(
        title=study.title,
        summary=" ".join(filter(None, [study.question.strip(), headline, _summary(grids, points)])),
        sections=[
            *([Section("The answer", answer)] if answer else []),
            *([_free(study.free)] if study.free.claims else []),
            *([Section("What was replayed", [study.notes.strip()])] if study.notes.strip() else []),
            *(_section(grid, number, several=several) for number, grid in enumerate(grids, 1)),
            *_assumptions(grids),
            provenance(entries, command=command, why_none=OWN_FILE),
        ],
        command=command,
    )


def _answer(grids: Sequence[SavedGrid]) -> list[Item]:
    """Items on who is first where, what papers state beside it, and what would turn it."""
    items: list[Item] = []
    said = iter(answers(races(grids)))
    for number, grid in enumerate(grids, 1):
        for race in races([grid]):
            head, lines = next(said)
            table = race.table(f"answer-{number}")
            is_short = table is not None and len(table.rows) <= SHORT
            items += [head, *([table] if table is not None and is_short else []), *lines]
            items += [table] if table is not None and not is_short else []
        items += [_claims(grid, number)] if grid.claims else []
    return items


def _assumptions(grids: Sequence[SavedGrid]) -> list[Section]:
    """Section of the schemes' assumptions, each once."""
    said = dict.fromkeys(line for race in races(grids) for line in race.assumptions())
    return [Section("What the schemes assume", list(said), is_detail=True)] if said else []


def _free(free: SavedFree) -> Section:
    """Inputs that papers leave open, and the claims over their values."""
    said = [f"{one.input}: {one.stated}; or {', '.join(one.others)}. {one.why}" for one in free.inputs]
    return Section(TITLE, [*said, free_table(free.claims)])


def _as_saved(result: SweepResult) -> SavedSweep:
    return SavedSweep.model_validate_json(result.to_json())


def _summary(grids: Sequence[SavedGrid], points: int) -> str:
    refused = sum(row.refused is not None for grid in grids for row in grid.rows)
    failed = sum(row.failed is not None for grid in grids for row in grid.rows)
    tables = f" in {len(grids)} tables" if len(grids) > 1 else ""
    notes = [f"{points} points{tables}"]
    notes += [f"{refused} cannot run"] if refused else []
    notes += [f"{failed} failed"] if failed else []
    return ", ".join(notes) + "."


def _section(grid: SavedGrid, number: int, *, several: bool) -> Section:
    charts = list(itertools.islice(_charts(grid, number), MOST_CHARTS))
    wanted = len(grid.columns) * math.prod(map(len, _facets(grid).values()))
    left_out = [f"The first {MOST_CHARTS} of {wanted} charts."] if wanted > MOST_CHARTS else []
    fixed = fixed_text(grid.fixed)
    seeds = ", ".join(map(str, grid.seeds))
    items: list[Item] = [
        *([grid.notes.strip()] if grid.notes.strip() else []),
        *charts,
        *left_out,
        _table(grid, number),
        *([f"Fixed: {fixed}."] if fixed else []),
        *([f"Mean, least and largest over seeds {seeds}."] if seeds else []),
    ]
    title = grid.title or (f"Table {number}" if several else "Every point")
    return Section(title, items)


def _labels(grid: SavedGrid, axis: str) -> list[str]:
    return [choice.label for choice in grid.axes[axis]]


def _along(grid: SavedGrid) -> str | None:
    """Axis that curves go along: the numeric one with the most values, of two and more."""
    return longest_numeric({axis: _labels(grid, axis) for axis in grid.axes})


def _of_lines(grid: SavedGrid) -> str | None:
    """Axis that tells lines apart: schemes, or the longest of those that a picture can hold."""
    others = [axis for axis in grid.axes if axis != _along(grid) and len(grid.axes[axis]) > 1]
    if OF_SCHEMES in others:
        return OF_SCHEMES
    few = [axis for axis in others if len(grid.axes[axis]) <= MOST_LINES]
    return max(few, key=lambda axis: len(grid.axes[axis]), default=None)


def _facets(grid: SavedGrid) -> dict[str, list[str]]:
    """Labels of the axes that remain: there is a chart for each combination of them."""
    drawn = (_along(grid), _of_lines(grid))
    return {axis: _labels(grid, axis) for axis in grid.axes if axis not in drawn}


def _charts(grid: SavedGrid, number: int) -> Iterator[Chart]:
    """Charts of the first column, then of the next."""
    facets = _facets(grid)
    by_labels = {tuple(row.labels[axis] for axis in grid.axes): row for row in grid.rows}
    for index, column in enumerate(grid.columns, 1):
        for place, chosen in enumerate(itertools.product(*facets.values()), 1):
            fixed = dict(zip(facets, chosen, strict=True))
            told = [f"{words(axis)} {label}" for axis, label in fixed.items() if len(facets[axis]) > 1]
            title = ", ".join([column.header, *told])
            name = f"grid-{number}-{index}-{place}"
            chart = _chart(grid, by_labels, fixed, column.header, name, title)
            if chart is not None:
                yield chart


def _chart(
    grid: SavedGrid,
    rows: Mapping[tuple[str, ...], SavedRow],
    fixed: Mapping[str, str],
    header: str,
    name: str,
    title: str,
) -> Chart | None:
    """Curves of one column, or bars where no axis has numbers."""
    along, of_lines = _along(grid), _of_lines(grid)

    def cell(**labels: str) -> SavedCell | None:
        chosen = {**fixed, **labels}
        row = rows.get(tuple(chosen[axis] for axis in grid.axes))
        return None if row is None else row.cells[header]

    lines = [{}] if of_lines is None else [{of_lines: label} for label in _labels(grid, of_lines)]
    if along is None:
        named = [(next(iter(one.values()), header), cell(**one)) for one in lines]
        there = [(label, found.mean) for label, found in named if found is not None]
        if not there:
            return None
        labels, means = zip(*there, strict=True)
        return Bars(name, title, list(labels), [BarPart(header, list(means))], "")
    x = numbers(_labels(grid, along)) or []
    drawn = []
    for one in lines:
        found = [
            (at, value)
            for at, label in sorted(zip(x, _labels(grid, along), strict=True))
            for value in [cell(**one, **{along: label})]
            if value is not None
        ]
        if found:
            drawn.append(_line(next(iter(one.values()), header), found))
    if not drawn:
        return None
    return Plot(
        name,
        title,
        Axis(words(along), log=_is_wide(x), from_zero=False),
        Axis(header, log=_is_wide([value for line in drawn for value in line.y])),
        drawn,
    )


def _line(name: str, found: Sequence[tuple[float, SavedCell]]) -> Line:
    """A curve of means; a band from least to largest where there are several seeds."""
    has_band = any(cell.count > 1 for _, cell in found)
    return Line(
        name,
        [at for at, _ in found],
        [cell.mean for _, cell in found],
        [cell.min for _, cell in found] if has_band else None,
        [cell.max for _, cell in found] if has_band else None,
    )


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) / min(values) >= SPREAD


def _table(grid: SavedGrid, number: int) -> Table:
    """Every point with every column; with seeds, its least and largest value too."""
    has_seeds = len(grid.seeds) > 1
    columns = [Column(words(axis)) for axis in grid.axes]
    for column in grid.columns:
        form = f",.{column.digits}f"
        columns.append(Column(column.header, "", form))
        if has_seeds:
            columns.append(Column(f"least {column.header}", "", form, rank=2))
            columns.append(Column(f"largest {column.header}", "", form, rank=2))
    columns.append(Column("why not", rank=1))
    rows: list[list[Cell]] = []
    for row in grid.rows:
        cells: list[Cell] = [row.labels[axis] for axis in grid.axes]
        for column in grid.columns:
            found = row.cells[column.header]
            cells.append(None if found is None else found.mean)
            if has_seeds:
                cells += [None, None] if found is None else [found.min, found.max]
        rows.append([*cells, row.refused or row.failed])
    if not any(row[-1] for row in rows):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    return Table(f"points-{number}", grid.title or "Every point", columns, rows)


def _claims(grid: SavedGrid, number: int) -> Table:
    columns = [
        Column("paper"),
        Column("published", "", ",.4g"),
        Column("replayed", "", ",.4g"),
        Column("replayed / published", "", ".2f"),
        Column("points", rank=1),
    ]
    rows = [
        (
            one.says,
            one.published,
            one.replayed,
            one.replayed / one.published if one.replayed is not None and one.published else None,
            f"{one.num_found} of {one.num_wanted}",
        )
        for one in grid.claims
    ]
    return Table(f"claims-{number}", "What papers state, and what was replayed", columns, rows)
