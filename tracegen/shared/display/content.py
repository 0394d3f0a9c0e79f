"""Content of a display, before it is drawn: tables, charts, sections, pages.

A command says once what there is to see. `terminal` draws its tables on a screen of any width,
`html` draws all of it as one file, `plots` draws charts for papers, and `files` writes tables for
other programs. A cell is a value and not a text, so that each of them can sort it, and write it
with as many digits as its reader needs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, ConsoleOptions, RenderResult

Cell = str | float | int | bool | None
"""None is shown as a dash: there is no such value."""


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes
    ----------
    name, unit
        The heading's words, and the unit of the values; the heading has both.
    form
        How a number is written, as `format` takes it, such as ``",.1f"``; empty for texts, which
        stand to the left.
    rank
        Where there is no room, columns of the highest rank are left out first, of equals the last;
        those of rank 0 always stay.
    says
        One line that explains the name; empty where there is nothing to explain.
    """

    name: str
    unit: str = ""
    form: str = ""
    rank: int = 0
    says: str = ""

    @property
    def heading(self) -> str:
        """Name and unit."""
        return f"{self.name} {self.unit}".rstrip()

    @property
    def is_text(self) -> bool:
        """Tell whether its cells are texts."""
        return not self.form

    def text(self, value: Cell) -> str:
        """Write one of its values."""
        if value is None:
            return "-"
        return value if isinstance(value, str) else format(value, self.form)


@dataclass(frozen=True)
class Table:
    """Rows of values under headings.

    Attributes
    ----------
    name
        Its place among the tables of a page, and the stem of its files: ``"times"``.
    title
        Line above it.
    columns, rows
        Every row has one cell for each column.
    notes
        Lines below it.
    """

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse a row that is longer or shorter than the head."""
        for row in self.rows:
            if len(row) != len(self.columns):
                message = f"table {self.name}: {len(row)} cells under {len(self.columns)} columns"
                raise ValueError(message)

    def texts(self) -> list[list[str]]:
        """Write every cell."""
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]

    def explanations(self) -> list[str]:
        """One line for each heading that has one, in the order of the columns."""
        return [f"{column.name}: {column.says}." for column in self.columns if column.says]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Draw it on a screen, as wide as that is; `rich` calls this.

        A line below names the columns for which there is no room.
        """
        from rich.text import Text

        from tracegen.shared.display.escape import line
        from tracegen.shared.display.terminal import grid

        form, missing = grid(
            [column.heading for column in self.columns],
            self.texts(),
            [column.rank for column in self.columns],
            [column.is_text for column in self.columns],
            options.max_width,
        )
        notes = list(self.notes)
        if missing:
            notes.append(f"Not shown for want of room: {', '.join(missing)}.")
        yield Text()
        yield Text(line(self.title), style="bold")
        yield form
        if notes:
            yield Text("\n".join(notes), style="dim")


@dataclass(frozen=True)
class Axis:
    """One axis of a plot: what it measures, with the unit, and whether its scale is logarithmic.

    Attributes
    ----------
    from_zero
        Whether a linear axis begins at 0.
    """

    label: str
    log: bool = False
    from_zero: bool = True


