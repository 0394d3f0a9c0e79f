"""Tables of measurements with many rows: those of which CI predicts some, and all before a release."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pytest

from replay.studies.validate.catalog import TABLES
from replay.studies.validate.table import MeasurementRow, MeasurementTable

MOST_ROWS = 40
"""Rows of a table that take no longer than other tests."""


def is_long(table: MeasurementTable) -> bool:
    """Whether CI predicts only some of the rows."""
    return len(table.rows()) > MOST_ROWS


def by_length(tables: Mapping[str, Iterable[str]], kept: Collection[str] = ()) -> list[object]:
    """Parameters that need tables: those with a long one are tried before a release, others in the extended tier.

    Those in `kept` without a long one run every time.
    """
    marks = {
        name: pytest.mark.release if any(is_long(TABLES[one]) for one in needed) else pytest.mark.extended
        for name, needed in tables.items()
    }
    return [
        name if name in kept and mark is pytest.mark.extended else pytest.param(name, marks=mark)
        for name, mark in marks.items()
    ]


def kind_of(table: MeasurementTable, row: MeasurementRow) -> tuple[str, ...]:
    """Part of a row, its machine, and all else of its setting that is no number."""
    (part,) = (bound.name for bound in table.bounds if bound.holds(row))
    return (part, *(one for one in row.setting.values() if isinstance(one, str)))


def spread_rows(table: MeasurementTable) -> list[MeasurementRow]:
    """Rows of every kind, evenly from its first to its last; one at least, so that there may be more than the most."""
    kinds: defaultdict[tuple[str, ...], list[MeasurementRow]] = defaultdict(list)
    for row in table.rows():
        kinds[kind_of(table, row)].append(row)
    each = max(1, MOST_ROWS // len(kinds))
    return [
        rows[place]
        for rows in kinds.values()
        for place in sorted({round(one) for one in np.linspace(0, len(rows) - 1, min(each, len(rows)))})
    ]
