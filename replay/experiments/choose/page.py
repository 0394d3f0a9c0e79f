"""Page of a search of shapes and plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.choose import tables
from replay.report.charts import parts_of
from replay.report.command import command
from replay.report.provenance import NO_COMMAND, provenance
from tracegen.shared.display.content import Axis, Bars, Line, Page, Plot, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.experiments.choose.result import CandidateRow, SearchResult, SystemFindings
    from tracegen.shared.display.content import Item

MOST_BARS = 10
COMPUTING = ("attention", "dense", "experts", "head")
WAITING = ("exchange", "peers", "pipeline", "synchronise", "optimiser", "jitter")
"""Causes of a step in which something of the model is computed, and those in which nothing is."""


def page(result: SearchResult) -> Page:
    """Make the page of a search, the best of each system first."""
    sections: list[Section] = []
    for number, found in enumerate(result.systems, 1):
        sections += _sections(result, found, number)
    said = {key: _wording(value) for key, value in result.space.items()}
    is_known = result.spec.space is not None
    line = command(["moereplay", "choose"], result.spec, more=["-o", "out"]) if is_known else ""
    why = (
        f"{NO_COMMAND}a space is a file, and its values are these. With them in a file, "
        "moereplay choose FILE -o FOLDER does."
    )
    entered = provenance(
        {**said, "ranked by": result.by, "rows that are exact": result.top},
        command=line,
        why_none=why,
    )
    return Page(
        title=result.name,
        summary=summary(result),
        sections=[*sections, entered],
        command=line,
    )


def summary(result: SearchResult) -> str:
    """Say the best of each system, and what it spends its step on."""
    return " ".join(_best(found, result.by) for found in result.systems)


def _best(found: SystemFindings, by: str) -> str:
    if not found.rows:
        return f"On {found.system} no candidate can be simulated."
    best = found.rows[0]
    lead = ""
    if found.rows[1:]:
        what = "mfu" if by == "mfu" else "tokens_per_s"
        gain = getattr(best.cost, what) / getattr(found.rows[1].cost, what) - 1
        lead = f" It leads the second by {gain:.1%}."
    return (
        f"On {found.system} the best of {len(found.rows)} simulated candidates is "
        f"{row_name(found, best)}: {best.cost.tokens_per_s:,.0f} tokens/s, MFU "
        f"{best.cost.mfu:.1%}.{lead}"
    )


def row_name(found: SystemFindings, row: CandidateRow) -> str:
    """Sizes in which candidates differ, and the plan where there are several."""
    differ = [key for key in row.sizes if len({one.sizes.get(key) for one in found.rows}) > 1] or list(row.sizes)
    words = [f"{row.sizes[key]} {tables.WORDS.get(key, key)}" for key in differ]
    if len(set(map(tables.plan_of, found.rows))) > 1:
        words.append(tables.plan_of(row))
    return ", ".join(words)


def _wording(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key} {_wording(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, list):
        return ", ".join(map(_wording, value))
    return "" if value is None else str(value)


def _sections(result: SearchResult, found: SystemFindings, number: int) -> Iterator[Section]:
    system = found.system
    if not found.rows:
        yield Section(system, [tables.counts_table(found, number)])
        return
    yield Section(
        f"Which plan is best on {system}?",
        [
            tables.best_table(found, result.top, f"best-{number}"),
            mfu_plot(found, number),
            cause_bars(found, number),
            *tables.reasons(found, result.top),
        ],
    )
    more: list[Item] = [tables.counts_table(found, number)]
    if found.sensitivity is not None:
        more += [*tables.turns(found.sensitivity), tables.sensitivity_table(found, number)]
    yield Section(f"How sure is it, and what was left out on {system}?", more, is_detail=True)


def mfu_plot(found: SystemFindings, number: int) -> Plot:
    """MFU of all simulated candidates over their parameters, the best with its name."""
    best, others = found.rows[0], found.rows[1:]
    lines = [
        Line(
            name,
            [one.total_parameters / 1e9 for one in rows],
            [100 * one.cost.mfu for one in rows],
            form="points",
            labels=[row_name(found, one) for one in rows],
        )
        for name, rows in (("the best", [best]), ("other candidates", others))
        if rows
    ]
    return Plot(
        name=f"mfu-{number}",
        title=f"{found.system}: MFU of the simulated candidates",
        x=Axis("parameters, G", from_zero=False),
        y=Axis("MFU, %", from_zero=False),
        lines=lines,
        says="Candidates whose bound shows that they are not among the first are not simulated.",
    )


def cause_bars(found: SystemFindings, number: int) -> Bars:
    """Steps of the first candidates by cause; the bound by multiplications alone is marked."""
    rows = found.rows[:MOST_BARS]
    unit, unit_us = tables.unit_of(rows)
    order = dict.fromkeys([*COMPUTING, *WAITING], 0.0)  # what is named else is last
    return Bars(
        name=f"step-{number}",
        title=f"{found.system}: step of the first candidates by cause, {unit}",
        labels=[f"{place}: {row_name(found, one)}" for place, one in enumerate(rows, 1)],
        parts=parts_of(
            [{**order, **one.cost.spent_us} for one in rows],
            hatched={cause for one in rows for cause in one.cost.spent_us} - set(COMPUTING),
            per=unit_us,
        ),
        unit=unit,
        marks=[one.least_us / unit_us for one in rows],
        mark_name="bound: its multiplications alone",
        says="Mean over the GPUs. Hatched: nothing of the model is computed.",
    )
