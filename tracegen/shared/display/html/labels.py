"""Places for names beside lines and points: where they meet nothing, and nothing is cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from tracegen.shared.display.html.markup import FONT, width
from tracegen.shared.display.html.paths import Point

Box = tuple[float, float, float, float]
"""Left, top, right and bottom of a text."""


def apart(heights: Sequence[float], least: float, top: float, bottom: float) -> list[float]:
    """Move heights as far apart as their texts are high, and no further than that needs.

    Parameters
    ----------
    heights
        In rising order.
    least
        Distance between two of them.
    top, bottom
        Between which they stay, if there is room for all.
    """
    moved: list[float] = []
    for height in heights:
        moved.append(max([height, top, *(one + least for one in moved[-1:])]))
    edge = bottom
    for place in reversed(range(len(moved))):
        moved[place] = min(moved[place], edge)
        edge = moved[place] - least
    return moved


def free(boxes: Iterable[Box], within: Box, taken: Sequence[Box]) -> Box | None:
    """Find the first place that meets no other; None if there is none.

    Parameters
    ----------
    boxes
        Places, the best first.
    within
        What they may not leave.
    taken
        What they may not meet.
    """
    for box in boxes:
        inside = box[0] >= within[0] and box[1] >= within[1] and box[2] <= within[2] and box[3] <= within[3]
        if inside and not any(_meet(box, other) for other in taken):
            return box
    return None


def along(label: str, start: Point, end: Point) -> Iterator[Box]:
    """Places for the name of a guide: above it or below it, from its end to its beginning."""
    wide, high = width(label) + 4, FONT + 4.0
    for share in (1.0, 0.8, 0.6, 0.4, 0.2):
        x = start[0] + share * (end[0] - start[0])
        y = start[1] + share * (end[1] - start[1])
        yield x - wide, y - high - 3, x, y - 3
        yield x, y + 3, x + wide, y + 3 + high


def beside(label: str, point: Point) -> Iterator[Box]:
    """Places for a label: to the right of its point, to the left, above and below."""
    x, y = point
    wide, high = width(label) + 4, FONT + 4.0
    yield x + 7, y - high / 2, x + 7 + wide, y + high / 2
    yield x - 7 - wide, y - high / 2, x - 7, y + high / 2
    for left in (x - wide / 2, x - wide, x):
        yield left, y - 7 - high, left + wide, y - 7
        yield left, y + 7, left + wide, y + 7 + high


def around(label: str, point: Point) -> Iterator[Box]:
    """Places for a label at the end of a stroke from its point, the nearest first."""
    x, y = point
    wide, high = width(label) + 4, FONT + 4.0
    for away in (18.0, 30.0, 44.0):
        for across, down in ((1, -1), (-1, -1), (1, 1), (-1, 1), (0, -1), (0, 1), (1, 0), (-1, 0)):
            left = x + across * away - (wide if across < 0 else 0 if across else wide / 2)
            top = y + down * away - (high if down < 0 else 0 if down else high / 2)
            yield left, top, left + wide, top + high


def nearest(box: Box, point: Point) -> Point:
    """Point of a box that is nearest to another."""
    return (min(max(point[0], box[0]), box[2]), min(max(point[1], box[1]), box[3]))


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
