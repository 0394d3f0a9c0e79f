"""Lines and points over two axes."""

from __future__ import annotations

import bisect
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Cell, Column, Table
from tracegen.shared.display.html.drawing import GAP, NARROW, Drawing, tip, words
from tracegen.shared.display.html.labels import Box, along, apart, around, beside, free, nearest
from tracegen.shared.display.html.markup import FONT, number, shape, tag, width
from tracegen.shared.display.html.paths import Point, band, corners, line_path, step_path, thin
from tracegen.shared.display.html.scales import Scale, figures, scale

if TYPE_CHECKING:
    from tracegen.shared.display.content import Axis, Line, Plot
    from tracegen.shared.display.html.drawing import Colours

TOP, BOTTOM = 30.0, 42.0
"""Height of the upright axis's label above the plot, and of the level axis's below it."""
MOST_DOTS = 24
"""Points of a line up to which each is marked."""
MOST_TICKS = 12
"""Positions of a line's points up to which each is a tick."""
MOST_MARKED = 60
"""Points of the only kind in a plot up to which each is a mark of its own that can be asked."""
MOST_SLICES = 60
"""Positions at which a plot can be pointed at."""
CHIP = 9.0
"""Length of the stroke of its line before a name."""
MOST_LED = 24
"""Points in a crowd up to which each has a stroke that leads to its name."""
MOST_NAMED = 6
"""Lines up to which each has its name at its end."""


@dataclass(frozen=True)
class _Ground:
    """Area of a plot's values in its drawing."""

    across: Scale
    up: Scale
    width: float
    height: float

    def place(self, x: float, y: float) -> Point:
        return self.across(x), self.up(y)

    def has(self, x: float, y: float) -> bool:
        return self.across.has(x) and self.up.has(y)


def _forms(chart: Plot) -> tuple[str, str]:
    """Formats of the values along both axes."""
    return (
        figures(one for line in chart.lines for one in line.x),
        figures(one for line in chart.lines for one in line.y),
    )


def _heights(line: Line) -> list[float]:
    return [*line.y, *(line.low or ()), *(line.high or ())]


def draw(chart: Plot, colours: Colours, wide: float) -> Drawing:
    """Draw bands, then guides, lines and points, then what answers when it is pointed at."""
    is_narrow = wide <= NARROW
    height = 270.0 if is_narrow else 340.0
    named = _lines_with_names(chart) if not is_narrow else []
    right = max((width(line.name) + CHIP + 2 * GAP for line in named), default=GAP * 2)
    ys = [one for line in chart.lines for one in _heights(line)]
    up = scale(
        ys,
        height - BOTTOM,
        TOP,
        6,
        is_log=chart.y.log,
        from_zero=chart.y.from_zero,
        is_whole=_are_whole(ys),
    ).roomy()
    left = max((width(one) for one in up.labels()), default=0) + GAP
    xs = [one for line in chart.lines for one in line.x]
    across = scale(
        xs,
        left,
        wide - right,
        4 if is_narrow else 9,
        is_log=chart.x.log,
        from_zero=chart.x.from_zero,
        is_whole=_are_whole(xs),
    )
    if any(line.form == "points" for line in chart.lines):
        across = across.roomy()
    across = _at_points(chart, _tight(chart, across))
    ground = _Ground(across, up, wide, height)
    drawn = [_axes(chart, ground)]
    drawn += [_band(line, colours, ground) for line in chart.lines]
    drawn += [_line(line, colours, ground) for line in chart.lines]
    drawn.append(_names(named, colours, ground))
    if not is_narrow:
        drawn.append(_slices(chart, ground))
    drawn += [_points(line, chart, colours, ground) for line in chart.lines]
    drawn.append(_labels(chart, ground))
    return Drawing(wide, height, "".join(drawn))


def _are_whole(values: Iterable[float]) -> bool:
    """Tell whether all values that can be drawn are whole numbers."""
    return all(one == round(one) for one in values if math.isfinite(one))


def _tight(chart: Plot, across: Scale) -> Scale:
    """End a linear level axis where the lines end; the ticks within stay."""
    xs = [x for line in chart.lines for x in line.x if across.has(x)]
    has_points = any(line.form == "points" for line in chart.lines)
    if across.is_log or has_points or not xs or min(xs) == max(xs):
        return across
    low = min([*xs, 0.0] if chart.x.from_zero else xs)
    high = max(xs)
    return across.up_to(low, high)


