"""Claims of a paper, beside what its study finds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown
from replay.studies.sweeps import columns
from replay.studies.sweeps.points import check_labels, is_meant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from replay.studies.sweeps.study import Claim, QuantityColumn
    from replay.studies.sweeps.table import Cell, GridTable, Labels

HEADINGS = ["paper", "published", "replayed", "replayed / published"]
NUM_LABELS = 2


@dataclass(frozen=True)
class ReplayedValue:
    """The number that stands beside a published one.

    Attributes
    ----------
    value
        None if no point has one.
    num_found, num_wanted
        Points that have a value, and that the claim is about.
    """

    value: float | None
    num_found: int
    num_wanted: int

    def text(self, digits: int) -> str:
        """The number, with how many points it is of where some have none."""
        if self.value is None:
            return "-"
        of = f" ({self.num_found} of {self.num_wanted})"
        return f"{self.value:,.{digits}f}" + (of if self.num_found < self.num_wanted else "")


def check_claims(table: GridTable) -> None:
    """Refuse claims about columns, axes or labels that their grid lacks.

    Raises
    ------
    UserError
        Saying what the grid has; also if a published number is not above 0.
    """
    headers = [column.header for column in table.columns]
    for claim in table.grid.claims:
        where = f"{table.where}: claim {claim.says!r}"
        if claim.column not in headers:
            message = f"{where}: {unknown('column', claim.column, headers)}"
            raise UserError(message)
        check_labels(claim.where, table.axes, where)
        if claim.published <= 0:
            message = f"{where}: published = {claim.published:g} must be above 0"
            raise UserError(message)


def replay_claim(claim: Claim, table: GridTable) -> ReplayedValue:
    """Value of a claim's points, each as the mean over its seeds."""
    cells = _cells(claim, table)
    values = [cell.mean for cell in cells.values() if cell is not None]
    value = REDUCE[claim.reduce](values) if values else None
    return ReplayedValue(value, len(values), len(cells))


def without_value(claim: Claim, table: GridTable) -> frozenset[Labels]:
    """Labels of the points that a claim is about and that have no value."""
    return frozenset(labels for labels, cell in _cells(claim, table).items() if cell is None)


def _cells(claim: Claim, table: GridTable) -> dict[Labels, Cell | None]:
    column = column_of(claim, table)
    points = [labels for labels in table.rows() if is_meant(claim.where, table.axes, labels)]
    return {labels: table.cell(labels, column) for labels in points}


def column_of(claim: Claim, table: GridTable) -> QuantityColumn:
    """The column that a claim is about."""
    return next(column for column in table.columns if column.header == claim.column)


REDUCE: Mapping[str, Callable[[list[float]], float | None]] = {
    **columns.REDUCE,
    "geomean": columns.geometric_mean,
}


def claim_lines(table: GridTable) -> list[list[str]]:
    """Rows of the table of claims, under `HEADINGS`; the first `NUM_LABELS` come from the study."""
    rows = []
    for claim in table.grid.claims:
        found = replay_claim(claim, table)
        digits = column_of(claim, table).digits
        ratio = "-" if found.value is None else f"{found.value / claim.published:.2f}"
        rows.append([claim.says, f"{claim.published:g}", found.text(digits), ratio])
    return rows


def claims_json(table: GridTable) -> list[dict[str, Any]]:
    """Claims as objects, each with the number that was replayed."""
    found = [(claim, replay_claim(claim, table)) for claim in table.grid.claims]
    return [
        {
            **claim.model_dump(),
            "replayed": one.value,
            "num_found": one.num_found,
            "num_wanted": one.num_wanted,
        }
        for claim, one in found
    ]
