"""How far predictions of measured kernels are from the measurements, beside each scheme.

The errors are those that `replay.uncertainty` draws from: what validation leaves unexplained of
each part of a layer. Nothing is predicted here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from replay.report.tables import row_names
from replay.uncertainty.parts import WITHOUT_ERROR, parts_of
from replay.uncertainty.residuals import UNVALIDATED, row_counts, table
from tracegen.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replay.run.result import Result
    from tracegen.display.content import Cell

NOT_MEASURED = "not measured"
PROPOSAL = "proposal: cannot be measured"
BOUND = "a bound: has no kernels"
NOTES = (
    "What nobody has measured has the error of kernels that were predicted with little fitted.",
    "VALIDATION.md says what was measured, where, and with which bounds.",
)
GROUPS = ("dispatch", "combine", "experts")


def validity_table(results: Sequence[Result]) -> Table:
    """Error of each part of each scheme: measured over predicted time of such kernels."""
    columns = [
        Column("scheme"),
        Column("part"),
        Column("predicted as", rank=1),
        Column("measurements", "", ",d", rank=2),
        Column("median", "%", "+.1f", says="measured over predicted time, less 1"),
        Column("from", "%", "+.1f", says="nine of ten measurements lie between from and to"),
        Column("to", "%", "+.1f"),
        Column("says"),
    ]
    rows = [
        row
        for name, one in zip(row_names(results), results, strict=True)
        for row in _rows(name, one)
    ]
    return Table(
        "validity",
        "What validation says of each scheme's parts: measured over predicted time",
        columns,
        rows,
        NOTES,
    )


def _rows(name: str, result: Result) -> Iterator[tuple[Cell, ...]]:
    if result.scheme.name in WITHOUT_ERROR:
        yield (name, "all", None, None, None, None, None, BOUND)
        return
    parts = parts_of(result)
    known, counts = table(), row_counts()
    for group in GROUPS:
        part = parts[group].partition(" (")[0]
        says = ""
        if part == UNVALIDATED:
            says = PROPOSAL if result.scheme.proposes else NOT_MEASURED
        low, median, high = (100 * (math.exp(known[part][place]) - 1) for place in (1, 10, 19))
        yield (name, group, part, counts[part], median, low, high, says or None)


def validity_line(results: Sequence[Result]) -> str:
    """In a sentence, which of some schemes rest on measurements of their own kernels."""
    measured: list[str] = []
    others: list[str] = []
    for name, one in zip(row_names(results), results, strict=True):
        if one.scheme.name in WITHOUT_ERROR:
            continue
        parts = parts_of(one)
        is_measured = not any(parts[group].startswith(UNVALIDATED) for group in GROUPS)
        (measured if is_measured else others).append(name)
    lines = []
    if measured:
        lines.append(f"Measured kernels stand behind {', '.join(measured)}.")
    if others:
        lines.append(
            f"There are few measurements, or none, of how {', '.join(others)} communicate."
        )
    return " ".join(lines)