def _at_points(chart: Plot, across: Scale) -> Scale:
    """Put the ticks of a logarithmic axis where the lines have their few points."""
    lines = [line for line in chart.lines if line.form == "line"]
    xs = sorted({x for line in lines for x in line.x if across.has(x)})
    if not across.is_log or not 2 <= len(xs) <= MOST_TICKS or len(lines) < len(chart.lines):
        return across
    return dataclasses.replace(across, ticks=xs)


def _axes(chart: Plot, ground: _Ground) -> str:
    across, up = ground.across, ground.up
    bottom = ground.height - BOTTOM
    drawn = []
    for value, label in zip(up.ticks, up.labels(), strict=True):
        y = up(value)
        class_ = "grid zero" if value == 0 else "grid"
        level = f"M{number(across.start)},{number(y)}H{number(across.end)}"
        drawn.append(shape("path", d=level, class_=class_))
        drawn.append(words(label, across.start - GAP, y + 4, "tick e"))
    end = -math.inf
    for value, label in zip(across.ticks, across.labels(), strict=True):
        x, half = across(value), width(label) / 2
        drawn.append(shape("path", d=f"M{number(x)},{number(bottom)}v5", class_="grid zero"))
        middle = min(x, ground.width - half)
        if middle - half > end + 6:
            drawn.append(words(label, middle, bottom + 18, "tick m"))
            end = middle + half
    base = f"M{number(across.start)},{number(bottom)}H{number(across.end)}"
    drawn.append(shape("path", d=base, class_="grid zero"))
    drawn.append(words(_axis_name(chart.y), 0, 13, "axis"))
    drawn.append(words(_axis_name(chart.x), across.end, ground.height - 4, "axis e"))
    return "".join(drawn)


def _axis_name(axis: Axis) -> str:
    """Label of an axis, which says so where equal steps along it are equal factors."""
    return f"{axis.label} (log scale)" if axis.log else axis.label


def _path(line: Line, ys: Sequence[float], ground: _Ground) -> list[Point]:
    points = [ground.place(x, y) for x, y in zip(line.x, ys, strict=True) if ground.has(x, y)]
    return thin(points, int(2 * ground.width))


def _band(line: Line, colours: Colours, ground: _Ground) -> str:
    if line.low is None or line.high is None or line.form == "points":
        return ""
    edges = [_path(line, line.low, ground), _path(line, line.high, ground)]
    if line.form == "steps":
        edges = [corners(edge) for edge in edges]
    around = band(*edges)
    fill = colours.fill(line.name)
    return shape("path", d=around, class_=f"{fill} band", data_name=line.name)


def _line(line: Line, colours: Colours, ground: _Ground) -> str:
    points = _path(line, line.y, ground)
    if line.form == "points" or not points:
        return ""
    if line.form == "guide":
        return shape("path", d=line_path(points), class_="guide")
    path = step_path(points, points[-1][0]) if line.form == "steps" else line_path(points)
    inside = [shape("path", d=path, class_=f"line {colours.stroke(line.name)}")]
    if len(points) <= MOST_DOTS and line.form == "line":
        inside += [colours.marker(line.name, x, y, size=3.5) for x, y in points]
    return tag("g", *inside, data_name=line.name)


def _points(line: Line, chart: Plot, colours: Colours, ground: _Ground) -> str:
    if line.form != "points":
        return ""
    is_only = sum(each.form == "points" for each in chart.lines) == 1
    if is_only and len(line.x) > MOST_MARKED and not line.labels and line.low is None:
        return _cloud(line, colours, ground)
    forms = _forms(chart)
    drawn = []
    for place, (x, y) in enumerate(zip(line.x, line.y, strict=True)):
        if not ground.has(x, y):
            continue
        at, height = ground.place(x, y)
        if line.low is not None and line.high is not None:
            low, high = line.low[place], line.high[place]
            if ground.has(x, low) and ground.has(x, high):
                bar = f"M{number(at)},{number(ground.up(low))}V{number(ground.up(high))}"
                drawn.append(shape("path", d=bar, class_=f"error {colours.stroke(line.name)}"))
        said = [line.labels[place]] if line.labels else []
        said += [line.name, *_coordinates(chart, forms, x, y)]
        mark = colours.marker(line.name, at, height, size=5)
        # A finger needs more than the point itself.
        around = shape("circle", cx=at, cy=height, r=9, class_="touch")
        drawn.append(tag("g", tip("\n".join(said)), around, mark, class_="point"))
    return tag("g", *drawn, data_name=line.name)


