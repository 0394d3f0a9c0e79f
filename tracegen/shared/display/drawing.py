"""Charts as matplotlib draws them for a paper: as wide as a column, and to be read at that width.

This module and `paper` alone import matplotlib; `plots` says what to do where there is none.
What a chart has in numbers stands in the artists as it is, in the order of the chart.
"""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from tracegen.shared.display import palette
from tracegen.shared.display.content import Axis, Bars, Chart, Heat, Line, Plot, Waterfall
from tracegen.shared.display.paper import (
    FONT,
    LETTER,
    SMALL,
    WIDTH,
    PaperFigure,
    break_lines,
    colour,
    finite,
    label,
    legend,
    legend_height,
    lines,
    power,
    settings,
    wide,
)

BAR, STEP, ROW = 0.2, 0.15, 0.17
"""Inches from one bar to the next, and likewise of spans of a waterfall and rows of a heat map."""
LINE = 0.115
"""Inches from one line of a label to the next."""
MOST_CELLS = 2000
"""Cells of a heat map up to which each is a shape of its own; more are one picture inside it."""
TAIL = 0.05
"""Share of the axis that a bar has behind its break."""
MOST_LABELS = 10
"""Points with a name up to which the names are written beside them."""
MOST_TICKS = 24
"""Labels along an axis up to which all are written."""
MOST_ROWS = 2 * MOST_TICKS
"""Rows of a heat map up to which all have their labels: a figure may be twice as high as wide."""
DASHES: tuple[Any, ...] = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)))
MARKERS = "osD^vPX"


def draw(chart: Chart, places: Mapping[str, int], *, is_titled: bool = False) -> PaperFigure:
    """Draw a chart.

    Parameters
    ----------
    chart
        Any.
    places
        Of its names in the palette, as `palette.places` gives them.
    is_titled
        Whether its title stands above it; a paper has it in its caption.
    """
    with settings():
        figure = PaperFigure(figsize=(WIDTH, 2.3), layout="constrained")
        axes = figure.subplots()
        axes.tick_params(which="both", labelsize=FONT, width=0.6, length=2.5, pad=2)
        axes.spines[["top", "right"]].set_visible(False)
        _DRAWN[type(chart)](figure, axes, chart, places)
        for text in (axes.xaxis.label, axes.yaxis.label):
            text.set_fontsize(FONT)
        if is_titled:
            title = "\n".join(textwrap.wrap(label(chart.title), int(WIDTH / LETTER)))
            if figure.legends:  # which stands where the title would
                figure.legends[0].set_title(title, FontProperties(size=FONT, weight="bold"))
            else:
                figure.suptitle(title, fontsize=FONT, fontweight="bold")
            figure.set_figheight(figure.get_figheight() + 0.12 * (1 + title.count("\n")))
    return figure


# ---- bars ----------------------------------------------------------------------------


def _bars(figure: Figure, axes: Axes, chart: Bars, places: Mapping[str, int]) -> None:
    at = np.arange(len(chart.labels))
    left = np.zeros(len(chart.labels))
    handles: list[tuple[Artist, str]] = []
    for part, lengths in zip(chart.parts, chart.drawn_lengths(TAIL * (chart.longest or 0.0)), strict=True):
        if part.name not in places:  # it has no length
            continue
        look = _look(places[part.name], is_hatched=part.is_hatched)
        axes.barh(at, lengths, 0.72, left=left, **look)
        handles.append((Patch(**look), part.name))
        left = left + lengths
    if chart.marks is not None:
        marks = finite(chart.marks)
        (drawn,) = axes.plot(marks, at, linestyle="", marker="|", markersize=9, markeredgewidth=1.4, color="black")
        drawn.set_gid("marks")
        handles.append((drawn, chart.mark_name))
    labels = [break_lines(one) for one in chart.labels]
    _level_bars(axes, labels, chart.unit)
    if chart.longest is not None:
        axes.set_xlim(right=chart.longest)
        for place, (total, is_broken) in enumerate(zip(chart.totals(), chart.breaks(), strict=True)):
            if is_broken:
                bend = (1 - TAIL) * chart.longest
                axes.text(bend, place, "/", ha="center", va="center", fontsize=FONT, fontweight="bold", color="white")
                axes.text(chart.longest, place, f" {total:,.0f}", va="center", fontsize=SMALL)
    names = [name for _, name in handles]
    if len(names) > 1:
        legend(figure, handles)
    height = max(BAR, 0.04 + LINE * max(map(lines, labels), default=1)) * max(len(labels), 1)
    height += 0.45 + (legend_height(names) if len(names) > 1 else 0.0)
    figure.set_size_inches(WIDTH, max(height, 0.9))


