"""Constants of a machine from lines of logs, by the predictions that validation makes.

Tables are fitted one after the other, in the order of `CONSTANTS`, and each with what those before
it found. Of a table's constants those are fitted that its lines determine; all others stay the
base's. How far a fitted constant is off in one case of ten follows from the lines' errors and from
how much the lines show of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist

import numpy as np

import hwmodel.catalog
from replay.errors import UserError
from replay.model.arrays import Reals
from replay.studies.machines import machine_file
from replay.studies.machines.least_squares import (
    USUAL_ERROR,
    deviations,
    fit_values,
    is_share,
    keep_determined,
    slopes,
)
from replay.studies.machines.log import Log
from replay.studies.machines.tables import CONSTANTS, TABLES, TOOLS
from replay.studies.validate.bench import Bench
from replay.studies.validate.links import NUM_GPUS as LINKED_GPUS
from replay.studies.validate.table import MeasurementRow, Outcome, predictions

INSIDE = 0.9  # of cases that lie within a stated spread
ROUNDS = 5
FEW = 3  # lines more than constants, below which lines do not say how far they are off
LEAST_ERROR = 0.002  # of a line: logs have few digits
BETWEEN_NODES = ("deepep_internode", "deepep_internode_notify", "deepep_low_latency")
_DEVIATIONS = NormalDist().inv_cdf(0.5 + INSIDE / 2)


@dataclass(frozen=True)
class Constant:
    """A constant that lines determine.

    Attributes
    ----------
    key
        Such as ``warp.scan_ns``.
    value, low, high
        What was found, and where it lies in nine cases of ten.
    before
        The base's value.
    table
        Whose lines determined it.
    """

    key: str
    value: float
    low: float
    high: float
    before: float
    table: str


@dataclass(frozen=True)
class TableLines:
    """The lines of one table.

    Attributes
    ----------
    files
        Names of the logs.
    used, held_out
        Predictions, with the found constants, of the lines that were fitted and of those held out
        for a test.
    spread_percent
        Error that nine of ten lines do not exceed, judged by the fitted ones.
    """

    files: tuple[str, ...]
    used: Outcome
    held_out: Outcome
    spread_percent: float

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.used.table.name

    @property
    def mean_percent(self) -> float:
        """Mean error of the fitted lines, without its sign."""
        return float(np.abs(self.used.errors_percent).mean())

    def inside(self) -> int:
        """Lines held out that are off by no more than the spread."""
        return int((np.abs(self.held_out.errors_percent) <= self.spread_percent).sum())


@dataclass(frozen=True)
class MachineFit:
    """A machine from logs.

    Attributes
    ----------
    base
        The machine that gives all other values.
    constants, parts
        What was found, and the lines by table.
    undetermined
        Constants of the base that stayed, and why, by key.
    left
        Why lines were left out, by log and reason, and how many.
    """

    base: str
    constants: tuple[Constant, ...]
    parts: tuple[TableLines, ...]
    undetermined: Mapping[str, str]
    left: Mapping[tuple[str, str], int]

    def toml(self, name: str) -> str:
        """Text of a machine's file, with sources, spreads and residuals."""
        lines = sum(len(part.used.rows) for part in self.parts)
        summary = f"{self.base} with {len(self.constants)} constants fitted to {lines} lines of logs"
        remarks = ["Written by `moereplay hardware fit`.", "", *map(_remark, self.parts)]
        text = machine_file.head_text(name, self.base, summary, remarks)
        of = {part.name: part for part in self.parts}
        for one in sorted(self.constants, key=lambda one: one.key):
            part = of[one.table]
            source = (
                f"fitted to {len(part.used.rows)} lines of {', '.join(part.files)}, by moereplay "
                f"hardware fit; {self.base} has {one.before:g}"
            )
            text = machine_file.file_text(text, one.key, one.value, source, (one.low, one.high))
        return text


