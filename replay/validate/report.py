"""Outcomes as text, Markdown, JSON and pictures."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tracegen.display.content import Column, Table

if TYPE_CHECKING:
    from replay.validate.table import Outcome
    from tracegen.display.content import Cell

SCHEMA = "moereplay-validation/1"
COLUMNS = ("table", "part", "rows", "mean %", "median %", "p95 %", "bias %", "bound %")
MEASURED = ("mean", "median", "p95", "bias")
NUM_LABELS = 2  # of the columns


def all_hold(outcomes: Sequence[Outcome]) -> bool:
    """Whether every stated bound holds."""
    return all(held for outcome in outcomes for _, _, held in outcome.checks())


def error_rows(outcomes: Sequence[Outcome]) -> list[list[str]]:
    """One row of cells for each part of each table, under `COLUMNS`."""
    rows = []
    for outcome in outcomes:
        for bound, numbers, _ in outcome.checks():
            cells = [outcome.table.name, bound.name, f"{numbers['count']:.0f}"]
            if numbers["count"]:
                cells += [f"{numbers[key]:.1f}" for key in MEASURED[:3]]
                cells.append(f"{numbers['bias']:+.1f}")
            else:
                cells += ["-"] * 4
            rows.append([*cells, f"{bound.mape_percent:g}"])
    return rows


def markdown_table(outcomes: Sequence[Outcome]) -> str:
    """Errors by table and part, as VALIDATION.md shows them."""
    from replay.sweeps.table import markdown

    return "\n".join(markdown(COLUMNS, error_rows(outcomes), labels=NUM_LABELS)) + "\n"


def shown(outcomes: Sequence[Outcome]) -> list[Table]:
    """Errors by table and part, and the rows that are furthest off."""
    errors: list[tuple[Cell, ...]] = []
    worst: list[tuple[Cell, ...]] = []
    for outcome in outcomes:
        table = outcome.table
        for bound, numbers, held in outcome.checks():
            found = [numbers[key] if numbers["count"] else None for key in MEASURED]
            errors.append(
                (
                    table.name, bound.name, int(numbers["count"]), *found, bound.mape_percent,
                    "" if held else "MISSED",
                )
            )  # fmt: skip
        num_left_out = int(outcome.left_out.sum())
        if num_left_out:
            nothing = [None] * (len(MEASURED) + 1)
            errors.append((table.name, "outliers, left out by rule", num_left_out, *nothing, ""))
        worst += [
            (
                table.name, outcome.label(index), outcome.rows[index].measured,
                float(outcome.predicted[index]), table.unit, float(outcome.errors_percent[index]),
            )
            for index in outcome.worst(3)
        ]  # fmt: skip
    return [
        Table(
            "errors",
            "Predicted against measured: errors",
            [
                Column("table"),
                Column("part"),
                Column("rows", form="d", rank=1),
                Column("mean", "%", ".1f", says="error without its sign, mean of the rows"),
                Column("median", "%", ".1f", rank=2),
                Column("p95", "%", ".1f", rank=1, says="95 % of the rows are off by no more"),
                Column("bias", "%", "+.1f", rank=1, says="mean error with its sign"),
                Column("bound", "%", "g", says="the mean that the code must keep"),
                Column(""),
            ],
            errors,
        ),
        Table(
            "worst",
            "Furthest off",
            [
                Column("table"),
                Column("row"),
                Column("measured", form=",.4g"),
                Column("predicted", form=",.4g"),
                Column("unit"),
                Column("error", "%", "+.0f"),
            ],
            worst,
        ),
    ]


def as_json(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Statistics, bounds and every row, as JSON objects (schema ``moereplay-validation/1``)."""
    return {
        "schema": SCHEMA,
        "holds": all_hold(outcomes),
        "tables": [
            {
                "name": outcome.table.name,
                "title": outcome.table.title,
                "unit": outcome.table.unit,
                "parts": [
                    {
                        "name": bound.name,
                        "bound_mean_percent": bound.mape_percent,
                        "holds": held,
                        **numbers,
                    }
                    for bound, numbers, held in outcome.checks()
                ],
                "worst": outcome.worst(),
                "rows": [
                    {
                        "line": row.line,
                        **row.setting,
                        "measured": row.measured,
                        "predicted": round(float(predicted), 4),
                        "error_percent": round(float(error), 2),
                        "left_out": bool(out),
                        **({"kernel_taken": kernel} if kernel else {}),
                    }
                    for row, predicted, error, out, kernel in zip(
                        outcome.rows,
                        outcome.predicted,
                        outcome.errors_percent,
                        outcome.left_out,
                        map(outcome.kernel, range(len(outcome.rows))),
                        strict=True,
                    )
                ],
            }
            for outcome in outcomes
        ],
    }


