"""Horizontal bars made of parts end to end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Cell, Column, Table
from tracegen.shared.display.html.drawing import WIDE, Drawing, rows, tip, upright_grid, words
from tracegen.shared.display.html.markup import number, shape, tag
from tracegen.shared.display.html.scales import figures

if TYPE_CHECKING:
    from tracegen.shared.display.content import Bars
    from tracegen.shared.display.html.drawing import Colours

BAR, SPACE = 16.0, 9.0
HEAD = 24.0


def form(chart: Bars) -> str:
    """Format of the chart's numbers."""
    return figures([*totals(chart), *(one for one in chart.marks or () if one is not None)])


def totals(chart: Bars) -> list[float]:
    """Sum of the parts of each bar."""
    return [
        math.fsum(value for part in chart.parts if math.isfinite(value := part.values[place]))
        for place in range(len(chart.labels))
    ]


def draw(chart: Bars, colours: Colours, wide: float) -> Drawing:
    """Draw the bars, with their sums at their ends; negative parts go to the left of 0."""
    count = len(chart.labels)
    values = [
        [part.values[place] if math.isfinite(part.values[place]) else 0.0 for part in chart.parts]
        for place in range(count)
    ]
    written = form(chart)
    sums = totals(chart)
    ends = [
        (math.fsum(min(v, 0) for v in row), math.fsum(max(v, 0) for v in row)) for row in values
    ]
    marks = chart.marks or [None] * count
    frame = rows(chart.labels, wide, top=HEAD, bar=BAR, gap=SPACE)
    values_of = [end for pair in ends for end in pair] + [one for one in marks if one is not None]
    across = frame.across(values_of, [format(one, written) for one in sums], chart.unit)
    drawn = [upright_grid(across, chart.unit, HEAD, frame.height)]
    for place, row in enumerate(values):
        inside = []
        below = above = 0.0
        for part, value in zip(chart.parts, row, strict=True):
            if value == 0:
                continue
            start = above if value > 0 else below
            x, end = sorted((across(start), across(start + value)))
            said = f"{part.name}: {format(value, written)} {chart.unit}"
            if sums[place] > 0 and value > 0:
                said += f" ({value / sums[place]:.0%})"
            inside.append(
                shape(
                    "rect",
                    tip(said) if wide == WIDE else "",
                    x=x,
                    width=end - x,
                    height=BAR,
                    class_=colours.fill(part.name, is_hatched=part.is_hatched),
                )
            )
            if value > 0:
                above += value
            else:
                below += value
        mark = marks[place]
        if mark is not None and math.isfinite(mark):
            x = across(mark)
            inside.append(
                tag(
                    "g",
                    tip(f"{chart.mark_name}: {format(mark, written)} {chart.unit}"),
                    shape("path", d=f"M{number(x)},-3V{number(BAR + 3)}", class_="halo"),
                    shape("path", d=f"M{number(x)},-3V{number(BAR + 3)}", class_="mark"),
                )
            )
        furthest = max(across(ends[place][1]), across(mark) if mark is not None else 0)
        inside.append(words(format(sums[place], written), furthest + 6, BAR / 2 + 4, "value"))
        drawn.append(frame.row(place, *inside))
    return Drawing(wide, frame.height, "".join(drawn), frame.pitch)


def numbers(chart: Bars) -> Table:
    """The chart as a table."""
    written = form(chart)
    has_sum = len(chart.parts) > 1
    columns = [Column("name")]
    columns += [Column(part.name, chart.unit, written) for part in chart.parts]
    if has_sum:
        columns.append(Column("sum", chart.unit, written))
    if chart.marks is not None:
        columns.append(Column(chart.mark_name, chart.unit, written))
    lines: list[list[Cell]] = []
    for place, (label, total) in enumerate(zip(chart.labels, totals(chart), strict=True)):
        line: list[Cell] = [label, *(part.values[place] for part in chart.parts)]
        if has_sum:
            line.append(total)
        if chart.marks is not None:
            line.append(chart.marks[place])
        lines.append(line)
    return Table(chart.name, chart.title, columns, lines)


def says(chart: Bars) -> str:
    """What a reader hears of it."""
    sums = totals(chart)
    if not sums:
        return "Bars; there are none."
    written = form(chart)
    least, most = (
        min(range(len(sums)), key=sums.__getitem__),
        max(range(len(sums)), key=sums.__getitem__),
    )
    parts = ", ".join(part.name for part in chart.parts)
    return (
        f"{len(sums)} horizontal bars in {chart.unit}, each made of {parts}. "
        f"Shortest: {chart.labels[least]}, {format(sums[least], written)}. "
        f"Longest: {chart.labels[most]}, {format(sums[most], written)}."
    )
