"""Predictions over measurements as their file has them (`moereplay-validation/1`), read back."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, model_validator

from tracegen.shared.display.exhibit import Exhibit
from tracegen.shared.display.frames import flat


class SavedErrors(BaseModel):
    """Errors of some rows, in percent.

    Attributes
    ----------
    count, mean, median, p95, bias
        Rows; mean, median and 95th percentile of the error without its sign; mean error. Without
        any rows there is only the count.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    count: int
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    bias: float | None = None


class SavedPart(SavedErrors):
    """Errors of a part of a table, what their mean must not exceed, and whether it does not."""

    name: str
    bound_mean_percent: float
    holds: bool


class SavedMachineErrors(SavedErrors):
    """Errors of a kind of work on a machine."""

    machine: str
    kind: str


class SavedMeasurement(BaseModel):
    """One row: its setting in further fields, and what was measured and predicted."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, extra="allow")

    line: int
    measured: float
    predicted: float
    error_percent: float
    left_out: bool
    kernel_taken: str = ""

    @property
    def setting(self) -> str:
        """Its setting in one line."""
        return " ".join(str(value) for value in (self.model_extra or {}).values())

    def size(self, column: str) -> float | None:
        """Value of a column above 0; None where there is no such number."""
        value = (self.model_extra or {}).get(column)
        return value if isinstance(value, int | float) and value > 0 else None


class SavedTable(BaseModel):
    """One table of measurements with its predictions.

    `size` is the column that tells how much was moved or computed; empty in older files. Errors and
    biases of rates are negative where predictions are too fast, which older files have the other way.
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    name: str
    title: str
    unit: str
    size: str = ""
    parts: list[SavedPart]
    worst: list[int]
    rows: list[SavedMeasurement]

    @model_validator(mode="wrap")
    @classmethod
    def _turn_older_rates(cls, data: Any, read: ModelWrapValidatorHandler[SavedTable]) -> SavedTable:
        table = read(data)
        is_older = any(row.error_percent * (row.predicted - row.measured) > 0 for row in table.rows)
        if table.unit != "GB/s" or not is_older:
            return table
        rows = [row.model_copy(update={"error_percent": -row.error_percent}) for row in table.rows]
        parts = [one.model_copy(update={"bias": one.bias and -one.bias}) for one in table.parts]
        return table.model_copy(update={"rows": rows, "parts": parts})


class SavedValidation(BaseModel, Exhibit):
    """All tables that were predicted, and errors by machine and kind of work, which older files lack."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, populate_by_name=True)

    schema_: Literal["moereplay-validation/1"] = Field(alias="schema")
    holds: bool
    machines: list[SavedMachineErrors] = []
    tables: list[SavedTable]

    def _rows(self) -> list[dict[str, Any]]:
        """One for each measurement; a column of its table has the table's own name."""
        return [
            {"table": table.name, "unit": table.unit, **flat(row.model_dump(mode="json"))}
            for table in self.tables
            for row in table.rows
        ]
