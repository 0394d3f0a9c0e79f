"""A table of measurements, its predictions, and the errors of these."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.model.arrays import Reals
from replay.studies.validate.bench import Bench, uniform_work

if TYPE_CHECKING:
    from replay.model.work.layer import LayerWork

NUM_WORST = 5


@dataclass(frozen=True)
class MeasurementRow:
    """One measurement.

    Attributes
    ----------
    table
        Name of the table.
    line
        Line of the file, the header being line 1.
    setting
        Column to value, whole numbers as int: everything that was set in the measurement.
    measured
        The value, in the table's unit.
    """

    table: str
    line: int
    setting: Mapping[str, Any] = field(hash=False)
    measured: float

    def __getitem__(self, column: str) -> Any:
        return self.setting[column]

    def label(self) -> str:
        """Its setting in one line."""
        return " ".join(str(value) for value in self.setting.values())

    def work(
        self,
        precision: str = "fp8",
        *,
        tokens: int | None = None,
        draw: Callable[..., LayerWork] = uniform_work,
        groups: int = 1,
    ) -> LayerWork:
        """Routing of its setting.

        Parameters
        ----------
        tokens
            Of each GPU, in place of its own.
        draw
            `uniform_work` or `even_work`.
        """
        gpus = self["ep_size"] if "ep_size" in self.setting else self["num_gpus"]
        experts = self.setting.get("num_experts") or gpus * self["experts_per_gpu"]
        count = self["tokens_per_rank"] if tokens is None else tokens
        return draw(gpus, count, experts, self["topk"], self["hidden"], precision, groups)


class Prediction(NamedTuple):
    """A predicted value, and the name of the kernel that software takes for the row."""

    value: float
    kernel: str


class WorkKind(StrEnum):
    """Kind of work that was measured, in the words of VALIDATION.md."""

    ROWS = "rows of experts, one domain"
    ROWS_BETWEEN = "rows of experts, several nodes"
    COLLECTIVES = "collectives, links"
    PRODUCTS = "products, attention"
    EXPERTS = "MoE compute"
    STEPS = "steps"


@dataclass(frozen=True)
class Bound:
    """Promise about one part of a table.

    Attributes
    ----------
    name
        Name of the part.
    mape_percent
        Largest mean absolute percentage error.
    holds
        Whether a row belongs to the part.
    """

    name: str
    mape_percent: float
    holds: Callable[[MeasurementRow], bool] = field(compare=False)


def has(**settings: Any) -> Callable[[MeasurementRow], bool]:
    """Predicate of rows whose columns have these values; without values, of all rows."""
    return lambda row: all(row[column] == value for column, value in settings.items())


EVERY = has()


@dataclass(frozen=True)
class MeasurementTable:
    """One file of measurements and the code that predicts its rows.

    Attributes
    ----------
    name, title
        Name on the command line; a line for people.
    size
        Column that tells how much was moved or computed, for the picture of error by size.
    bounds
        Promises; every row belongs to one part.
    predict
        Predicts the value of a row; with the name of the kernel where software chooses.
    measured
        Column of the measured value.
    is_outlier
        Marks rows left out of the statistics, by a rule that looks at the measurements alone.
    systems
        Presets of the machines that were measured.
    file, others
        Name of its file, where that has several measurements, the table's own if empty; columns of
        the other measurements.
    schemes
        Names of the schemes whose own kernels were measured, or those of the library that they
        call; none of what all schemes share, such as links and multiplications.
    belongs
        Which rows of the file the table has; all by default.
    kind
        Kind of work of all rows or of each; None where no time of any work was measured.
    """

    name: str
    title: str
    size: str
    bounds: tuple[Bound, ...]
    predict: Callable[[Bench, MeasurementRow], float | Prediction]
    measured: str = "time_us"
    is_outlier: Callable[[Sequence[MeasurementRow]], list[bool]] | None = None
    systems: tuple[str, ...] = ("dgx-h100",)
    file: str = ""
    others: tuple[str, ...] = ()
    schemes: tuple[str, ...] = ()
    belongs: Callable[[MeasurementRow], bool] = EVERY
    kind: WorkKind | Callable[[MeasurementRow], WorkKind] | None = None

    def cell(self, row: MeasurementRow) -> tuple[str, WorkKind] | None:
        """Machine and kind of work of a row; None where no time of any work was measured.

        Nodes between which something passes are the same machine as one of them.
        """
        if self.kind is None:
            return None
        machine = str(row.setting.get("system", self.systems[0])).removesuffix("-ib")
        return machine, self.kind if isinstance(self.kind, WorkKind) else self.kind(row)

    @property
    def unit(self) -> str:
        """Unit of the measured value, which its column's name ends with."""
        units = {"_us": "us", "_ms": "ms", "_GB_per_s": "GB/s", "_bytes": "bytes"}
        return next(unit for end, unit in units.items() if self.measured.endswith(end))

    def rows(self) -> tuple[MeasurementRow, ...]:
        """All measurements of the table."""
        every = _read(self.name, self.file or self.name, self.measured, self.others)
        return tuple(filter(self.belongs, every))