def _cloud(line: Line, colours: Colours, ground: _Ground) -> str:
    """Many points as dots of one path: each takes a few bytes, and says nothing by itself."""
    at = [ground.place(x, y) for x, y in zip(line.x, line.y, strict=True) if ground.has(x, y)]
    dots = "".join(f"M{number(x)},{number(y)}h0" for x, y in at)
    path = shape("path", d=dots, class_=f"cloud {colours.stroke(line.name)}")
    return tag("g", tip(line.name), path, data_name=line.name)


def _coordinates(chart: Plot, forms: tuple[str, str], x: float, y: float) -> list[str]:
    return [f"{chart.x.label}: {format(x, forms[0])}", f"{chart.y.label}: {format(y, forms[1])}"]


# ---- names beside lines and points ---------------------------------------------------


def _lines_with_names(chart: Plot) -> list[Line]:
    """Lines that have their names at their ends; none where one alone goes on to the end of the plot."""
    lines = [line for line in chart.lines if line.form in ("line", "steps") and len(line.x) and line.y]
    end = max((x for line in lines for x in line.x), default=0.0)
    whole = [line for line in lines if line.x[-1] == end]
    return lines if 2 <= len(lines) <= MOST_NAMED and len(whole) > 1 else []


def _names(lines: Sequence[Line], colours: Colours, ground: _Ground) -> str:
    """Write names at the ends of lines, moved apart where they would meet.

    A line that ends before the axis does has its name in the legend alone.
    """
    edge = ground.across.end
    ends = sorted(
        (ground.up(line.y[-1]), line.name)
        for line in lines
        if ground.has(line.x[-1], line.y[-1]) and ground.across(line.x[-1]) > edge - 2 * GAP
    )
    heights = apart([height for height, _ in ends], FONT + 2, TOP, ground.height - BOTTOM)
    drawn = []
    for height, (_, name) in zip(heights, ends, strict=True):
        chip = f"M{number(edge + GAP)},{number(height)}h{number(CHIP)}"
        stroke = shape("path", d=chip, class_=f"line {colours.stroke(name)}")
        x = edge + GAP + CHIP + 4
        drawn.append(tag("g", stroke, words(name, x, height + 4, "name"), data_name=name))
    return "".join(drawn)


def _labels(chart: Plot, ground: _Ground) -> str:
    """Write the names of points and guides where nothing is in their way.

    A point in a crowd has its name at the end of a stroke.
    """
    points: list[Point] = []
    wanted: list[tuple[str, str, Iterator[Box]]] = []
    crowded: list[tuple[str, Point]] = []
    for line in chart.lines:
        at = [
            (place, ground.place(x, y))
            for place, (x, y) in enumerate(zip(line.x, line.y, strict=True))
            if ground.has(x, y)
        ]
        if line.form == "points":
            points += [point for _, point in at]
            if line.labels:
                named = [(line.labels[place], point) for place, point in at]
                crowded += named
        elif line.form == "guide" and at:
            boxes = along(line.name, at[0][1], at[-1][1])
            wanted.insert(0, (line.name, "guide-name", boxes))
    taken: list[Box] = [(x - 5, y - 5, x + 5, y + 5) for x, y in points]
    within = (ground.across.start, TOP - 20, ground.width, ground.height - BOTTOM)
    drawn = []
    for label, class_, boxes in wanted:
        box = free(boxes, within, taken)
        if box is not None:
            taken.append(box)
            drawn.append(words(label, box[0] + 2, box[3] - 4, class_))
    left = []
    for label, point in crowded:
        box = free(beside(label, point), within, taken)
        if box is None:
            left.append((label, point))
            continue
        taken.append(box)
        drawn.append(words(label, box[0] + 2, box[3] - 4, "name"))
    for label, point in left[:MOST_LED]:
        box = free(around(label, point), within, taken)
        if box is not None:
            taken.append(box)
            (x, y), (end_x, end_y) = point, nearest(box, point)
            stroke = f"M{number(x)},{number(y)}L{number(end_x)},{number(end_y)}"
            drawn.append(shape("path", d=stroke, class_="lead"))
            drawn.append(words(label, box[0] + 2, box[3] - 4, "name"))
    return "".join(drawn)


