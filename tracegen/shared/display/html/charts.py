"""A chart as a figure: its title, its legend, its drawings and its numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Bars, Chart, Heat, Plot, Table, Waterfall
from tracegen.shared.display.html import bars, heat, plot, waterfall
from tracegen.shared.display.html.drawing import NARROW, WIDE, Colours, Drawing
from tracegen.shared.display.html.markup import number, prose, shape, tag, text
from tracegen.shared.display.html.tables import plain_table

if TYPE_CHECKING:
    from types import ModuleType

MODULES: dict[type[Chart], ModuleType] = {
    Bars: bars,
    Plot: plot,
    Heat: heat,
    Waterfall: waterfall,
}
"""Of each kind of chart, what draws it: ``draw``, ``numbers`` and ``says``."""

BROKEN = "A bar with a gap goes on to the number at its end: behind the gap its parts keep their shares, not the scale."

MOST_NUMBERS = 600
"""Cells up to which a chart's numbers are in the page as a table, below the chart."""


def figure(chart: Chart, colours: Colours, prefix: str) -> str:
    """Write a chart.

    Parameters
    ----------
    chart
        To be drawn.
    colours
        Of the names on the page.
    prefix
        Of the identities of its elements; no other figure of the page has the same.
    """
    module = MODULES[type(chart)]
    title, facts = f"{prefix}-title", f"{prefix}-facts"
    drawings = [
        _svg(module.draw(chart, colours, wide), kind, title, facts)
        for kind, wide in (("wide", WIDE), ("narrow", NARROW))
    ]
    is_broken = isinstance(chart, Bars) and any(chart.breaks())
    said = " ".join(filter(None, (chart.says, BROKEN if is_broken else "")))
    says = [tag("p", prose(said), class_="says")] if said else []
    entries = "".join(_legend(chart, colours))
    return tag(
        "figure",
        tag("figcaption", tag("h3", text(chart.title), id=title), *says),
        tag("ul", entries, class_="legend") if entries else "",
        tag("p", text(module.says(chart)), id=facts, class_="heard"),
        *drawings,
        _numbers(module.numbers(chart)),
        class_="chart",
    )


def _svg(drawing: Drawing, kind: str, title: str, facts: str) -> str:
    return tag(
        "svg",
        drawing.body,
        class_=kind,
        viewBox=f"0 0 {number(drawing.width)} {number(drawing.height)}",
        role="img",
        aria_labelledby=title,
        aria_describedby=facts,
        data_pitch=drawing.pitch or None,
    )


def _numbers(table: Table) -> str:
    """The chart's numbers for those who want to read, copy or hear them, folded."""
    if not 0 < len(table.rows) * len(table.columns) <= MOST_NUMBERS:
        return ""
    return tag("details", tag("summary", "Numbers"), plain_table(table), class_="numbers")


def _legend(chart: Chart, colours: Colours) -> Iterator[str]:
    """Entries of the legend; none where a name stands beside what it names."""
    if isinstance(chart, Bars):
        if len(chart.parts) > 1 or chart.marks is not None:
            for part in (one for one in chart.parts if any(one.values)):
                fill = colours.fill(part.name, is_hatched=part.is_hatched)
                yield _entry(part.name, shape("rect", y=1, width=18, height=12, class_=fill))
        if chart.marks is not None:
            yield _entry(chart.mark_name, shape("path", d="M9,0V14", class_="mark"))
    elif isinstance(chart, Waterfall):
        for kind in dict.fromkeys(span.kind for span in chart.spans):
            swatch = shape("rect", y=1, width=18, height=12, class_=colours.fill(kind))
            yield _entry(kind, swatch)
    elif isinstance(chart, Plot):
        lines = [line for line in chart.lines if line.form != "guide"]
        for line in lines if len(lines) > 1 else ():
            stroke = shape("path", d="M0,7H18", class_=f"line {colours.stroke(line.name)}")
            if line.form == "points":
                stroke = colours.marker(line.name, 9, 7, size=4.5)
            yield _entry(line.name, stroke)
    else:
        yield heat.key(chart)


def _entry(name: str, swatch: str) -> str:
    drawn = tag("svg", swatch, width=18, height=14, aria_hidden="true")
    return tag("li", drawn, tag("span", text(name)), data_name=name)
