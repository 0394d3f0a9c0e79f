"""Spans below one another, each where it lies in time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Cell, Column, Table
from tracegen.shared.display.html.drawing import Drawing, rows, tip, upright_grid
from tracegen.shared.display.html.markup import number, shape, tag, text
from tracegen.shared.display.html.scales import figures

if TYPE_CHECKING:
    from tracegen.shared.display.content import Span, Waterfall
    from tracegen.shared.display.html.drawing import Colours

BAR, SPACE = 14.0, 6.0
HEAD = 24.0


def form(chart: Waterfall) -> str:
    """Format of the chart's numbers."""
    return figures(end for span in chart.spans for end in (span.start, span.end))


def lengths(chart: Waterfall) -> list[float]:
    """Lengths that the spans add; below 0 where one ends before it begins."""
    return [span.end - span.start for span in chart.spans]


def draw(chart: Waterfall, colours: Colours, wide: float) -> Drawing:
    """Draw the spans, each with its length; a thin line leads from each to the next."""
    spans = [span for span in chart.spans if math.isfinite(span.start) and math.isfinite(span.end)]
    written = form(chart)
    frame = rows([span.label for span in spans], wide, top=HEAD, bar=BAR, gap=SPACE)
    # What lies between two totals is a change, which has a sign.
    texts = [format(span.end - span.start, written if 0 in (span.start, span.end) else f"+{written}") for span in spans]
    ends = [end for span in spans for end in (span.start, span.end)]
    across = frame.across(ends, texts, chart.unit, from_zero=False)
    drawn = [upright_grid(across, chart.unit, HEAD, frame.height)]
    for place, (span, length) in enumerate(zip(spans, texts, strict=True)):
        x, end = sorted((across(span.start), across(span.end)))
        said = f"{span.kind}: {length} {chart.unit}\nfrom {format(span.start, written)} to {format(span.end, written)}"
        inside = [
            shape(
                "rect",
                tip(said),
                x=x,
                width=max(end - x, 0.5),
                height=BAR,
                class_=colours.fill(span.kind),
            ),
            tag("text", text(length), x=end + 6, y=BAR / 2 + 4, class_="value"),
        ]
        if place + 1 < len(spans) and _meets(span, spans[place + 1]):
            down = number(frame.pitch)
            inside.append(shape("path", d=f"M{number(across(span.end))},{number(BAR)}V{down}", class_="lead"))
        drawn.append(frame.row(place, *inside))
    return Drawing(wide, frame.height, "".join(drawn))


def _meets(span: Span, following: Span) -> bool:
    """Tell whether the next one begins, or as a total ends, where this one ends."""
    return span.end in (following.start, following.end)


def numbers(chart: Waterfall) -> Table:
    """The chart as a table."""
    written = form(chart)
    columns = [
        Column("step"),
        Column("kind"),
        Column("from", chart.unit, written),
        Column("to", chart.unit, written),
        Column("length", chart.unit, written),
    ]
    lines: list[list[Cell]] = [[s.label, s.kind, s.start, s.end, s.end - s.start] for s in chart.spans]
    return Table(chart.name, chart.title, columns, lines)


def says(chart: Waterfall) -> str:
    """Text for a screen reader."""
    if not chart.spans:
        return "A waterfall without steps."
    written = form(chart)
    longest = max(chart.spans, key=lambda span: abs(span.end - span.start))
    return (
        f"Waterfall of {len(chart.spans)} steps in {chart.unit}, "
        f"from {format(chart.spans[0].start, written)} to {format(chart.spans[-1].end, written)}. "
        f"Longest: {longest.label}, {format(longest.end - longest.start, written)}."
    )
