"""Predictions over measurements as a page."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from replay.report.command import command_words
from replay.report.provenance import provenance
from replay.studies.sweeps.words import words
from replay.studies.validate.report import ERROR_COLUMNS, as_json, machine_tables
from replay.studies.validate.validation_file import SavedValidation
from tracegen.shared.display.content import Axis, Column, Line, Page, Plot, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.studies.validate.table import Outcome
    from replay.studies.validate.validation_file import SavedMeasurement, SavedTable
    from tracegen.shared.display.content import Chart

MOST_POINTS = 2000
"""Rows of a table that are drawn: the furthest off, and others evenly by size."""


def page(given: Sequence[Outcome] | SavedValidation) -> Page:
    """Make the page of a validation."""
    found = given if isinstance(given, SavedValidation) else _save(given)
    tables = found.tables
    parts = [part for table in tables for part in table.parts]
    missed = [part for part in parts if not part.holds]
    rows = sum(len(table.rows) for table in tables)
    holds = (
        f"{len(missed)} of {len(parts)} bounds on the error are missed"
        if missed
        else f"All {len(parts)} bounds on the error hold"
        if len(parts) > 1
        else "The bound on the error holds"
    )
    machines = machine_tables([one.model_dump() for one in found.machines])
    command = command_words(["moereplay", "validate", *(table.name for table in tables)])
    return Page(
        title="Predicted against measured",
        summary=f"{rows:,} published measurements in {len(tables)} tables were predicted by the "
        f"code of the replays. {holds}.",
        sections=[
            Section("How large are the errors?", [*machines, errors_table(tables)]),
            *(_section(table) for table in tables),
            provenance({"tables": len(tables), "measurements": rows}, command=command),
        ],
        command=command,
    )


def _save(outcomes: Sequence[Outcome]) -> SavedValidation:
    return SavedValidation.model_validate(as_json(outcomes))


def errors_table(tables: Sequence[SavedTable]) -> Table:
    """Errors of every part of every table, with its bound."""
    rows = [
        (
            table.name,
            part.name,
            part.count,
            part.mean,
            part.median,
            part.p95,
            part.bias,
            part.bound_mean_percent,
            "yes" if part.holds else "MISSED",
        )
        for table in tables
        for part in table.parts
    ]
    return Table("errors", "Errors by table and part", [*ERROR_COLUMNS, Column("within its bound")], rows)


def _section(table: SavedTable) -> Section:
    return Section(table.title, [*charts(table), worst_table(table)], is_detail=True)


def charts(table: SavedTable) -> Iterator[Chart]:
    """Predicted over measured, and the error over what was moved or computed."""
    rows = [row for row in table.rows if not row.left_out and min(row.measured, row.predicted) > 0]
    drawn = _some(rows)
    if not drawn:
        return
    says = "" if len(drawn) == len(rows) else f"{len(drawn)} of {len(rows):,} rows are drawn."
    measured = [row.measured for row in drawn]
    ends = [min(measured), max(measured)]
    yield Plot(
        f"{table.name}-predicted",
        "Predicted over measured",
        Axis(f"measured, {table.unit}", log=True),
        Axis(f"predicted, {table.unit}", log=True),
        [
            Line("as measured", ends, ends, form="guide"),
            Line(table.name, measured, [row.predicted for row in drawn], form="points"),
        ],
        says,
    )
    sizes = [size for row in drawn if (size := row.size(table.size)) is not None]
    has_sizes = len(sizes) == len(drawn)
    of = words(table.size) if has_sizes else f"measured, {table.unit}"
    x = sizes if has_sizes else measured
    yield Plot(
        f"{table.name}-error",
        f"Error over {of if has_sizes else 'what was measured'}",
        Axis(of, log=True),
        Axis("error, %"),
        [
            Line("as measured", [min(x), max(x)], [0.0, 0.0], form="guide"),
            Line(table.name, x, [row.error_percent for row in drawn], form="points"),
        ],
        says,
    )


def _some(rows: Sequence[SavedMeasurement]) -> list[SavedMeasurement]:
    """As many rows as can be told apart: a third by their error, the others evenly by size."""
    if len(rows) <= MOST_POINTS:
        return list(rows)
    by_error = sorted(rows, key=lambda row: (-abs(row.error_percent), row.line))
    far, near = by_error[: MOST_POINTS // 3], by_error[MOST_POINTS // 3 :]
    by_size = sorted(near, key=lambda row: (row.measured, row.line))
    step = math.ceil(len(by_size) / (MOST_POINTS - len(far)))
    return sorted([*far, *by_size[::step]], key=lambda row: row.line)


def worst_table(table: SavedTable) -> Table:
    """The rows that are furthest off."""
    columns = [
        Column("row"),
        Column("measured", table.unit, ",.4g"),
        Column("predicted", table.unit, ",.4g"),
        Column("error", "%", "+.1f"),
    ]
    rows = [
        (row.setting, row.measured, row.predicted, row.error_percent)
        for row in (table.rows[place] for place in table.worst if 0 <= place < len(table.rows))
    ]
    return Table(f"{table.name}-worst", "Furthest off", columns, rows)
