"""A study with its numbers as its file has it (`moereplay-sweep/1`), read back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tracegen.shared.display.frames import flat
from tracegen.shared.display.shown import Shown


class _Read(BaseModel):
    """A part of the document; what is not shown is not read."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class SavedCell(_Read):
    """A quantity over the seeds that have it."""

    mean: float
    min: float
    max: float
    count: int


class SavedChoice(_Read):
    """One value of an axis."""

    label: str
    settings: dict[str, Any] = {}


class SavedColumn(_Read):
    """A quantity: its heading, and digits behind the point."""

    header: str
    digits: int = Field(1, ge=0, le=9)


class SavedClaim(_Read):
    """A published number beside the one that was replayed."""

    says: str
    published: float
    column: str
    replayed: float | None
    num_found: int
    num_wanted: int


class SavedRow(_Read):
    """One point: its labels by axis, its cells by heading, and why it has none."""

    labels: dict[str, str]
    cells: dict[str, SavedCell | None]
    refused: str | None = None
    failed: str | None = None


class SavedGrid(_Read):
    """One table of a study."""

    title: str
    notes: str
    experiment: str = "layer"
    fixed: dict[str, Any]
    seeds: list[int]
    axes: dict[str, list[SavedChoice]]
    columns: list[SavedColumn]
    claims: list[SavedClaim]
    rows: list[SavedRow]

    @model_validator(mode="after")
    def _is_whole(self) -> SavedGrid:
        """Refuse a row without a label for an axis or a cell for a column."""
        headers = {column.header for column in self.columns}
        for row in self.rows:
            if row.labels.keys() != self.axes.keys() or row.cells.keys() != headers:
                message = "a row has other axes or columns than its grid"
                raise ValueError(message)
        return self


class SavedSweep(_Read, Shown):
    """A study: what it asks, and its tables."""

    format: Literal["moereplay-sweep/1"]
    name: str
    title: str
    question: str
    notes: str
    grids: list[SavedGrid]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each point: its grid, its labels by axis, and its quantities with their range."""
        return [
            {"grid": number, **row.labels, **flat(row.model_dump(include={"cells"})["cells"])}
            for number, grid in enumerate(self.grids)
            for row in grid.rows
        ]
