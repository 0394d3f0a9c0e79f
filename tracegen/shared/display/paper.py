"""The style of figures in a paper: a column's width, fonts, settings of matplotlib, legends."""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from matplotlib import style
from matplotlib.artist import Artist
from matplotlib.figure import Figure

from tracegen.shared.display import palette
from tracegen.shared.display.escape import line

WIDTH = 3.35
"""Inches of a column on a page of two, as IEEE and ACM set it."""
FONT, SMALL = 7.0, 6.0
"""Points of texts, and of labels within a chart."""
LETTER = 0.56 * FONT / 72
"""Inches that a letter of DejaVu Sans takes on average."""
HANDLE = 6
"""Letters that a legend takes besides a name: for the colour, and for gaps."""
LONGEST_ENTRY = 28
"""Letters of a name of a legend in one line; longer ones are broken."""
LONGEST_LABEL = 26
"""Letters of a label in one line; longer ones are broken."""
DPI, SCREEN_DPI = 300, 130
SETTINGS: dict[str, Any] = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same on every machine
    "font.size": FONT,
    "text.parse_math": False,  # a name with a dollar sign is a name
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.7,
    "pdf.fonttype": 42,  # whole fonts, which publishers demand, instead of drawn letters
    "ps.fonttype": 42,
    "svg.hashsalt": "moereplay",  # the same picture has the same bytes
}


@contextmanager
def settings() -> Iterator[None]:
    """Draw in the one style, whatever the user's own settings are."""
    with style.context(["default", SETTINGS]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font has not
        yield


class PaperFigure(Figure):
    """A figure that is saved in the style it was drawn in, and that a notebook shows."""

    def savefig(self, fname: Any, **options: Any) -> None:
        """Save it; parameters as those of matplotlib."""
        with settings():
            super().savefig(fname, **{"dpi": DPI, **options})

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Picture for a notebook, twice as fine as it is wide there."""
        out = io.BytesIO()
        self.savefig(out, format="png", dpi=2 * SCREEN_DPI)
        width, height = (round(SCREEN_DPI * inches) for inches in self.get_size_inches())
        return out.getvalue(), {"width": width, "height": height}


def colour(place: int) -> str:
    """Colour of a place in the palette."""
    return palette.LIGHT[place % len(palette.LIGHT)]


def label(text: str) -> str:
    """A name as it is drawn: on one line, and not one that a legend would pass over."""
    found = line(text)
    return f" {found}" if found.startswith("_") else found


def break_lines(text: str) -> str:
    """A label broken into at most three lines, so that the chart has room."""
    return "\n".join(textwrap.wrap(label(text), LONGEST_LABEL)[:3])


def finite(values: Sequence[float | None], instead: float = math.nan) -> np.ndarray[Any, Any]:
    """Numbers to draw; missing and infinite values become `instead`."""
    found = np.array([math.nan if value is None else value for value in values], dtype=float)
    return np.where(np.isfinite(found), found, instead)


def legend(figure: Figure, handles: Sequence[tuple[Artist, str]]) -> None:
    """Put a legend above a chart, in as many columns as there is room for."""
    if not handles:
        return
    names = _entries([name for _, name in handles])
    figure.legend(
        [handle for handle, _ in handles],
        names,
        loc="outside upper left",
        ncols=_columns(names),
        fontsize=FONT,
        frameon=False,
        handlelength=1.8,
        columnspacing=1.0,
        handletextpad=0.5,
        borderaxespad=0.0,
        labelspacing=0.3,
        alignment="left",
    )


def _entries(names: Sequence[str]) -> list[str]:
    """Names of a legend, long ones in several lines."""
    return ["\n".join(textwrap.wrap(label(name), LONGEST_ENTRY)) or " " for name in names]


def wide(text: str) -> int:
    """Number of characters of the longest line of a text."""
    return max(map(len, text.split("\n")))


def lines(text: str) -> int:
    """Number of lines of a text."""
    return text.count("\n") + 1


def _columns(entries: Sequence[str]) -> int:
    """Columns of a legend for which there is room; names run down the first, then the next."""
    for columns in range(len(entries), 1, -1):
        parts = np.array_split(np.array(entries), columns)
        longest = [max(wide(str(one)) for one in part) for part in parts]
        if sum(one + HANDLE for one in longest) * LETTER < WIDTH:
            return columns
    return 1


def legend_height(names: Sequence[str]) -> float:
    """Inches that a legend takes."""
    if not names:
        return 0.0
    entries = _entries(names)
    parts = np.array_split(np.array(entries), _columns(entries))
    return max(0.04 * len(part) + 0.11 * sum(lines(str(one)) for one in part) for part in parts)


def power(value: float, _: object = None) -> str:
    """Write a number of a logarithmic axis.

    Examples
    --------
    >>> power(0.01), power(2000), power(1e6), power(2e-5)
    ('0.01', '2,000', '10⁶', '2·10⁻⁵')
    """
    if 1e-3 < abs(value) < 1e5:
        return f"{value:,g}" if abs(value) < 1 else f"{value:,.0f}"
    if not value:
        return "0"
    exponent = math.floor(math.log10(abs(value)) + 1e-9)
    first = round(value / 10.0**exponent)
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}" if first == 1 else f"{first}·10{raised}"