def fit(
    base: str,
    logs: Sequence[Log],
    hold_out: float = 0.0,
    progress: Callable[[], object] = lambda: None,
) -> MachineFit:
    """Fit constants to logs.

    Parameters
    ----------
    base
        A machine of the catalogue that gives all other values.
    logs
        As `replay.studies.machines.logs.read` returns them, whose rows name the base.
    hold_out
        Share of the lines that are left out for a test, spread evenly over each table.
    progress
        Called when a table is done; there are as many as in `CONSTANTS`.

    Raises
    ------
    UserError
        If the catalogue has no such base, or the lines determine none of its constants.
    """
    check_base(base)
    spec = hwmodel.catalog.load_spec(base)
    here = {key: spec.entry(key).value for key in spec.present()}
    found: dict[str, Constant] = {}
    parts: list[TableLines] = []
    left = {(log.name, reason): count for log in logs for reason, count in log.left.items()}
    for table, keys in CONSTANTS.items():
        rows = _predict(table, logs, left)
        used, held = split(rows, hold_out)
        start = {key: here[key] for key in keys if here.get(key) and key not in found}
        if used:
            fixed = {key: one.value for key, one in found.items()}
            errors = partial(_errors, table, used, fixed)
            new = _constants(table, start, errors)
            found |= {one.key: one for one in new}
            values = fixed | {one.key: one.value for one in new}
            files = tuple(log.name for log in logs if any(row.table == table for row in log.rows))
            fitted_lines, others = (_outcome(table, some, values) for some in (used, held))
            parts.append(TableLines(files, fitted_lines, others, _spread(fitted_lines, len(new))))
        progress()
    if not found:
        reasons = "; ".join(f"{file}: {reason}" for file, reason in left)
        raise UserError(f"the logs determine no constant of {base}{reasons and f' ({reasons})'}")
    stay = dict.fromkeys(key for keys in CONSTANTS.values() for key in keys if here.get(key))
    fitted_tables = {part.name for part in parts}
    undetermined = {key: _why(key, fitted_tables) for key in stay if key not in found}
    return MachineFit(base, tuple(found.values()), tuple(parts), undetermined, left)


def check_base(base: str) -> None:
    """Refuse a base on which no file can build.

    Raises
    ------
    UserError
        If the catalogue has no such machine.
    """
    try:
        hwmodel.catalog.check_base(base)
    except UserError as error:
        raise UserError(f"{error}; a file is no base of another") from None


def _why(key: str, fitted_tables: Collection[str]) -> str:
    """Reason why a constant was not found, by all tables whose lines may determine it."""
    tables = [table for table, keys in CONSTANTS.items() if key in keys]
    few = [table for table in tables if table in fitted_tables]
    absent = [TOOLS[table] for table in tables if table not in fitted_tables]
    tools = ", ".join(dict.fromkeys(absent))
    if not few:
        return f"needs {tools}"
    more = f"; more by {tools}" if tools else ""
    return f"too little in the lines of {' and '.join(few)}{more}"


def split(rows: Sequence[MeasurementRow], hold_out: float) -> tuple[list[MeasurementRow], list[MeasurementRow]]:
    """Rows to use and rows to hold out, which are spread evenly over each kind of row."""

    def kind(row: MeasurementRow) -> tuple[str, ...]:  # as dispatch and combine, which take turns in a log
        return tuple(one for one in row.setting.values() if isinstance(one, str))

    used: list[MeasurementRow] = []
    held: list[MeasurementRow] = []
    for at, row in enumerate(sorted(rows, key=kind)):
        is_held = int((at + 1) * hold_out + 1e-9) > int(at * hold_out + 1e-9)
        (held if is_held else used).append(row)
    return used, held


def outcomes(logs: Sequence[Log], hold_out: float = 0.0) -> list[Outcome]:
    """Predictions of the lines of logs, by table, for the machine that their rows name.

    Parameters
    ----------
    hold_out
        As of `fit`: only the lines that it leaves out; all of them with 0.
    """
    every: list[Outcome] = []
    for table in CONSTANTS:
        rows = _predict(table, logs, {})
        if chosen := split(rows, hold_out)[1] if hold_out else rows:
            every.append(_outcome(table, chosen, {}))
    return every


