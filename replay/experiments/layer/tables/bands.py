"""Uncertainty of a comparison, as a table and as a plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.times import count, fastest, unit_of
from replay.report.tables import table, word_column
from replay.report.words import explain_words
from tracegen.shared.display.content import Axis, Column, Line, Plot, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from replay.experiments.layer.bands import Band, Uncertainty
    from replay.experiments.layer.result import Comparison
    from tracegen.shared.display.content import Cell

FEW_DRAWS = 8
"""Draws up to which their times are shown, of which a 5th percentile would say nothing."""


def bands_table(compared: Comparison) -> list[RenderableType]:
    """Bands and shares of a comparison as on a screen, with the words over the columns."""
    found = bands_items(compared)
    words = explain_words(one for one in found if isinstance(one, Table))
    return [Text("\n".join([*words, one])) if isinstance(one, str) else one for one in found]


def bands_items(compared: Comparison) -> list[Table | str]:
    """Bands and shares of a comparison, and lines on what decides; nothing where it was not asked for."""
    found = compared.uncertainty
    if found is None:
        return []
    by_time = fastest(compared.results)
    names, unit = row_names(by_time), unit_of(by_time[0])
    return [drawn_table(found, names, unit, count(by_time[0])), "\n".join(drawn_notes(found, names))]


def bands_plot(compared: Comparison) -> Plot | None:
    """Times in the draws against those of the comparison; None where there are no draws."""
    by_time = fastest(compared.results)
    if compared.uncertainty is None:
        return None
    return drawn_plot(compared.uncertainty, row_names(by_time), count(by_time[0]))


def drawn_table(
    found: Uncertainty,
    names: Sequence[str],
    of: str,
    per: int = 1,
    name: str = "bands",
    head: str = "scheme",
) -> Table:
    """Times in the draws, and shares of draws that each result wins.

    Parameters
    ----------
    names
        Of the results, in the order of the bands.
    of, per
        Heading of the column of times, and the number that times are divided by.
    name
        Of the table.
    head
        Heading of the column of names.
    """
    return table(
        name,
        f"How sure it is: {draws_text(found.draws)} of {_list_text(found.drawn)}, seed {found.seed}",
        found.bands,
        (Column(of, "us", ",.1f"), lambda one: one.nominal_us / per),
        *_times(found, per),
        (word_column("fastest in", "", ".0%"), lambda one: one.first),
        (word_column("before the next in", "", ".0%"), lambda one: one.before_next),
        labels=names,
        head=head,
    )


def _times(found: Uncertainty, per: int) -> list[tuple[Column, Callable[[Band], Cell]]]:
    """Columns of the times in the draws: of few each, of more their quantiles."""
    if found.draws <= FEW_DRAWS:
        return [
            (
                Column("in each draw, us", rank=1),
                lambda one: ", ".join(f"{each / per:,.1f}" for each in one.times_us),
            )
        ]
    return [
        (word_column("5 %", "us", ",.1f", 1), lambda one: one.low_us / per),
        (Column("median", "us", ",.1f", 2), lambda one: one.median_us / per),
        (Column("95 %", "us", ",.1f", 1), lambda one: one.high_us / per),
    ]


def drawn_plot(found: Uncertainty, names: Sequence[str], per: int = 1, name: str = "bands") -> Plot:
    """Times in the draws against those of the comparison; parameters are those of `drawn_table`."""
    x = [one.nominal_us / per for one in found.bands]
    ends = [min(x), max(x)]
    is_few = found.draws <= FEW_DRAWS
    return Plot(
        name=name,
        title=f"Times in {draws_text(found.draws)} of {', '.join(found.drawn)}",
        x=Axis("time of the comparison, us", log=True),
        y=Axis("time in the draws, us", log=True),
        lines=[
            Line("the same time", ends, ends, form="guide"),
            Line(
                "median, least and largest" if is_few else "median, 5 % and 95 %",
                x,
                [one.median_us / per for one in found.bands],
                [(min(one.times_us) if is_few else one.low_us) / per for one in found.bands],
                [(max(one.times_us) if is_few else one.high_us) / per for one in found.bands],
                form="points",
                labels=list(names),
            ),
        ],
    )


def drawn_notes(found: Uncertainty, names: Sequence[str], *, is_of_layers: bool = True) -> list[str]:
    """Notes on how often the order holds, what decides it, and what could not be drawn.

    Parameters
    ----------
    names
        Of the results, in the order of the bands.
    is_of_layers
        Whether the results are of layers, whose comparison may have chosen options and placements.
    """
    names = [name for name, band in zip(names, found.bands, strict=True) if band.first is not None]
    notes = []
    if len(names) > 2:
        notes.append(f"The whole order holds in {found.order_holds:.0%} of the draws.")
    if found.decides:
        causes = [f"{one.name} ({one.correlation:+.2f})" for one in found.decides]
        notes.append(f"Deciding between {names[0]} and {names[1]}: {', '.join(causes)};")
        notes.append("the rank correlation with the lead of the first, of a value or a part's time.")
    if is_of_layers and len(found.bands) > 1:
        notes.append("Options and placements are those of the comparison in every draw.")
    return [*notes, *(f"note: {note}." for note in found.notes)]


def draws_text(number: int) -> str:
    """Number of draws, in words."""
    return f"{number} draw{'s' if number > 1 else ''}"


def _list_text(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
