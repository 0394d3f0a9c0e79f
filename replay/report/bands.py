"""How sure a comparison is, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from replay.report.tables import row_names, text_table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from replay.run.bands import Band, Uncertainty
    from replay.run.result import Comparison


def bands_table(compared: Comparison) -> list[RenderableType]:
    """Bands and shares of a comparison, and what decides; nothing where it was not asked for."""
    found = compared.uncertainty
    if found is None:
        return []
    by_time = sorted(compared.results, key=lambda one: one.totals.makespan_us)
    first = by_time[0]
    per = len(first.layers) if first.chain is None else first.chain.num_steps
    unit = "layer us" if first.chain is None else "step us"
    table = text_table(
        f"How sure it is: {found.draws} draws of {_listed(found.drawn)}, seed {found.seed}",
        ("scheme", unit, "5 %", "median", "95 %", "fastest in", "before the next in"),
    )
    names = row_names(by_time)
    for name, band in zip(names, found.bands, strict=True):
        table.add_row(
            name,
            *(f"{time / per:,.1f}" for time in (band.nominal_us, *_percentiles(band))),
            _share(band.first),
            _share(band.before_next),
        )
    rivals = [name for name, band in zip(names, found.bands, strict=True) if band.first is not None]
    return [table, Text("\n".join(_notes(found, rivals)))]


def _percentiles(band: Band) -> tuple[float, float, float]:
    return band.low_us, band.median_us, band.high_us


def _share(of_draws: float | None) -> str:
    return "-" if of_draws is None else f"{of_draws:.0%}"


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