def _predict(table: str, logs: Sequence[Log], left: dict[tuple[str, str], int]) -> list[MeasurementRow]:
    """Rows of a table that their machine can be asked for; others are counted in `left`."""
    rows, bench = [], Bench()
    for log in logs:
        for row in log.rows:
            if row.table == table:
                try:
                    _check_gpus(bench, row)
                    predictions(TABLES[table], bench, [row])
                except UserError as error:
                    key = (log.name, str(error).splitlines()[0])
                    left[key] = left.get(key, 0) + 1
                else:
                    rows.append(row)
    return rows


def _check_gpus(bench: Bench, row: MeasurementRow) -> None:
    """Refuse more GPUs than a machine has; tables between nodes take as many nodes as they need.

    Raises
    ------
    UserError
        If the machine has fewer.
    """
    fabric = bench.system(row["system"]).spec.fabric
    has = fabric.num_gpus.value * fabric.num_domains.value
    gpus = row.setting.get("num_gpus") or row.setting.get("ep_size", 1)
    if row.table == "links":
        gpus = LINKED_GPUS
    if gpus > has and row.table not in BETWEEN_NODES:
        raise UserError(f"{gpus} GPUs: {row['system']} has {has}")


def _outcome(table: str, rows: Sequence[MeasurementRow], values: Mapping[str, float]) -> Outcome:
    found = predictions(TABLES[table], Bench(values), rows)
    kernels = tuple(one.kernel for one in found)
    predicted = np.array([one.value for one in found], dtype=np.float64)
    return Outcome(TABLES[table], tuple(rows), predicted, np.zeros(len(rows), bool), kernels)


def _errors(
    table: str, rows: Sequence[MeasurementRow], fixed: Mapping[str, float], values: Mapping[str, float]
) -> Reals:
    return _outcome(table, rows, {**fixed, **values}).errors_percent / 100


def _constants(table: str, start: dict[str, float], errors: Callable[[Mapping[str, float]], Reals]) -> list[Constant]:
    """Constants of a table that its lines determine."""
    keys, values, rest = list(start), start, errors(start)
    matrix = slopes(errors, values, rest)
    # What was found may show less of a constant than the base did.
    while (fewer := keep_determined(keys, matrix)) != keys or values is start:
        keys = fewer
        if not keys:
            return []
        values = fit_values({key: start[key] for key in keys}, errors, ROUNDS)
        rest = errors(values)
        matrix = slopes(errors, values, rest)
    known = deviations(matrix, _line_error(rest, len(keys)))
    found = []
    for key, deviation in zip(keys, known, strict=True):
        factor = float(np.exp(_DEVIATIONS * min(deviation, 1.0)))
        value = values[key]
        low, high = (float(f"{one:.4g}") for one in (value / factor, value * factor))
        high = min(high, 1.0) if is_share(key) else high
        found.append(Constant(key, value, min(low, value), max(high, value), start[key], table))
    return found


def _line_error(errors: Reals, constants: int) -> float:
    """Standard deviation of a line's error, by the median, which single bad lines do not move."""
    freedom = len(errors) - constants
    if freedom < FEW:
        return USUAL_ERROR
    median = float(np.median(np.abs(errors))) * math.sqrt(len(errors) / freedom)
    return max(median / NormalDist().inv_cdf(0.75), LEAST_ERROR)


def _spread(outcome: Outcome, constants: int) -> float:
    """Percent that nine of ten further lines are off by no more, as far as these say.

    A further line is as likely to lie between any two of n errors in their order as between any
    others, and so below the one at place 0.9 (n + 1) in nine cases of ten.
    """
    errors = np.sort(np.abs(outcome.errors_percent)) / 100
    place = min(math.ceil(INSIDE * (len(errors) + 1)), len(errors))
    return 100 * max(float(errors[place - 1]), _DEVIATIONS * _line_error(errors, constants))


def _remark(part: TableLines) -> str:
    """Lines and residuals of a table, in a line."""
    said = (
        f"{part.name}: {len(part.used.rows)} lines of {', '.join(part.files)}, mean error "
        f"{part.mean_percent:.1f} %, nine of ten within {part.spread_percent:.1f} %"
    )
    if not len(part.held_out.rows):
        return said
    mean = np.abs(part.held_out.errors_percent).mean()
    return f"{said}; {len(part.held_out.rows)} held out: mean error {mean:.1f} %"
