"""How sure a comparison is, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.times import count, fastest, unit_of
from replay.report.tables import table, told
from tracegen.shared.display.content import Column

if TYPE_CHECKING:
    from rich.console import RenderableType

    from replay.experiments.layer.bands import Uncertainty
    from replay.experiments.layer.result import Comparison


def bands_table(compared: Comparison) -> list[RenderableType]:
    """Bands and shares of a comparison, and what decides; nothing where it was not asked for."""
    found = compared.uncertainty
    if found is None:
        return []
    by_time = fastest(compared.results)
    per, names = count(by_time[0]), row_names(by_time)
    made = table(
        "bands",
        f"How sure it is: {found.draws} draws of {_listed(found.drawn)}, seed {found.seed}",
        found.bands,
        (Column(unit_of(by_time[0]), "us", ",.1f"), lambda one: one.nominal_us / per),
        (told("5 %", "us", ",.1f", 1), lambda one: one.low_us / per),
        (Column("median", "us", ",.1f", 2), lambda one: one.median_us / per),
        (Column("95 %", "us", ",.1f", 1), lambda one: one.high_us / per),
        (told("fastest in", "", ".0%"), lambda one: one.first),
        (told("before the next in", "", ".0%"), lambda one: one.before_next),
        labels=names,
    )
    rivals = [name for name, band in zip(names, found.bands, strict=True) if band.first is not None]
    return [made, Text("\n".join(_notes(found, rivals)))]


def _notes(found: Uncertainty, names: list[str]) -> list[str]:
    notes = []
    if len(names) > 2:
        notes.append(f"The whole order holds in {found.order_holds:.0%} of the draws.")
    if found.decides:
        causes = [f"{one.name} ({one.correlation:+.2f})" for one in found.decides]
        notes.append(f"Deciding between {names[0]} and {names[1]}: {', '.join(causes)};")
        notes.append(
            "the rank correlation with the lead of the first, of a value or a part's time."
        )
    notes.append("Options and placements are those of the comparison in every draw.")
    return [*notes, *(f"note: {note}." for note in found.notes)]


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
