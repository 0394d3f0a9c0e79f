"""Lines of a plot as paths: thinned to what a screen can show, joined or in steps."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from tracegen.shared.display.html.markup import number

Point = tuple[float, float]


def thin(points: Sequence[Point], most: int) -> list[Point]:
    """Leave out points that would fall on others.

    Parameters
    ----------
    points
        Places in the drawing, in order.
    most
        Points up to which all are kept. Of more, each column of the drawing as wide as one unit
        keeps its first, lowest, highest and last: the line covers the same.
    """
    if len(points) <= most:
        return list(points)
    kept: list[Point] = []
    column: list[Point] = []
    for point in points:
        if column and int(point[0]) != int(column[0][0]):
            kept += _extremes(column)
            column = []
        column.append(point)
    return [*kept, *_extremes(column)]


def _extremes(column: Sequence[Point]) -> Iterator[Point]:
    def height(place: int) -> float:
        return column[place][1]

    every = range(len(column))
    kept = {0, len(column) - 1, min(every, key=height), max(every, key=height)}
    yield from (column[place] for place in sorted(kept))


def line_path(points: Sequence[Point]) -> str:
    """Path from each point to the next."""
    return "M" + "L".join(f"{number(x)},{number(y)}" for x, y in points) if points else ""


def corners(points: Sequence[Point]) -> list[Point]:
    """Points of a line that holds each height until the next point."""
    held = [(following[0], point[1]) for point, following in itertools.pairwise(points)]
    return [corner for pair in zip(points, held, strict=False) for corner in pair] + [*points[-1:]]


def step_path(points: Sequence[Point], end: float) -> str:
    """Path that holds each height until the next point, the last one until `end`."""
    if not points:
        return ""
    (x, y), *others = points
    parts = [f"M{number(x)},{number(y)}"]
    for x, y in others:
        parts.append(f"H{number(x)}V{number(y)}")
    parts.append(f"H{number(max(x, end))}")
    return "".join(parts)


def band(low: Sequence[Point], high: Sequence[Point]) -> str:
    """Path around what lies between two lines."""
    return f"{line_path([*high, *reversed(low)])}Z"
