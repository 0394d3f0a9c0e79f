"""Horizontal bars made of parts end to end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Cell, Column, Table
from tracegen.shared.display.html.drawing import WIDE, Drawing, rows, tip, upright_grid, words
from tracegen.shared.display.html.markup import number, shape, tag, width
from tracegen.shared.display.html.scales import figures

if TYPE_CHECKING:
    from tracegen.shared.display.content import Bars
    from tracegen.shared.display.html.drawing import Colours

BAR, SPACE = 16.0, 9.0
HEAD = 24.0
BREAK = 30.0
"""Distance of the gap in a bar that is broken off from its end: what lies behind it is pressed into the rest."""


def form(chart: Bars) -> str:
    """Format of the chart's numbers."""
    return figures([*chart.totals(), *(one for one in chart.marks or () if one is not None)])


def draw(chart: Bars, colours: Colours, wide: float) -> Drawing:
    """Draw the bars, with their sums at their ends; negative parts go to the left of 0.

    A bar that is broken off ends at the edge, behind a gap in it.
    """
    count = len(chart.labels)
    written = form(chart)
    sums = chart.totals()
    values = [
        [part.values[place] if math.isfinite(part.values[place]) else 0.0 for part in chart.parts]
        for place in range(count)
    ]
    ends = [(math.fsum(min(v, 0) for v in row), math.fsum(max(v, 0) for v in row)) for row in values]
    marks = chart.marks or [None] * count
    frame = rows(chart.labels, wide, top=HEAD, bar=BAR, gap=SPACE)
    values_of = [end for pair in ends for end in pair] + [one for one in marks if one is not None]
    longest = math.inf if chart.longest is None else chart.longest
    across = frame.across([min(one, longest) for one in values_of], [format(one, written) for one in sums], chart.unit)
    edge = math.inf if chart.longest is None else across.end
    is_broken = chart.breaks()
    per_unit = across(1.0) - across(0.0)
    lengths = chart.drawn_lengths(BREAK / per_unit if per_unit else 0.0)
    # Where all bars are shares of a whole, their sums say nothing.
    is_whole = chart.unit == "%" and len(chart.parts) > 1 and all(abs(one - 100) < 0.05 for one in sums)
    drawn = [upright_grid(across, chart.unit, HEAD, frame.height)]
    for place, row in enumerate(values):
        inside = []
        below = above = 0.0
        for part, value, length in zip(chart.parts, row, (one[place] for one in lengths), strict=True):
            if value == 0:
                continue
            start = above if value > 0 else below
            x, end = sorted(across(one) for one in (start, start + length))
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
                above += length
            else:
                below += length
        mark = marks[place]
        at_mark = across(mark) if mark is not None and math.isfinite(mark) else math.inf
        if is_broken[place] and at_mark > edge - BREAK:
            at_mark = math.inf  # behind the gap it would stand for nothing
        if mark is not None and math.isfinite(at_mark):
            x = at_mark
            inside.append(
                tag(
                    "g",
                    tip(f"{chart.mark_name}: {format(mark, written)} {chart.unit}"),
                    shape("path", d=f"M{number(x)},-3V{number(BAR + 3)}", class_="halo"),
                    shape("path", d=f"M{number(x)},-3V{number(BAR + 3)}", class_="mark"),
                )
            )
        end = min(across(ends[place][1]), edge)
        if is_broken[place]:
            gap = f"M{number(end - BREAK)},{number(BAR + 2)}l6,{number(-BAR - 4)}"
            inside.append(shape("path", d=gap, class_="halo"))
        said = "" if is_whole else format(sums[place], written)
        # Behind a mark that is not at the bar's end, the sum would be read as the mark's value.
        is_in_the_way = end - 3 < at_mark < end + 8 + width(said)
        has_room = is_in_the_way and at_mark > end + 3 and end - across(0.0) > width(said) + 12
        behind = at_mark if is_in_the_way else end
        if said:
            at = (end - 6, "value e") if has_room else (behind + 6, "value")
            inside.append(words(said, at[0], BAR / 2 + 4, at[1]))
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
    for place, (label, total) in enumerate(zip(chart.labels, chart.totals(), strict=True)):
        line: list[Cell] = [label, *(part.values[place] for part in chart.parts)]
        if has_sum:
            line.append(total)
        if chart.marks is not None:
            line.append(chart.marks[place])
        lines.append(line)
    return Table(chart.name, chart.title, columns, lines)


def says(chart: Bars) -> str:
    """Text for a screen reader."""
    sums = chart.totals()
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
