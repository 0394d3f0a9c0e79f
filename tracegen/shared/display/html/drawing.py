"""Shared parts of the drawings of all charts: colours of names, sizes, rows with labels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tracegen.shared.display.html.markup import FONT, number, shape, shorten, tag, text, width
from tracegen.shared.display.html.scales import Scale, scale
from tracegen.shared.display.palette import LIGHT

WIDE, NARROW = 820.0, 352.0
"""Width of a chart's two drawings, for a desk and for a phone; both have letters of one size."""
GAP = 8.0
"""Between a label and what it labels."""
AXIS = 5.0
"""Between the line of 0 and a label that stands above its row."""
APART = 9.0
"""Between a row and the label above the next one, more than between that label and its own row."""
SIDE = 250.0
"""Width from which on labels stand above their rows and not beside them."""

MARKERS = (
    "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0z",
    "M-.9,-.9h1.8v1.8h-1.8z",
    "M0,-1.2L1.1,.8H-1.1z",
    "M0,-1.3L1.3,0L0,1.3L-1.3,0z",
    "M0,1.2L1.1,-.8H-1.1z",
    "M-.4,-1.2h.8v.8h.8v.8h-.8v.8h-.8v-.8h-.8v-.8h.8z",
)
"""Around 0, and 1 wide to each side: a disc, a square, triangles, a rhombus, a cross."""


@dataclass(frozen=True)
class Drawing:
    """A chart drawn for one width.

    Attributes
    ----------
    width, height
        In units of the drawing, which are pixels where it is not scaled.
    body
        Elements of SVG.
    pitch
        Height of a row, where rows can be left out and the others move up; 0 where there are none.
    """

    width: float
    height: float
    body: str
    pitch: float = 0.0


@dataclass(frozen=True)
class Colours:
    """The colour of each name on a page, as classes of the style.

    Attributes
    ----------
    places
        Of each name; see `tracegen.shared.display.palette.places`.
    """

    places: Mapping[str, int]

    def _place(self, name: str) -> tuple[int, int]:
        turn, place = divmod(self.places.get(name, 0), len(LIGHT))
        return place, turn

    def fill(self, name: str, *, is_hatched: bool = False) -> str:
        """Classes of a surface."""
        place, turn = self._place(name)
        return f"{'h' if is_hatched else 'f'}{place}" + (" again" if turn else "")

    def stroke(self, name: str) -> str:
        """Classes of a line; names beyond the number of colours are dashed."""
        place, turn = self._place(name)
        return f"s{place}" + (f" d{(turn - 1) % 3 + 1}" if turn else "")

    def marker(self, name: str, x: float, y: float, *, size: float = 4.0) -> str:
        """Draw a point; its form goes with the colour, for those who see few colours."""
        place, turn = self._place(name)
        around = MARKERS[(place + turn) % len(MARKERS)]
        return shape(
            "path",
            d=around,
            transform=f"translate({number(x)} {number(y)}) scale({number(size)})",
            class_=f"f{place} dot",
        )


def words(content: str, x: float, y: float, class_: str | None = None) -> str:
    """Write a text of a drawing; `y` is its base line."""
    return tag("text", text(content), x=x, y=y, class_=class_)


def tip(content: str) -> str:
    """Text of an element when it is pointed at."""
    return tag("title", text(content))


@dataclass(frozen=True)
class Rows:
    """Rows below one another, each with a label: beside it, or above it where there is no room.

    Attributes
    ----------
    labels
        Of the rows.
    width
        Of the drawing.
    left
        Where the labels end and the rows begin.
    top
        Height of what is above the first row.
    is_above
        Whether labels stand above their rows.
    bar
        Height of what is drawn in a row.
    gap
        Between two rows.
    """

    labels: Sequence[str]
    width: float
    left: float
    top: float
    is_above: bool
    bar: float
    gap: float

    @property
    def pitch(self) -> float:
        """From one row to the next."""
        return self.bar + self.gap + (FONT + 4 if self.is_above else 0)

    @property
    def height(self) -> float:
        """Of the whole drawing."""
        return self.top + self.pitch * len(self.labels)

    def row(self, place: int, *inside: str) -> str:
        """Draw a row, whose bar is from 0 to `bar`; a cut label is whole when pointed at."""
        label = self.labels[place]
        if self.is_above:
            most, x, y = self.width - AXIS, AXIS, -5.0
        else:
            most = x = self.left - GAP
            y = self.bar / 2 + 4
        kept = shorten(label, most + 0.5)
        written = tag(
            "text",
            text(kept) + (tip(label) if kept != label else ""),
            x=x,
            y=y,
            class_="label" if self.is_above else "label e",
        )
        down = self.top + self.pitch * (place + 1) - self.gap / 2 - self.bar
        return tag(
            "g",
            written,
            *inside,
            class_="row",
            data_name=label,
            transform=f"translate(0 {number(down)})",
        )

    def across(self, values: Sequence[float], texts: Sequence[str], unit: str, *, from_zero: bool = True) -> Scale:
        """Scale of what the rows show, with room for a text behind each and for the unit."""
        room = max(max(map(width, texts), default=0) + 10, width(unit) + 24)
        end = self.width - room
        ticks = max(2, int((end - self.left) / 75))
        found = scale(values, self.left + 1, end, ticks, from_zero=from_zero)
        # To the next tick, it would leave half of a phone's width empty.
        known = [one for one in values if math.isfinite(one)]
        high = max(known, default=0.0)
        return found.up_to(found.low, high) if high > 0 and found.low < high else found


def rows(labels: Sequence[str], width_: float, *, top: float, bar: float, gap: float) -> Rows:
    """Place rows: labels beside them where the drawing is wide and the labels are short."""
    widest = max((width(one) for one in labels), default=0.0)
    is_above = widest + GAP > min(SIDE, 0.36 * width_)
    left = 0.0 if is_above else widest + GAP
    return Rows(labels, width_, left, top, is_above, bar, max(gap, APART) if is_above else gap)


def upright_grid(scale: Scale, unit: str, top: float, bottom: float) -> str:
    """Draw vertical lines at the ticks, with labels above them; the last one has the unit."""
    drawn = []
    labels = scale.labels()
    for place, (value, label) in enumerate(zip(scale.ticks, labels, strict=True)):
        x = scale(value)
        drawn.append(shape("path", d=f"M{number(x)},{number(top - 5)}V{number(bottom)}", class_=_grid(value)))
        is_last = place == len(labels) - 1
        half = width(label) / 2
        drawn.append(words(label, max(x, half), top - 9, "tick m"))
        if is_last and unit:
            drawn.append(words(unit, max(x, half) + half + 4, top - 9, "tick"))
    return "".join(drawn)


def _grid(value: float) -> str:
    return "grid zero" if value == 0 else "grid"
