"""Outcomes as text, Markdown and JSON."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.studies.validate.table import WorkKind, error_statistics
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.studies.validate.table import Outcome
    from tracegen.shared.display.content import Cell

SCHEMA = "moereplay-validation/1"
COLUMNS = ("table", "part", "rows", "mean %", "median %", "p95 %", "bias %", "bound %")
MEASURED = ("mean", "median", "p95", "bias")
NUM_LABELS = 2  # of the columns
ERROR_COLUMNS = (
    Column("table"),
    Column("part"),
    Column("rows", form="d", rank=1),
    Column("mean", "%", ".1f", says="error without its sign, mean of the rows"),
    Column("median", "%", ".1f", rank=2),
    Column("p95", "%", ".1f", rank=1, says="95 % of the rows are off by no more"),
    Column("bias", "%", "+.1f", rank=1, says="mean error with its sign; negative is too fast"),
    Column("bound", "%", "g", says="the mean that the code must keep"),
)


def all_hold(outcomes: Sequence[Outcome]) -> bool:
    """Tell whether every stated bound holds."""
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


def machine_cells(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Errors of all times of a machine and kind of work: the machines by name, kinds in their order."""
    errors: defaultdict[tuple[str, WorkKind], list[float]] = defaultdict(list)
    for outcome in outcomes:
        for row, error, out in zip(outcome.rows, outcome.errors_percent, outcome.left_out, strict=True):
            if (cell := outcome.table.cell(row)) and not out:
                errors[cell].append(error)
    order = list(WorkKind)
    return [
        {"machine": cell[0], "kind": str(cell[1]), **error_statistics(np.array(errors[cell]))}
        for cell in sorted(errors, key=lambda one: (one[0], order.index(one[1])))
    ]


def machine_tables(cells: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table of `machine_cells`, machines down and kinds of work across; none without cells."""
    if not cells:
        return []
    kinds = [kind for kind in WorkKind if any(one["kind"] == kind for one in cells)]
    texts = {(one["machine"], one["kind"]): f"{one['mean']:.1f} / {one['p95']:.1f} ({one['count']})" for one in cells}
    return [
        Table(
            "machines",
            "Errors by machine and kind of work: mean / p95 in % (rows)",
            [Column("machine"), *(Column(kind) for kind in kinds)],
            [
                (machine, *(texts.get((machine, kind)) for kind in kinds))
                for machine in dict.fromkeys(one["machine"] for one in cells)
            ],
        )
    ]


def markdown_tables(outcomes: Sequence[Outcome]) -> str:
    """Errors by machine and kind of work, and by table and part, between VALIDATION.md's marks."""
    from replay.studies.sweeps.table import markdown

    found = {
        table.name: markdown([column.heading for column in table.columns], table.texts(), labels=len(table.columns))
        for table in machine_tables(machine_cells(outcomes))
    }
    found["errors"] = markdown(COLUMNS, error_rows(outcomes), labels=NUM_LABELS)
    blocks = ("\n".join([f"<!-- {name} -->", *lines, f"<!-- /{name} -->\n"]) for name, lines in found.items())
    return "\n".join(blocks)


def error_tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Errors by machine and kind of work, by table and part, and the rows that are furthest off."""
    errors: list[tuple[Cell, ...]] = []
    worst: list[tuple[Cell, ...]] = []
    for outcome in outcomes:
        table = outcome.table
        for bound, numbers, held in outcome.checks():
            found = [numbers[key] if numbers["count"] else None for key in MEASURED]
            errors.append(
                (
                    table.name,
                    bound.name,
                    int(numbers["count"]),
                    *found,
                    bound.mape_percent,
                    "" if held else "MISSED",
                )
            )
        num_left_out = int(outcome.left_out.sum())
        if num_left_out:
            nothing = [None] * (len(MEASURED) + 1)
            errors.append((table.name, "outliers, left out by rule", num_left_out, *nothing, ""))
        worst += [
            (
                table.name,
                outcome.label(index),
                outcome.rows[index].measured,
                float(outcome.predicted[index]),
                table.unit,
                float(outcome.errors_percent[index]),
            )
            for index in outcome.worst(3)
        ]
    return [
        *machine_tables(machine_cells(outcomes)),
        Table(
            "errors",
            "Predicted against measured: errors",
            [*ERROR_COLUMNS, Column("")],
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
        "machines": machine_cells(outcomes),
        "tables": [
            {
                "name": outcome.table.name,
                "title": outcome.table.title,
                "unit": outcome.table.unit,
                "size": outcome.table.size,
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
