"""Values as shades, by row and column."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Cell, Column, Table
from tracegen.shared.display.html.drawing import GAP, WIDE, Drawing, rows, tip, words
from tracegen.shared.display.html.markup import FONT, number, shape, shorten, tag, text, width
from tracegen.shared.display.html.scales import figures

if TYPE_CHECKING:
    from tracegen.shared.display.content import Heat
    from tracegen.shared.display.html.drawing import Colours

CELL = 21.0
MOST_CELLS = 1000
"""Cells up to which each is an element of its own, with a text and a tip."""
DENSE = 460.0
"""Height of a map of more, if its rows are not too thin for that."""
SHADES = 24
"""Shades of each colour that such a map has."""
BROADEST = 72.0
"""Width that a cell has at most."""
SMALL = 10.5
"""Height of the letters in a cell."""


def _values(chart: Heat) -> Iterator[float]:
    for row in chart.values:
        yield from (one for one in row if one is not None and math.isfinite(one))


def form(chart: Heat) -> str:
    """Format of the chart's numbers: its own, unless that writes the largest of them as 0."""
    largest = max((abs(one) for one in _values(chart)), default=0.0)
    is_hidden = largest > 0 and not format(largest, chart.form).strip("0.,%")
    return figures([largest]) if is_hidden else chart.form


def shade(chart: Heat, value: float, most: float) -> tuple[str, float]:
    """Class of a value's colour, and how strong it is, from 0 to 1.

    Parameters
    ----------
    chart
        The chart it is in.
    value
        To be shown.
    most
        What `Heat.reach` says of the chart.
    """
    away = (value - (chart.middle or 0.0)) / most
    return ("cold" if away < 0 else "warm" if chart.middle is not None else "heat"), abs(away)


def draw(chart: Heat, colours: Colours, wide: float) -> Drawing:
    """Draw the cells, with their values where these have room."""
    count = max(1, len(chart.columns))
    widest = max((width(one) for one in chart.columns), default=0.0)
    frame = rows(chart.rows, wide, top=0, bar=CELL, gap=2)
    cell = min(max(BROADEST, widest + 12), (wide - frame.left) / count)
    head, top = _head(chart, frame.left, cell, widest)
    if count * len(chart.rows) > MOST_CELLS:
        return _dense(chart, frame.left, cell, head, top, wide)
    frame = rows(chart.rows, wide, top=top, bar=CELL, gap=2)
    shades = chart.shades()
    most = shades.reach()
    written = form(chart)
    texts = [["" if v is None else format(v, written) for v in row] for row in chart.values]
    has_texts = all(width(t, SMALL) <= cell - 4 for row in texts for t in row)
    drawn = [head]
    for place, row in enumerate(chart.values):
        cells, inside = [], []
        for column, value in enumerate(row):
            if value is None or not math.isfinite(value):
                continue
            x = frame.left + column * cell
            shown = shades.values[place][column]
            kind, share = ("heat", 0.0) if shown is None else shade(shades, shown, most)
            said = f"{chart.columns[column]}: {texts[place][column]} {chart.unit}"
            # As a thick line, a cell takes half the characters of a rectangle.
            cells.append(
                shape(
                    "path",
                    "" if has_texts or wide != WIDE else tip(said),
                    d=f"M{number(x)},0h{number(cell - (1 if cell > 4 else 0))}",
                    stroke_opacity=share,
                    class_=None if kind == "heat" else kind,
                )
            )
            if has_texts:
                inside.append(tag("text", text(texts[place][column]), x=x + cell / 2))
        half = number(CELL / 2)
        drawn.append(
            frame.row(
                place,
                tag("g", *cells, transform=f"translate(0 {half})", stroke_width=CELL, class_="heat"),
                tag("g", *inside, transform="translate(0 14.5)", class_="cells") if inside else "",
            )
        )
    return Drawing(wide, frame.height, "".join(drawn), frame.pitch)


