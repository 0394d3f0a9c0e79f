"""Uncertainty of results, as a page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.experiment import EXPERIMENTS
from replay.experiments.layer.tables.bands import (
    FEW_DRAWS,
    drawn_notes,
    drawn_plot,
    drawn_table,
    draws_text,
)
from replay.report.provenance import provenance
from tracegen.shared.display.content import Page, Section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from replay.studies.uncertainty.sureness import Race, Sureness
    from tracegen.shared.display.content import Item, Table


def page(found: Sureness, command: str = "") -> Page:
    """Make the page of drawn results.

    Parameters
    ----------
    command
        The command line that made it, where that is known.
    """
    several = len(found.races) > 1
    sections = [
        Section(race.what or "How far do times spread?", list(_items(found, race, f"-{number}" if several else "")))
        for number, race in enumerate(found.races)
    ]
    entered = {"system": found.system, **found.run_ids}
    return Page(
        title=f"How sure it is: {EXPERIMENTS[found.experiment].title}",
        summary=" ".join(map(sentence, found.races)),
        sections=[*sections, provenance(entered, command=command)],
        command=command,
    )


def sentence(race: Race) -> str:
    """Sentence on which is first, and in which share of the draws."""
    where = f"{race.what}: " if race.what else ""
    first = next((band.first for band in race.found.bands if band.first is not None), None)
    rivals = [name for name, band in zip(race.names, race.found.bands, strict=True) if band.first is not None]
    if first is None or len(rivals) < 2:
        band, draws = race.found.bands[0], race.found.draws
        low, high, share = band.low_us, band.high_us, "nine of ten draws"
        if draws <= FEW_DRAWS:
            low, high, share = min(band.times_us), max(band.times_us), draws_text(draws)
        return f"{where}{race.names[0]} takes {low:,.1f} to {high:,.1f} us in {share}."
    return f"{where}{rivals[0]} is the fastest in {first:.0%} of {draws_text(race.found.draws)}."


def table(found: Sureness, race: Race, name: str = "bands") -> Table:
    """Bands and shares of results that do one thing."""
    head = "algorithm" if found.experiment == "collective" else "scheme"
    of = f"time of {race.what}" if race.what else "time"
    return drawn_table(race.found, race.names, of, name=name, head=head)


def notes(found: Sureness, race: Race) -> list[str]:
    """Notes on these bands, a line each."""
    return drawn_notes(race.found, race.names, is_of_layers=found.experiment == "layer")


def _items(found: Sureness, race: Race, number: str) -> Iterator[Item]:
    name = f"bands{number}"
    yield table(found, race, name)
    if len(race.names) > 1:
        yield drawn_plot(race.found, race.names, name=f"{name}-drawn")
    yield from notes(found, race)