@dataclass(frozen=True)
class Line:
    """One line, or one kind of point, of a plot.

    Attributes
    ----------
    name
        As the legend has it. What has the same name on one page has the same colour.
    x, y
        Of each point.
    low, high
        Edges of a band around `y`, or bars of the error of points; None for none.
    form
        ``"line"`` joins the points, ``"steps"`` holds each value until the next `x`, ``"points"``
        marks them, ``"guide"`` is a thin line to compare with, such as a roof or a diagonal.
    labels
        A name for each point, shown where there is room and when it is pointed at; None for none.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None
    form: Literal["line", "steps", "points", "guide"] = "line"
    labels: Sequence[str] | None = None

    def __post_init__(self) -> None:
        """Refuse a line that has not as many of each as it has points."""
        for each in (self.y, self.low, self.high, self.labels):
            if each is not None and len(each) != len(self.x):
                message = f"line {self.name}: {len(each)} values over {len(self.x)} points"
                raise ValueError(message)


@dataclass(frozen=True)
class Plot:
    """Lines or points over two axes: curves, distributions, rooflines, errors of predictions."""

    name: str
    title: str
    x: Axis
    y: Axis
    lines: Sequence[Line]
    says: str = ""


@dataclass(frozen=True)
class BarPart:
    """One part of each bar, such as a phase.

    Attributes
    ----------
    name
        As the legend has it. What has the same name on one page has the same colour.
    values
        Length in each bar, in the chart's unit.
    is_hatched
        Whether it is drawn hatched: time in which nothing is gained.
    """

    name: str
    values: Sequence[float]
    is_hatched: bool = False


@dataclass(frozen=True)
class Bars:
    """Horizontal bars, each made of the same parts end to end.

    Attributes
    ----------
    labels
        What each bar stands for.
    parts
        From left to right.
    unit
        Of the lengths.
    marks
        A position in each bar that is marked, such as a bound; None for none.
    mark_name
        What the marks are.
    says
        One line below the title that says how to read it.
    longest
        Length from which on a bar is broken off, so that it leaves room for the parts of the
        others; None draws all as they are.
    """

    name: str
    title: str
    labels: Sequence[str]
    parts: Sequence[BarPart]
    unit: str
    marks: Sequence[float | None] | None = None
    mark_name: str = ""
    says: str = ""
    longest: float | None = None

    def totals(self) -> list[float]:
        """Sum of the parts of each bar."""
        return [
            math.fsum(value for part in self.parts if math.isfinite(value := part.values[place]))
            for place in range(len(self.labels))
        ]

    def breaks(self) -> list[bool]:
        """Bars that are longer than `longest`."""
        return [self.longest is not None and total > self.longest for total in self.totals()]

    def drawn_lengths(self, tail: float) -> list[list[float]]:
        """Lengths to draw, [part][bar]: `longest` in all of a bar that is broken off.

        Parameters
        ----------
        tail
            Length behind the break, into which all that a bar has from there on is pressed: parts keep
            their shares of it.
        """
        lengths = [[value if math.isfinite(value) else 0.0 for value in part.values] for part in self.parts]
        for place, is_broken in enumerate(self.breaks()):
            if not is_broken or self.longest is None:
                continue
            bend = max(0.0, self.longest - tail)
            pressed = (self.longest - bend) / (math.fsum(max(row[place], 0.0) for row in lengths) - bend)
            start = 0.0
            for row in lengths:
                end = start + max(row[place], 0.0)
                beyond = max(0.0, end - max(start, bend))
                row[place] += beyond * (pressed - 1) if row[place] > 0 else 0.0
                start = end
        return lengths


@dataclass(frozen=True)
class Heat:
    """A value for each pair of a row and a column, as shades: bytes by scheme and GPU.

    Attributes
    ----------
    rows, columns
        Labels.
    values
        [row][column]; None is left blank.
    unit, form
        Of the values, and how one is written.
    middle
        Value at which two scales of colours meet; None for one scale that begins at 0.
    by_row
        Whether a shade is a value over the mean of its row, so that rows whose values differ by
        far show alike how uneven each is; the values are written all the same.
    row_name, column_name
        What the labels stand for, where they do not say so themselves, such as ``"expert"``.
    strongest
        Distance from `middle` that has the strongest shade, where maps beside one another share it;
        None for the largest of the map's own.
    """

    name: str
    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float | None]]
    unit: str
    form: str = ",.1f"
    middle: float | None = None
    says: str = ""
    row_name: str = ""
    column_name: str = ""
    by_row: bool = False
    strongest: float | None = None

    def reach(self) -> float:
        """Distance of the strongest shade from the middle, or from 0; never 0."""
        found = (
            abs(one - (self.middle or 0.0))
            for row in self.values
            for one in row
            if one is not None and math.isfinite(one)
        )
        return self.strongest or max(found, default=0.0) or 1.0

    def shades(self) -> Heat:
        """Map of the values that the shades stand for."""
        if not self.by_row:
            return self
        return dataclasses.replace(
            self,
            values=[_over_mean(row) for row in self.values],
            unit="times the row's mean",
            form=".2f",
            middle=1.0,
            by_row=False,
        )


def _over_mean(row: Sequence[float | None]) -> list[float | None]:
    known = [one for one in row if one is not None and math.isfinite(one)]
    mean = math.fsum(known) / len(known) if known else 0.0
    return [None if one is None or not mean else one / mean for one in row]


@dataclass(frozen=True)
class Span:
    """One step of a waterfall: where it begins and ends, and what kind of time it is."""

    label: str
    start: float
    end: float
    kind: str


@dataclass(frozen=True)
class Waterfall:
    """Spans below one another, each beginning where the one before ends: what time adds up to.

    Attributes
    ----------
    kinds
        Kinds that get their colours first, in this order, whether or not a span is of them: so that
        one kind has one colour in all charts of a sort.
    """

    name: str
    title: str
    spans: Sequence[Span]
    unit: str
    says: str = ""
    kinds: Sequence[str] = ()


Chart = Bars | Plot | Heat | Waterfall
Item = Table | Chart | str
"""A text is a paragraph."""


@dataclass(frozen=True)
class Section:
    """A part of a page under a heading; a page opens with its first one and folds the others.

    Attributes
    ----------
    title
        The question that it answers, since that is all that is seen of it where it is folded.
    items
        Paragraphs, tables and charts, in order.
    is_detail
        Whether it is there to be looked up, so that a notebook or a screen leaves it out.
    """

    title: str
    items: Sequence[Item]
    is_detail: bool = False


@dataclass(frozen=True)
class Page:
    """All there is to see of a result.

    Attributes
    ----------
    title, summary
        What it is, and what came out, in a sentence or two.
    sections
        In order. Names of tables are unique on a page, and names of charts.
    command
        A command line that makes it again; empty if there is none.
    """

    title: str
    summary: str
    sections: Sequence[Section]
    command: str = ""

    def __post_init__(self) -> None:
        """Refuse two tables or two charts of one name: their files would replace one another."""
        for kind in (list(self.tables()), list(self.charts())):
            names = [one.name for one in kind]
            twice = sorted({name for name in names if names.count(name) > 1})
            if twice:
                message = f"page {self.title}: several are named {', '.join(twice)}"
                raise ValueError(message)

    def tables(self) -> Iterator[Table]:
        """All tables, in order."""
        for section in self.sections:
            yield from (item for item in section.items if isinstance(item, Table))

    def charts(self) -> Iterator[Chart]:
        """All charts, in order."""
        for section in self.sections:
            yield from (item for item in section.items if isinstance(item, Chart))