WIDTH, HEIGHT, MARGIN = 460, 400, 56
LARGEST_ERROR = 50  # percent, top of the second picture


def picture(outcome: Outcome) -> str:
    """Predicted over measured, and error by size, as one SVG."""
    points = [i for i in range(len(outcome.rows)) if not outcome.left_out[i]]
    measured, predicted = outcome.measured[points], outcome.predicted[points]
    low = math.log10(min(measured.min(), predicted.min())) - 0.05
    high = math.log10(max(measured.max(), predicted.max())) + 0.05
    sizes = (
        [float(outcome.rows[i][outcome.table.size]) for i in points]
        if _has_size(outcome)
        else list(measured)
    )
    first = _Axes(0, low, high, low, high)
    small, large = math.log10(min(sizes)) - 0.05, math.log10(max(sizes)) + 0.05
    second = _Axes(WIDTH, small, large, -LARGEST_ERROR, LARGEST_ERROR)
    unit, size = outcome.table.unit, outcome.table.size
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}"',
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{2 * WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{MARGIN}" y="18" font-size="13">{html.escape(outcome.table.title)}</text>',
        *first.frame(f"measured, {unit}", f"predicted, {unit}", log_y=True),
        *second.frame(size, "error, %", log_y=False),
        first.line(low, low, high, high),
        second.line(small, 0, large, 0),
    ]
    errors = outcome.errors_percent[points]
    for value, guess, where, error in zip(measured, predicted, sizes, errors, strict=True):
        parts.append(first.dot(math.log10(value), math.log10(guess)))
        clipped = max(-LARGEST_ERROR, min(LARGEST_ERROR, float(error)))
        parts.append(second.dot(math.log10(where), clipped))
    return "\n".join([*parts, "</svg>"])


def _has_size(outcome: Outcome) -> bool:
    return outcome.table.size in outcome.rows[0].setting


class _Axes:
    """One of the two pictures: positions of its values, frame, marks."""

    def __init__(self, left: float, x0: float, x1: float, y0: float, y1: float) -> None:
        self.left, self.x0, self.x1, self.y0, self.y1 = left, x0, x1, y0, y1

    def _at(self, x: float, y: float) -> tuple[float, float]:
        wide, tall = WIDTH - MARGIN - 16, HEIGHT - 2 * MARGIN
        across = (x - self.x0) / max(self.x1 - self.x0, 1e-9)
        up = (y - self.y0) / max(self.y1 - self.y0, 1e-9)
        return self.left + MARGIN + across * wide, HEIGHT - MARGIN - up * tall

    def dot(self, x: float, y: float) -> str:
        across, down = self._at(x, y)
        return f'<circle cx="{across:.1f}" cy="{down:.1f}" r="1.7" fill="#1f6fb4"/>'

    def line(self, x0: float, y0: float, x1: float, y1: float) -> str:
        (a, b), (c, d) = self._at(x0, y0), self._at(x1, y1)
        return f'<line x1="{a:.1f}" y1="{b:.1f}" x2="{c:.1f}" y2="{d:.1f}" stroke="#888"/>'

    def frame(self, x_label: str, y_label: str, *, log_y: bool) -> list[str]:
        (left, bottom), (right, top) = self._at(self.x0, self.y0), self._at(self.x1, self.y1)
        marks = [
            f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}"',
            f'height="{bottom - top:.1f}" fill="none" stroke="black"/>',
            f'<text x="{(left + right) / 2:.1f}" y="{bottom + 34:.1f}" text-anchor="middle">',
            f"{html.escape(x_label)}</text>",
            f'<text x="{left:.1f}" y="{top - 8:.1f}">{html.escape(y_label)}</text>',
        ]
        for decade in range(math.ceil(self.x0), math.floor(self.x1) + 1):
            across = self._at(decade, self.y0)[0]
            marks.append(
                f'<text x="{across:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">'
                f"1e{decade}</text>"
            )
        ticks = (
            [(d, f"1e{d}") for d in range(math.ceil(self.y0), math.floor(self.y1) + 1)]
            if log_y
            else [(v, f"{v:+d}") for v in range(-LARGEST_ERROR, LARGEST_ERROR + 1, 25)]
        )
        for value, label in ticks:
            down = self._at(self.x0, value)[1]
            marks.append(
                f'<text x="{left - 6:.1f}" y="{down + 4:.1f}" text-anchor="end">{label}</text>'
            )
        return marks
