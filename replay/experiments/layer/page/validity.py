"""Errors of predictions of measured kernels, beside each scheme.

The errors are those that `replay.studies.uncertainty` draws from: what validation leaves
unexplained of each part of a layer. Nothing is predicted here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import UNREAL, row_names
from replay.experiments.layer.tables.times import count
from replay.studies.differences.path import by_phase
from replay.studies.uncertainty.parts import parts_of
from replay.studies.uncertainty.reach import PHASES, Reach, between, errors_of, plain, reach
from replay.studies.uncertainty.residuals import UNVALIDATED, row_counts
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from tracegen.shared.display.content import Cell

MEASURED = "measured"
NOT_MEASURED = "few or none"
PROPOSAL = "proposal"
BOUND = "a bound"
NOTES = (
    "Median of measured over predicted time, less 1, and the range of nine of ten measurements.",
    "Where there are few or none, the error is that of kernels predicted with little fitted.",
    "Proposal: hardware that nobody has built.",
    "VALIDATION.md says what was measured, where, and with which bounds.",
)


def is_without_error(name: str) -> bool:
    """Tell whether a scheme models no software, of which no error of the model is known."""
    return name in UNREAL


def validity_table(results: Sequence[Result]) -> Table:
    """Error of each scheme's communication: measured over predicted time of such kernels."""
    columns = [Column("scheme"), Column("measurements of its kernels")]
    for phase in PHASES:
        columns += [
            Column(phase, "%", "+.1f"),
            Column(f"{phase} from", "%", "+.1f", rank=1),
            Column(f"{phase} to", "%", "+.1f", rank=1),
        ]
    columns.append(Column("rows", "", ",d", rank=2, says="measurements that the error is of"))
    rows = [_row(name, one) for name, one in zip(row_names(results), results, strict=True)]
    title = "How far predictions of communication are from measurements"
    return Table("validity", title, columns, rows, NOTES)


def _row(name: str, result: Result) -> tuple[Cell, ...]:
    if result.scheme.name in UNREAL:
        return (name, BOUND, *([None] * 7))
    parts = parts_of(result)
    counts = [row_counts()[plain(parts[phase])] for phase in PHASES]
    errors = [error for phase in PHASES for error in errors_of(parts[phase])]
    return (name, _standing(result, parts), *errors, min(counts))


def _standing(result: Result, parts: dict[str, str]) -> str:
    """Sentence on whether the kernels of a scheme were measured."""
    if not any(plain(parts[phase]) == UNVALIDATED for phase in PHASES):
        return MEASURED
    return PROPOSAL if result.scheme.proposes else NOT_MEASURED


def experts_line(results: Sequence[Result]) -> str:
    """Error of the experts' GEMMs, which all schemes share."""
    parts = dict.fromkeys(parts_of(one)["experts"] for one in results)
    found = []
    for part in parts:
        median, low, high = errors_of(part)
        found.append(
            f"{part}: {median:+.1f}% in the median, {low:+.1f}% to {high:+.1f}% in nine of ten "
            f"of {row_counts()[part]:,} measurements"
        )
    return f"All schemes share the error of {'; '.join(found)}."


def reach_of(result: Result) -> Reach:
    """Error of a time by its communication, in nine of ten cases.

    The error of each phase counts for as long as the critical path is in that phase.
    """
    return reach(parts_of(result), by_phase(result))


def turning_line(first: tuple[str, Result], second: tuple[str, Result]) -> str:
    """Sentence on the nearest rival: its distance, and whether errors of predictions reach so far.

    Parameters
    ----------
    first, second
        The fastest and the next, with their names.
    """
    times = [one.totals.makespan_us / max(count(one), 1) for _, one in (first, second)]
    away = times[1] / max(times[0], 1e-9) - 1
    errors = [reach_of(one) for _, one in (first, second)]
    both = between(*errors)
    holds = "the order may turn" if away <= both else "the order holds against that"
    if away > both and any(one.scheme.assumes for _, one in (first, second)):
        holds += ", if what they assume is so (see what is assumed)"
    together = ", one way, since their kernels are the same" if errors[0].parts == errors[1].parts else ""
    return (
        f"{second[0]} is next, {away:.1%} slower: the error of their communication moves the two "
        f"times by {errors[0].share:.1%} and {errors[1].share:.1%}{together}, so {holds}"
    )


def validity_line(results: Sequence[Result]) -> str:
    """In a sentence, which of some schemes rest on measurements of their own kernels."""
    measured: list[str] = []
    others: list[str] = []
    for name, one in zip(row_names(results), results, strict=True):
        if one.scheme.name in UNREAL:
            continue
        is_measured = _standing(one, parts_of(one)) == MEASURED
        (measured if is_measured else others).append(name)
    lines = []
    if measured:
        lines.append(f"Measured kernels stand behind {', '.join(measured)}.")
    if others:
        verb = "communicate" if others[1:] else "communicates"
        lines.append(f"There are few measurements, or none, of how {', '.join(others)} {verb}.")
    return " ".join(lines)
