"""How sure a comparison is, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from replay.experiments.base.names import row_names
from replay.report.words import says
from tracegen.shared.display.content import Axis, Column, Line, Plot, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from replay.experiments.layer.bands import Band, Uncertainty
    from replay.experiments.layer.result import Comparison


def bands_table(compared: Comparison) -> list[RenderableType]:
    """Bands and shares of a comparison, and what decides; nothing where it was not asked for.

    Times are of a layer, or of a step where layers are chained.
    """
    found = compared.uncertainty
    if found is None:
        return []
    by_time = sorted(compared.results, key=lambda one: one.totals.makespan_us)
    first = by_time[0]
    per = len(first.layers) if first.chain is None else first.chain.num_steps
    names = row_names(by_time)
    table = drawn_table(found, names, "layer" if first.chain is None else "step", per)
    return [table, Text("\n".join(drawn_notes(found, names)))]


def drawn_table(
    found: Uncertainty, names: Sequence[str], of: str, per: int = 1, name: str = "bands"
) -> Table:
    """Bands and shares.

    Parameters
    ----------
    names
        Of the results, in the order of the bands.
    of, per
        What the times are of, and how many of these the results have.
    name
        Of the table.
    """
    return Table(
        name,
        f"How sure it is: {found.draws} draws of {_listed(found.drawn)}, seed {found.seed}",
        [
            Column("scheme"),
            Column(of, "us", ",.1f"),
            Column("5 %", "us", ",.1f", rank=1, says=says("5 %")),
            Column("median", "us", ",.1f", rank=2),
            Column("95 %", "us", ",.1f", rank=1),
            Column("fastest in", "", ".0%", says=says("fastest in")),
            Column("before the next in", "", ".0%", says=says("before the next in")),
        ],
        [
            (
                name,
                *(time / per for time in (band.nominal_us, *_percentiles(band))),
                band.first,
                band.before_next,
            )
            for name, band in zip(names, found.bands, strict=True)
        ],
    )


def _percentiles(band: Band) -> tuple[float, float, float]:
    return band.low_us, band.median_us, band.high_us


def drawn_plot(found: Uncertainty, names: Sequence[str], per: int = 1, name: str = "bands") -> Plot:
    """Times in the draws over times without; parameters are those of `drawn_table`."""
    x = [one.nominal_us / per for one in found.bands]
    return Plot(
        name=name,
        title=f"Times in {found.draws} draws of {', '.join(found.drawn)}",
        x=Axis("time of the comparison, us", log=True),
        y=Axis("time in the draws, us", log=True),
        lines=[
            Line("the same time", [min(x), max(x)], [min(x), max(x)], form="guide"),
            Line(
                "median, 5 % and 95 %",
                x,
                [one.median_us / per for one in found.bands],
                [one.low_us / per for one in found.bands],
                [one.high_us / per for one in found.bands],
                form="points",
                labels=list(names),
            ),
        ],
    )


def drawn_notes(found: Uncertainty, names: Sequence[str]) -> list[str]:
    """How often the order holds, what decides it, and what could not be drawn."""
    names = [name for name, band in zip(names, found.bands, strict=True) if band.first is not None]
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