def measurements(file: str, measured: str) -> tuple[MeasurementRow, ...]:
    """Every row of a file of measurements.

    Parameters
    ----------
    file
        Its name, without ``.csv``.
    measured
        Column of the measured value.
    """
    return _read(file, file, measured, ())


@lru_cache
def _read(table: str, file: str, measured: str, others: tuple[str, ...]) -> tuple[MeasurementRow, ...]:
    text = (resources.files("replay.studies.validate.measurements") / f"{file}.csv").read_text("utf-8")
    rows = []
    for line, record in enumerate(csv.DictReader(text.splitlines()), start=2):
        value = float(record.pop(measured))
        setting = {key: int(v) if v.isdecimal() else v for key, v in record.items() if key not in others}
        rows.append(MeasurementRow(table, line, setting, value))
    return tuple(rows)


def error_statistics(errors_percent: Reals) -> dict[str, float]:
    """Count, mean, median and 95th percentile of absolute errors, and bias, in percent; of no error the count alone."""
    if not len(errors_percent):
        return {"count": 0}
    absolute = np.abs(errors_percent)
    return {
        "count": len(errors_percent),
        "mean": float(absolute.mean()),
        "median": float(np.median(absolute)),
        "p95": float(np.percentile(absolute, 95)),
        "bias": float(errors_percent.mean()),
    }


@dataclass(frozen=True)
class Outcome:
    """Predictions for the rows of a table, beside the measurements.

    Attributes
    ----------
    table
        The table.
    rows
        (row,) measurements.
    predicted
        (row,) predictions in the table's unit.
    left_out
        (row,) whether the row counts in no statistic.
    kernels
        (row,) names of the kernels that software takes; empty where the row says it, or nobody.
    """

    table: MeasurementTable
    rows: tuple[MeasurementRow, ...]
    predicted: Reals
    left_out: npt.NDArray[np.bool_]
    kernels: tuple[str, ...] = ()

    def label(self, index: int) -> str:
        """The setting of a row, and its kernel where software chose one."""
        setting = self.rows[index].label()
        return f"{setting} ({kernel})" if (kernel := self.kernel(index)) else setting

    def kernel(self, index: int) -> str:
        """Name of the kernel that software takes for a row; empty where there is no choice."""
        return self.kernels[index] if self.kernels else ""

    @property
    def measured(self) -> Reals:
        """(row,) measured values in the table's unit."""
        return np.array([row.measured for row in self.rows])

    @property
    def errors_percent(self) -> Reals:
        """(row,) predicted less measured, over measured, in percent; of a rate, measured less predicted.

        So a negative error is a prediction that is too fast, in every table.
        """
        errors: Reals = 100 * (self.predicted / self.measured - 1)
        return -errors if self.table.unit == "GB/s" else errors

    def part(self, holds: Callable[[MeasurementRow], bool]) -> npt.NDArray[np.bool_]:
        """(row,) whether a row belongs to a part and counts in its statistics."""
        return np.array([holds(row) for row in self.rows], dtype=bool) & ~self.left_out

    def statistics(self, which: npt.NDArray[np.bool_]) -> dict[str, float]:
        """Errors of some rows, as `error_statistics` sums them up."""
        return error_statistics(self.errors_percent[which])

    def checks(self) -> list[tuple[Bound, dict[str, float], bool]]:
        """Every bound with its part's statistics, and whether it holds."""
        checked = []
        for bound in self.table.bounds:
            numbers = self.statistics(self.part(bound.holds))
            held = numbers["count"] == 0 or numbers["mean"] <= bound.mape_percent
            checked.append((bound, numbers, held))
        return checked

    def worst(self, count: int = NUM_WORST) -> list[int]:
        """Indices of the rows that count and are furthest off, worst first."""
        distance = np.where(self.left_out, -1.0, np.abs(np.log(self.predicted / self.measured)))
        order = np.argsort(-distance, kind="stable")
        return [int(index) for index in order[:count] if distance[index] >= 0]


def predictions(table: MeasurementTable, bench: Bench, rows: Sequence[MeasurementRow]) -> list[Prediction]:
    """(row,) predicted values; the kernel is empty where software has no choice."""
    found = [table.predict(bench, row) for row in rows]
    return [one if isinstance(one, Prediction) else Prediction(one, "") for one in found]


def predict(table: MeasurementTable, bench: Bench, rows: Sequence[MeasurementRow] | None = None) -> Outcome:
    """Predict rows of a table, all of them by default."""
    every = table.rows()
    chosen = every if rows is None else tuple(rows)
    out = dict.fromkeys(every, False)
    if table.is_outlier is not None:
        out = dict(zip(every, table.is_outlier(every), strict=True))
    found = predictions(table, bench, chosen)
    predicted = np.array([one.value for one in found], dtype=np.float64)
    if not all(math.isfinite(value) and value > 0 for value in predicted):
        message = f"table {table.name}: a prediction is not a positive number"
        raise AssertionError(message)
    left_out = np.array([out[row] for row in chosen], dtype=bool)
    return Outcome(table, chosen, predicted, left_out, tuple(one.kernel for one in found))
