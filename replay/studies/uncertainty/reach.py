"""Reach of an error: by how much of its time a result may be off, for how its rows travel.

The errors are what validation leaves unexplained of each part of a layer
(`replay.studies.uncertainty.residuals`): of nine in ten measurements, the one that is furthest off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from replay.studies.uncertainty.parts import FEW
from replay.studies.uncertainty.residuals import row_counts, table

PHASES = ("dispatch", "combine")


class Reach(NamedTuple):
    """Error of a time.

    Attributes
    ----------
    share
        Of the time, by which it may be off.
    parts
        Names of the parts whose errors these are, as in ``residuals.csv``, schemes without
        measurements apart.
    """

    share: float
    parts: tuple[str, ...]


def plain(part: str) -> str:
    """Name of a part without the family of schemes that has it."""
    return part.partition(" (")[0]


def errors_of(part: str) -> tuple[float, float, float]:
    """Median of an error, and what it lies between in nine of ten measurements, in percent."""
    known = table()[plain(part)]
    median, low, high = (100 * (math.exp(known[place]) - 1) for place in (10, 1, 19))
    return median, low, high


def largest(part: str) -> float:
    """Share by which a part is off at most in nine of ten measurements."""
    return max(abs(one) for one in errors_of(part)[1:]) / 100


def sparse_errors(scheme: str) -> str:
    """Words for how far off the few measurements of a scheme are, and on which side; empty where there are none."""
    part = FEW.get(scheme)
    if part is None:
        return ""
    low, high = (100 * (math.exp(table()[part][edge]) - 1) for edge in (0, -1))
    of, count = part.partition(", ")[2], row_counts()[part]
    near, far = sorted((abs(low), abs(high)))
    said = f"up to {far:.0f} % off in {count} measurements"
    if low * high > 0:
        said = f"all {count} took {near:.0f} to {far:.0f} % {'longer' if low > 0 else 'less'} than predicted"
    return f" ({of}{': ' * bool(of)}{said})"


def reach(parts: Mapping[str, str], path: Mapping[str, int]) -> Reach:
    """Error of a layer's time by its communication.

    Parameters
    ----------
    parts
        As `replay.studies.uncertainty.parts.parts_of` gives them.
    path
        Time of the critical path by phase: a phase's error counts for as long as the path is in it.
    """
    there = [phase for phase in PHASES if phase in parts]
    spread = sum(path.get(phase, 0) * largest(parts[phase]) for phase in there)
    return Reach(spread / max(sum(path.values()), 1), tuple(parts[phase] for phase in there))


def between(first: Reach, second: Reach) -> float:
    """Share by which errors may shift two times relative to each other.

    Errors of the same parts are the same error: what both have cancels.
    """
    if first.parts == second.parts:
        return abs(first.share - second.share)
    return math.hypot(first.share, second.share)