def _dense(chart: Heat, left: float, cell: float, head: str, top: float, wide: float) -> Drawing:
    """Draw many cells: those of one shade are one path, in units of cells, and have no texts."""
    chart = chart.shades()
    most = chart.reach()
    runs: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for place, row in enumerate(chart.values):
        steps = [_step(chart, value, most) for value in row]
        column = 0
        for step, group in itertools.groupby(steps):
            length = len(list(group))
            if step is not None:
                runs.setdefault(step, []).append((column, place, length))
            column += length
    high = min(CELL, max(3.0, DENSE / max(1, len(chart.rows))))
    shades = [
        shape("path", d=_path(found), stroke_opacity=step / SHADES, class_=kind)
        for (kind, step), found in sorted(runs.items())
    ]
    down = number(top + high / 2)
    moved = f"translate({number(left)} {down}) scale({cell:.4f} {high:.4f})"
    every = max(1, math.ceil((FONT + 2) / high))
    labels = [
        words(shorten(label, left - GAP), left - GAP, top + (k + 0.5) * high + 4, "label e")
        for k, label in enumerate(chart.rows)
        if k % every == 0 and left
    ]
    body = [head, *labels, tag("g", *shades, transform=moved, class_="dense")]
    return Drawing(wide, top + high * len(chart.rows), "".join(body))


def _path(runs: Iterable[tuple[int, int, int]]) -> str:
    """Path over runs of cells, each moved to from the end of the one before."""
    parts = []
    x, y = 0, 0
    for column, row, length in runs:
        parts.append(f"m{column - x},{row - y}h{length}")
        x, y = column + length, row
    return "".join(parts)


def _step(chart: Heat, value: float | None, most: float) -> tuple[str, int] | None:
    """Shade of a value, rounded to one of a few."""
    if value is None or not math.isfinite(value):
        return None
    kind, share = shade(chart, value, most)
    return kind, round(share * SHADES)


def _head(chart: Heat, left: float, cell: float, widest: float) -> tuple[str, float]:
    """Labels of the columns, and their height: level, or upright; of as many as there is room for."""
    if widest + 6 <= cell or all(one.replace(",", "").isdigit() for one in chart.columns):
        every = max(1, math.ceil((widest + 6) / cell))
        drawn = [
            words(label, left + (place + 0.5) * cell, 12, "tick m")
            for place, label in enumerate(chart.columns)
            if place % every == 0
        ]
        return "".join(drawn), 20.0
    high = widest + 8
    drawn = []
    every = max(1, math.ceil((FONT + 2) / cell))
    for place, label in list(enumerate(chart.columns))[::every]:
        x = number(left + (place + 0.5) * cell + 4)
        turned = f"translate({x} {number(high - 4)}) rotate(-90)"
        drawn.append(tag("text", text(label), transform=turned, class_="tick"))
    return "".join(drawn), high


def key(chart: Heat) -> str:
    """Draw which shade stands for which value."""
    chart = chart.shades()
    most = chart.reach()
    middle = chart.middle or 0.0
    low, high = 0.0, most
    if chart.middle is not None:  # only what occurs: a ratio has no shade for less than 0
        found = [middle, *_values(chart)]
        low, high = min(found), max(found)
        if low == high:
            low, high = middle - most, middle + most
    steps = 24
    drawn = []
    for place in range(steps):
        value = low + (high - low) * (place + 0.5) / steps
        kind, share = shade(chart, value, most)
        drawn.append(shape("rect", x=place * 6, y=0, width=6, height=12, fill_opacity=share, class_=kind))
    band = tag("svg", *drawn, width=6 * steps, height=12, aria_hidden="true", class_="band")
    written = form(chart)
    ends = [format(low, written), f"{format(high, written)} {chart.unit}"]
    return tag("li", tag("span", text(ends[0])), band, tag("span", text(ends[1])), class_="scale")


def numbers(chart: Heat) -> Table:
    """The chart as a table."""
    written = form(chart)
    columns = [Column("name"), *(Column(one, "", written) for one in chart.columns)]
    lines: list[list[Cell]] = [[label, *row] for label, row in zip(chart.rows, chart.values, strict=True)]
    return Table(chart.name, f"{chart.title}, {chart.unit}", columns, lines)


def says(chart: Heat) -> str:
    """Text for a screen reader."""
    found = list(_values(chart))
    said = f"Heat map of {len(chart.rows)} rows and {len(chart.columns)} columns in {chart.unit}."
    if found:
        least, most = (format(one, form(chart)) for one in (min(found), max(found)))
        said += f" Values from {least} to {most}."
    return said