def _waterfall(figure: Figure, axes: Axes, chart: Waterfall, places: Mapping[str, int]) -> None:
    spans = chart.spans
    at = np.arange(len(spans))
    starts = finite([span.start for span in spans], 0.0)
    ends = finite([span.end for span in spans], 0.0)
    kinds = list(dict.fromkeys(span.kind for span in spans))
    looks = {kind: _look(places[kind]) for kind in kinds}
    bars = axes.barh(at, ends - starts, 0.8, left=starts)
    for bar, span in zip(bars, spans, strict=True):
        bar.set(**looks[span.kind])
    if len(spans) > 1:
        axes.vlines(ends[:-1], at[:-1], at[1:], color="0.6", linewidth=0.4)
    _level_bars(axes, [break_lines(span.label) for span in spans], chart.unit, labelsize=SMALL)
    legend(figure, [(Patch(**looks[kind]), kind) for kind in kinds])
    height = STEP * max(len(spans), 1) + 0.45 + legend_height(kinds)
    figure.set_size_inches(WIDTH, max(height, 0.9))


def _look(place: int, *, is_hatched: bool = False) -> dict[str, Any]:
    """A surface: strokes for time in which nothing is gained, dots where a colour comes again."""
    dots = "." * 4 * (place // len(palette.LIGHT))
    return {
        "facecolor": colour(place),
        "edgecolor": "white",
        "hatch": ("//////" if is_hatched else "") + dots or None,
        "linewidth": 0.0,
    }


def _level_bars(axes: Axes, labels: Sequence[str], unit: str, **look: Any) -> None:
    """Label horizontal bars; the first stands on top, as it does in a table."""
    axes.set_yticks(range(len(labels)), labels)
    axes.tick_params(axis="y", length=0, **look)
    axes.set_ylim(max(len(labels), 1) - 0.5, -0.5)
    axes.set_xlabel(label(unit))
    axes.grid(axis="x", color="0.9", linewidth=0.5)


# ---- lines and points ----------------------------------------------------------------


def _plot(figure: Figure, axes: Axes, chart: Plot, places: Mapping[str, int]) -> None:
    logs = tuple(
        axis.log and any(value > 0 for line in chart.lines for value in getattr(line, name))
        for name, axis in (("x", chart.x), ("y", chart.y))
    )
    handles: list[tuple[Artist, str]] = []
    for line in chart.lines:
        handle = _line(axes, line, places, logs)
        if line.name:
            handles.append((handle, line.name))
    for name, axis, log in (("x", chart.x, logs[0]), ("y", chart.y, logs[1])):
        values = [value for line in chart.lines for value in getattr(line, name)]
        _scale(axes, name, axis, values, log=log)
    axes.grid(color="0.9", linewidth=0.5)
    _names_of_points(axes, chart)
    if len(handles) > 1:
        legend(figure, handles)
    figure.set_size_inches(WIDTH, 2.1 + legend_height([name for _, name in handles]))


def _line(axes: Axes, line: Line, places: Mapping[str, int], logs: tuple[bool, ...]) -> Artist:
    """Draw one line with its band, and give what stands for it in a legend."""
    x, y = (
        np.where(values > 0, values, np.nan) if log else values
        for values, log in zip(map(finite, (line.x, line.y)), logs, strict=True)
    )
    if line.form == "guide":
        (drawn,) = axes.plot(x, y, color=palette.GUIDE, linewidth=0.8, zorder=1)
        return drawn
    place = places[line.name]
    turn = place // len(palette.LIGHT)
    shade = colour(place)
    if line.form == "points":
        (drawn,) = axes.plot(
            x,
            y,
            linestyle="",
            marker=MARKERS[place % len(MARKERS)],
            markersize=3.6 if len(x) <= 60 else 2.4,
            markeredgewidth=0.0,
            color=shade,
            alpha=0.85,
        )
    else:
        (drawn,) = axes.plot(
            x,
            y,
            color=shade,
            linewidth=1.1,
            linestyle=DASHES[turn % len(DASHES)],
            drawstyle="steps-post" if line.form == "steps" else "default",
        )
        if line.form == "line" and len(x) <= MOST_TICKS:
            drawn.set_marker(MARKERS[place % len(MARKERS)])
            drawn.set_markersize(2.8)
    if line.low is not None and line.high is not None:
        low, high = finite(line.low), finite(line.high)
        if line.form == "points":
            axes.vlines(x, low, high, color=shade, linewidth=0.7)
        else:
            step: Any = "post" if line.form == "steps" else None
            axes.fill_between(x, low, high, step=step, color=shade, alpha=0.2, linewidth=0)
    return drawn


def _scale(axes: Axes, name: str, axis: Axis, values: Sequence[float], *, log: bool) -> None:
    """Set an axis as the chart wants it, for such values."""
    which = axes.xaxis if name == "x" else axes.yaxis
    which.set_label_text(label(axis.label))
    if log:
        (axes.set_xscale if name == "x" else axes.set_yscale)("log")
        low, high = which.get_view_interval()
        is_short = low > 0 and high / low < 100
        few = (1.0, 2.0, 5.0) if high > 5 * low else (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0)
        which.set_major_locator(LogLocator(subs=few if is_short else (1.0,)))
        which.set_major_formatter(FuncFormatter(power))
        which.set_minor_formatter(NullFormatter())
        if is_short:
            which.set_minor_locator(NullLocator())
    elif axis.from_zero:
        low, _ = which.get_data_interval()
        if math.isfinite(low) and low >= 0:
            (axes.set_xlim if name == "x" else axes.set_ylim)(0)
    if not log and values and max(values) - min(values) >= 2 and _are_whole(values):
        which.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def _are_whole(values: Sequence[float]) -> bool:
    return all(float(value).is_integer() for value in values)


def _names_of_points(axes: Axes, chart: Plot) -> None:
    """Write the names of points where they are few."""
    named = [line for line in chart.lines if line.labels is not None]
    if sum(len(line.x) for line in named) > MOST_LABELS:
        return
    for line in named:
        for x, y, name in zip(line.x, line.y, line.labels or (), strict=True):
            if math.isfinite(x) and math.isfinite(y):
                axes.annotate(label(name), (x, y), (3, 3), textcoords="offset points", fontsize=SMALL)


# ---- heat ----------------------------------------------------------------------------


def _heat(figure: Figure, axes: Axes, chart: Heat, places: Mapping[str, int]) -> None:
    shape = (len(chart.rows), len(chart.columns))
    shaded = chart.shades()
    values = np.array([finite(row) for row in chart.values], dtype=float).reshape(shape)
    shades = np.array([finite(row) for row in shaded.values], dtype=float).reshape(shape)
    low, high = limits(shaded)
    anchors = palette.SEQUENTIAL if shaded.middle is None else palette.DIVERGING
    scale = LinearSegmentedColormap.from_list("scale", list(anchors), N=256)
    mesh = axes.pcolormesh(
        np.ma.masked_invalid(shades),
        cmap=scale,
        vmin=low,
        vmax=high,
        rasterized=values.size > MOST_CELLS,
    )
    axes.set_ylim(max(len(chart.rows), 1), 0)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    rows = [break_lines(one) for one in chart.rows]
    _ticks(axes.set_yticks, rows, MOST_ROWS)
    names = [label(one) for one in chart.columns]
    shown = names[:: _every(names, MOST_TICKS)]
    room = WIDTH - LETTER * (max(map(wide, rows), default=0) + 2)
    is_wide = (max(map(len, shown), default=0) + 1) * len(shown) * LETTER > room
    _ticks(axes.set_xticks, names, MOST_TICKS, **({"rotation": 90} if is_wide else {}))
    axes.set_xlabel(label(chart.column_name))
    axes.set_ylabel(label(chart.row_name))
    texts = [[format(one, chart.form) if math.isfinite(one) else "" for one in row] for row in values]
    longest = max((len(text) for text in itertools.chain(*texts)), default=0)
    if (longest + 1) * len(chart.columns) * SMALL / FONT * LETTER < room:
        for row, line in enumerate(texts):
            for column, text in enumerate(line):
                red, green, blue, _ = scale(_share(shades[row, column], low, high))
                is_dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.55
                axes.text(
                    column + 0.5,
                    row + 0.5,
                    text,
                    ha="center",
                    va="center",
                    fontsize=SMALL,
                    color="white" if is_dark else "black",
                )
    bar = figure.colorbar(mesh, ax=axes, location="top", aspect=40, pad=0.02, shrink=0.9)
    bar.set_label(label(shaded.unit), fontsize=FONT)
    bar.ax.tick_params(labelsize=FONT, width=0.6, length=2)
    bar.outline.set_visible(False)
    high_row = max(ROW, LINE * max(map(lines, rows), default=1))
    below = LETTER * max(map(len, shown), default=0) if is_wide else LINE
    below += LINE if chart.column_name else 0.0
    figure.set_size_inches(WIDTH, min(max(high_row * len(rows), 0.3), 2 * WIDTH) + 0.6 + below)


def limits(chart: Heat) -> tuple[float, float]:
    """Values at both ends of a heat map's scale."""
    found = [value for row in chart.values for value in row if value is not None and math.isfinite(value)]
    if chart.middle is not None:
        return chart.middle - chart.reach(), chart.middle + chart.reach()
    low = min([0.0, *found])
    return low, max([low + 1e-12, *found])


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low) if math.isfinite(value) else 0.0


def _every(labels: Sequence[str], most: int) -> int:
    """Distance of labels of which so many are written at most: each, or every second, third..."""
    return math.ceil(len(labels) / most) or 1


def _ticks(place: Callable[..., object], labels: Sequence[str], most: int, **look: Any) -> None:
    """Write labels in the middle of rows or columns, or of every second, third... of many."""
    at = range(0, len(labels), _every(labels, most))
    place([one + 0.5 for one in at], [labels[one] for one in at], **look)


_DRAWN: dict[type, Callable[[Figure, Axes, Any, Mapping[str, int]], None]] = {
    Bars: _bars,
    Plot: _plot,
    Heat: _heat,
    Waterfall: _waterfall,
}
