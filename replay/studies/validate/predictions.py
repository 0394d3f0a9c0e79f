"""Predictions of settings like those of a table, for which nothing need be measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown
from replay.studies.validate.table import MeasurementRow, predictions
from tracegen.shared.display.content import Column
from tracegen.shared.display.content import Table as ContentTable

if TYPE_CHECKING:
    from replay.studies.validate.bench import Bench
    from replay.studies.validate.table import MeasurementTable


def rows_at(table: MeasurementTable, changes: Mapping[str, Sequence[str]]) -> list[MeasurementRow]:
    """Settings of a table with other values of some columns, each once, in the table's order.

    Raises
    ------
    UserError
        If the table has no such column, or a value is not of its kind.
    """
    every = table.rows()
    columns = list(every[0].setting)
    if "row_type" in columns and "rows" in changes:  # its former name
        changes = {"row_type" if one == "rows" else one: values for one, values in changes.items()}
    for column in changes:
        if column not in columns:
            raise unknown(f"column of table {table.name}", column, columns)
    given = [[(column, _value(table, column, one)) for one in changes[column]] for column in changes]
    found: dict[tuple[Any, ...], MeasurementRow] = {}
    for values in product(*given):
        for row in every:
            setting = {**row.setting, **dict(values)}
            found.setdefault(tuple(setting.values()), MeasurementRow(table.name, 0, setting, math.nan))
    return list(found.values())


def _value(table: MeasurementTable, column: str, text: str) -> Any:
    is_number = isinstance(table.rows()[0][column], int)
    if is_number and not text.isdecimal():
        message = f"--at {column}={text}: column {column!r} of table {table.name} has whole numbers"
        raise UserError(message)
    return int(text) if is_number else text


def lines(table: MeasurementTable, changes: Mapping[str, Sequence[str]], bench: Bench) -> list[list[str]]:
    """Cells of a heading, and of each setting with its prediction."""
    rows = rows_at(table, changes)
    predicted = predictions(table, bench, rows)
    chosen = any(one.kernel for one in predicted)
    heading = [*rows[0].setting, f"predicted {table.unit}", *(["kernel"] * chosen)]
    return [
        heading,
        *(
            [*map(str, row.setting.values()), f"{one.value:.4g}", *([one.kernel] * chosen)]
            for row, one in zip(rows, predicted, strict=True)
        ),
    ]


def terminal_table(table: MeasurementTable, lines: list[list[str]]) -> ContentTable:
    """The same for a terminal."""
    columns = [Column(heading, form="s") for heading in lines[0]]
    return ContentTable(f"{table.name}-at", table.title, columns, lines[1:])
