"""Colours of charts, the same in a report and in a paper, chosen for colour-blind readers too.

Of `LIGHT` and `DARK`, which have the same hues, each colour stands out of its ground by 3 to 1, as
WCAG 2.2 asks of graphics (criterion 1.4.11). They were sought by computer, from blue, orange,
green, red, violet, ochre, light blue and pink, for the largest least distance of two in CIELAB, to
all eyes: those of three kinds of cones, and of two as G. Machado and others compute what these see
(IEEE Transactions on Visualization and Computer Graphics 15, 2009). The scales are those of
C. Brewer, ColorBrewer 2.0 (YlGnBu and RdBu), which that site lists as safe for the colour-blind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tracegen.shared.display.content import Chart, Page

LIGHT = ("#2d4eb6", "#d06b0f", "#0f8165", "#aa0027", "#8b4bfe", "#a59158", "#0b99f4", "#c56db3")
"""On a white ground, by place; `places` says which name has which place."""
DARK = ("#799be2", "#e65205", "#18b565", "#d95083", "#9876fe", "#ebd05a", "#7adbfd", "#df90c0")
"""On a black ground, by place."""
GUIDE = "#808080"
"""Of lines to compare with, on either ground."""
SEQUENTIAL = ("#ffffd9", "#c7e9b4", "#41b6c4", "#225ea8", "#081d58")
"""From 0 to the largest value."""
DIVERGING = ("#2166ac", "#67a9cf", "#f7f7f7", "#ef8a62", "#b2182b")
"""From the least value, through the middle, to the largest."""


def names(chart: Chart) -> Iterator[str]:
    """Names that have a colour in a chart, in order; a name may come again, and what is empty has none."""
    from tracegen.shared.display.content import Bars, Plot, Waterfall

    if isinstance(chart, Bars):
        yield from (part.name for part in chart.parts if any(part.values))
    elif isinstance(chart, Plot):
        yield from (line.name for line in chart.lines if line.form != "guide")
    elif isinstance(chart, Waterfall):
        yield from chart.kinds
        yield from (span.kind for span in chart.spans)


def places(page: Page) -> dict[str, int]:
    """Give every name on a page its place in the palette, the same wherever it is.

    In the order of their first appearance, each gets the colour that fewest have so far, of those
    that no other name has in any of its charts. The place modulo the number of colours is the
    colour, and the quotient the round. Rounds after the first, of dashed lines and fainter
    surfaces, serve charts with more names than colours.
    """
    beside: dict[str, dict[str, None]] = {}
    for chart in page.charts():
        together = dict.fromkeys(names(chart))
        for name in together:
            beside.setdefault(name, {}).update(together)
    found: dict[str, int] = {}
    uses = [0] * len(LIGHT)
    for name, others in beside.items():
        taken = {found[other] for other in others if other in found}
        # A colour for each round in which a name beside it has it, and then the rarest.
        colour = min(
            range(len(LIGHT)),
            key=lambda one: (sum(place % len(LIGHT) == one for place in taken), uses[one]),
        )
        uses[colour] += 1
        found[name] = next(
            place for place in range(colour, len(found) * len(LIGHT) + colour + 1, len(LIGHT)) if place not in taken
        )
    return found


def shade(anchors: Sequence[str], share: float) -> str:
    """Mix a colour of a scale.

    Parameters
    ----------
    anchors
        `SEQUENTIAL` or `DIVERGING`.
    share
        Position on it, from 0 to 1; what lies outside has the colour of the end.

    Examples
    --------
    >>> shade(("#000000", "#ffffff"), 0.5), shade(DIVERGING, 7)
    ('#808080', '#b2182b')
    """
    place = min(max(share, 0.0), 1.0) * (len(anchors) - 1)
    left = min(int(place), len(anchors) - 2)
    parts = (
        round(_part(anchors[left], at) * (left + 1 - place) + _part(anchors[left + 1], at) * (place - left))
        for at in (1, 3, 5)
    )
    return "#" + "".join(f"{part:02x}" for part in parts)


def _part(colour: str, at: int) -> int:
    return int(colour[at : at + 2], 16)