# ---- what answers when it is pointed at ----------------------------------------------


def _slices(chart: Plot, ground: _Ground) -> str:
    """Draw upright strips, each of which says what all lines are there."""
    lines = [line for line in chart.lines if line.form in ("line", "steps") and len(line.x)]
    places = sorted({x for line in lines for x in line.x if ground.across.has(x)})
    if len(places) > MOST_SLICES:
        places = _spread(places, ground)
    forms = _forms(chart)
    at = [ground.across(x) for x in places]
    edges = [at[0] - 6, *map(_middle, at, at[1:]), at[-1] + 6] if at else []
    drawn = []
    for x, left, right in zip(places, edges, edges[1:], strict=False):
        said = [f"{chart.x.label}: {format(x, forms[0])}"]
        for line in lines:
            known = _last_before(line, x)
            if known is None:
                continue
            value = f"{line.name}: {format(line.y[known], forms[1])}"
            if line.low is not None and line.high is not None:
                low, high = line.low[known], line.high[known]
                value += f" ({format(low, forms[1])} to {format(high, forms[1])})"
            said.append(value)
        high = ground.height - BOTTOM - TOP
        drawn.append(shape("rect", tip("\n".join(said)), x=left, width=right - left, height=high))
    return tag("g", *drawn, class_="slices", transform=f"translate(0 {number(TOP)})")


def _middle(one: float, other: float) -> float:
    return (one + other) / 2


def _spread(places: Sequence[float], ground: _Ground) -> list[float]:
    """Of many positions, those nearest to equal distances in the drawing."""
    at = [ground.across(x) for x in places]
    step = (at[-1] - at[0]) / (MOST_SLICES - 1)
    chosen = {min(bisect.bisect_left(at, at[0] + one * step), len(at) - 1) for one in range(MOST_SLICES)}
    return [places[place] for place in sorted(chosen)]


def _last_before(line: Line, x: float) -> int | None:
    """Place of the last point of a line that is not beyond a position; None if there is none."""
    before = [place for place, one in enumerate(line.x) if one <= x]
    return before[-1] if before and x <= line.x[-1] else None


# ---- in words ------------------------------------------------------------------------


def numbers(chart: Plot) -> Table:
    """The chart as a table."""
    forms = _forms(chart)
    has_labels = any(line.labels for line in chart.lines)
    has_band = any(line.low is not None for line in chart.lines)
    columns = [Column("line")]
    if has_labels:
        columns.append(Column("point"))
    columns += [Column(chart.x.label, "", forms[0]), Column(chart.y.label, "", forms[1])]
    if has_band:
        columns += [Column("from", "", forms[1]), Column("to", "", forms[1])]
    lines: list[list[Cell]] = []
    for line in chart.lines:
        for place in range(len(line.x)):
            cells: list[Cell] = [line.name]
            if has_labels:
                cells.append(line.labels[place] if line.labels else None)
            cells += [line.x[place], line.y[place]]
            if has_band:
                cells.append(None if line.low is None else line.low[place])
                cells.append(None if line.high is None else line.high[place])
            lines.append(cells)
    return Table(chart.name, chart.title, columns, lines)


def says(chart: Plot) -> str:
    """Text for a screen reader."""
    forms = _forms(chart)
    said = [f"Plot of {chart.y.label} over {chart.x.label}."]
    for line in chart.lines:
        ys = [one for one in line.y if math.isfinite(one)]
        if not ys:
            continue
        kind = {"points": "points", "guide": "a guide"}.get(line.form, "a line")
        least, most = format(min(ys), forms[1]), format(max(ys), forms[1])
        said.append(f"{line.name}: {kind} with {len(ys)} values from {least} to {most}.")
    return " ".join(said)
