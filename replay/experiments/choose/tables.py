"""Tables and lines of a search's result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from replay.experiments.choose.ranking import difference
from replay.report.tables import table, time_unit, word_column
from replay.report.words import explain_words
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from replay.experiments.choose.result import CandidateRow, SearchResult, Sensitivity, SystemFindings
    from tracegen.shared.display.content import Cell

SHOWN_TURNS = 8
WORDS = {"num_layers": "layers", "num_experts": "experts", "moe_intermediate": "width", "num_heads": "heads"}
"""Shorter headings."""


def tables(result: SearchResult) -> Group:
    """A table for every system, and why its first row is the best."""
    parts: list[RenderableType] = [Text(result.name)]
    for number, found in enumerate(result.systems, 1):
        lines = list(_counts(found))
        if found.sensitivity is not None:
            lines += turns(found.sensitivity)
        if found.rows:
            best = best_table(found, result.top, f"best-{number}")
            parts += [best, Text(), Text("\n".join([*reasons(found, result.top), *lines]))]
        else:
            head = f"{found.system}, scheme {found.scheme}"
            parts += [Text(head), Text("\n".join(lines))]
    made = [part for part in parts if isinstance(part, Table)]
    return Group(*parts, Text("\n".join(explain_words(made))))


def unit_of(rows: Sequence[CandidateRow]) -> tuple[str, float]:
    """Unit in which steps of some candidates are written, and its microseconds."""
    return time_unit(max(one.cost.step_us for one in rows))


def plan_of(row: CandidateRow) -> str:
    """Plan and schedule in words."""
    return f"{row.plan.replace(',', ', ')}, {row.schedule}"


def best_table(found: SystemFindings, top: int, name: str) -> Table:
    """So many candidates of a system, the best first."""
    rows = found.rows[:top]
    sizes, (unit, unit_us) = list(rows[0].sizes), unit_of(rows)
    several = len({plan_of(one) for one in rows}) > 1
    plan = "" if several else f"; {rows[0].plan}, {rows[0].schedule}"
    columns = [
        Column("place", form="d", rank=1),
        *(Column(WORDS.get(size, size), form="d") for size in sizes),
        word_column("total", "G", ",.3g", 1),
        word_column("active", "G", ",.3g", 1),
        Column("step", unit, ",.3f" if unit == "s" else ",.1f"),
        Column("tokens/s", "", ",.0f"),
        word_column("MFU", "", ".1%"),
        word_column("bound", "", ".0%", 2, "bound of a step"),
        word_column("memory", "GiB", ",.3g", 2, "fullest"),
        *([Column("plan")] if several else []),
    ]
    cells: list[list[Cell]] = [
        [
            place,
            *(one.sizes[size] for size in sizes),
            one.total_parameters / 1e9,
            one.active_parameters / 1e9,
            one.cost.step_us / unit_us,
            one.cost.tokens_per_s,
            one.cost.mfu,
            one.least_us / one.cost.step_us,
            one.cost.memory_gib,
            *([plan_of(one)] if several else []),
        ]
        for place, one in enumerate(rows, 1)
    ]
    return Table(name, f"{found.system}, scheme {found.scheme}{plan}", columns, cells)


def reasons(found: SystemFindings, top: int) -> Iterator[str]:
    """Sentences on what the best spends its step on, and what the second loses by, in the unit of the table."""
    unit, unit_us = unit_of(found.rows[:top])
    best = found.rows[0].cost
    most = sorted(best.spent_us.items(), key=lambda one: -one[1])[:4]
    shares = ", ".join(f"{cause} {us / best.step_us:.1%}" for cause, us in most)
    yield f"The best spends its step on {shares}."
    if len(found.rows) > 1:
        second = found.rows[1].cost
        longer = second.step_us - best.step_us
        parts = sorted(difference(best, second), key=lambda one: -abs(one[1]))[:3]
        said = ", ".join(f"{cause} {us / unit_us:+,.3f} {unit}" for cause, us in parts)
        yield f"The second takes {longer / unit_us:+,.3f} {unit}: {said}."


def turns(found: Sensitivity) -> Iterator[str]:
    """Lines on changes of the ranking with uncertain values of the hardware."""
    best = [one for one in found.changed if one.order[0] != 0]
    other = [one for one in found.changed if one.order != sorted(one.order)]
    keys = len({one.key for one in found.changed})
    yield (
        f"{keys} uncertain values of the hardware, each {100 * found.share:g} % lower and "
        f"higher: the best of the first {found.candidates} changes with {len(best)} of "
        f"{len(found.changed)} changes, any order among them with {len(other)}."
    )
    if found.changed:
        low, high = (f(one.lead for one in found.changed) for f in (min, max))
        yield f"The first is worth {low:.4f} to {high:.4f} times the best of the others."
    for one in best[:SHOWN_TURNS]:
        yield f"  {one.key} = {one.value:g}: row {one.order[0] + 1} is the best"


def without_cost(found: SystemFindings) -> list[tuple[str, str, int]]:
    """Candidates that have no simulated step: what became of them, the reason, how many."""
    kinds = {"left out": found.left_out, "refused": found.refused, "failed": found.failed}
    return [(what, reason, number) for what, counts in kinds.items() for reason, number in counts.items()]


def _counts(found: SystemFindings) -> Iterator[str]:
    simulated = len(found.rows) + sum(found.refused.values()) + sum(found.failed.values())
    yield (
        f"{simulated} candidates simulated; {found.pruned} cannot be among the first by their "
        f"bounds" + (f"; {found.skipped} not looked at" if found.skipped else "") + "."
    )
    for what, reason, number in without_cost(found):
        yield f"  {what}: {number:,} x {reason}"


def counts_table(found: SystemFindings, number: int) -> Table:
    """Table of outcomes of all pairs of a model and a plan."""
    rows = [
        ("simulated", "", len(found.rows)),
        ("not among the first", "their bounds show it", found.pruned),
        ("not looked at", "beyond the number that was to be simulated", found.skipped),
        *without_cost(found),
    ]
    return Table(
        f"candidates-{number}",
        f"{found.system}: what became of the candidates",
        [Column("candidates"), Column("because"), Column("number", form=",d")],
        [row for row in rows if row[2]],
    )


def sensitivity_table(found: SystemFindings, number: int) -> Table:
    """The order of the first candidates with each uncertain value of the hardware changed."""
    assert found.sensitivity is not None
    return table(
        f"sensitivity-{number}",
        f"{found.system}: the first candidates with other values of the hardware",
        found.sensitivity.changed,
        (Column("value"), lambda one: one.key),
        (Column("changed to", form=",.6g"), lambda one: one.value),
        (Column("order of candidates"), lambda one: ", ".join(str(place + 1) for place in one.order)),
        (
            Column("lead", form=".4f", says="worth of the first over the best of the others"),
            lambda one: one.lead,
        ),
    )
