"""Numbers, counts and shares in the sentences of answers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replay.studies.sweeps.contest import LEVEL
from replay.studies.sweeps.words import BYTES, condition, size, value_words

if TYPE_CHECKING:
    from replay.studies.sweeps.contest import LeadChange, Place

TIMES = 2.0
"""Share from which a ratio is told in place of percents, also of lesser shares beside it."""

MOST_TOLD = 3
"""Cases, or courses, that a sentence tells one by one."""


def change_words(change: LeadChange, axis: str) -> str:
    """Say where the lead changes, in no more digits than the spread over seeds leaves.

    Parameters
    ----------
    axis
        Name of the axis.
    """
    found, wanted = change.num_seeds
    digits = math.floor(math.log10(change.at)) if change.at > 0 else 0
    if wanted < 2 or math.isinf(change.high):
        over = f" (perhaps nowhere, over {wanted} seeds)" if wanted > 1 else " (one draw)" if change.is_drawn else ""
        return f"about {axis_number(axis, change.at, digits - (change.at < 2 * 10.0**digits))}{over}"
    spread = change.high - change.low
    digits = max(digits - 1, math.floor(math.log10(spread)) if spread else digits - 1)
    at, low, high = (axis_number(axis, one, digits) for one in (change.at, change.low, change.high))
    seeds = f"in {found} of {wanted} seeds" if change.by_seed else f"at most over {wanted} seeds"
    return f"{at} ({f'{low} to {high} ' if low != high else ''}{seeds})"


def axis_number(axis: str, value: float, digits: int) -> str:
    """A number of an axis rounded to a power of ten; bytes to a digit of their unit."""
    if axis == BYTES:
        power = 1024 ** (math.floor(math.log2(value)) // 10)
        digits = math.floor(math.log10(value / power))
        step = 10.0 ** (digits - (value / power < 2 * 10.0**digits))
        return size(round(value / power / step) * step * power)
    return f"{round(value, -digits):,.{max(0, -digits)}f}"


def later_words(axis: str, label: str) -> str:
    """A further number of an axis whose words were said; else all of its words."""
    return f"{int(label):,}" if label.isdecimal() and axis != BYTES else value_words(axis, label)


def capital(text: str) -> str:
    """Text with a capital at its beginning."""
    return text[:1].upper() + text[1:]


def of_cases(count: int, every: int) -> str:
    """Cases out of all, behind "in"."""
    if count == every:
        return {1: "the one case", 2: "both cases"}.get(every, f"all {every} cases")
    return f"{count or 'none'} of {every} cases"


def count_words(count: int, every: int) -> str:
    """A count, which says where it is all of several."""
    return f"all {every}" if count == every > 1 else str(count)


def conditions(place: Place) -> list[str]:
    """Words for values of assumed axes, ``with`` before the first alone."""
    first, *others = (condition(axis, label) for axis, label in place.items())
    return [first, *(one.removeprefix("with ") for one in others)]


def number_with_sign(value: float) -> str:
    """A number with its sign, which 0 has not."""
    return f"{value:+,.0f}" if round(value) else "0"


def verb_for(verb: str, rival: str) -> str:
    """A verb, of a rival that is a number of something."""
    return {"takes": "take", "has": "have"}[verb] if rival.isdecimal() and int(rival) != 1 else verb


def turn_words(turned: Sequence[str], every: int, parted: Sequence[str] = ()) -> str:
    """Number and names of the cases that turn, in front of what is told of all; empty where there is one case.

    Parameters
    ----------
    parted
        Names of cases that are level as stated.
    """
    if not turned or every == 1:
        but = f" but a level one ({'; '.join(parted[:MOST_TOLD])})" if parted else ""
        return "" if every == 1 else f"no case turns{but}: "
    more = f" and {len(turned) - MOST_TOLD} more" if len(turned) > MOST_TOLD else ""
    verb = "turns" if len(turned) == 1 else "turn"
    return f"{len(turned)} of {every} cases {verb} ({'; '.join(turned[:MOST_TOLD])}{more}): "


def more_words(shares: Sequence[float], much: str, beside: Sequence[float] = ()) -> str:
    """Words for more or less, from the least share to the largest.

    Parameters
    ----------
    much
        What a ratio is told of: as ``long``, as ``much``.
    beside
        Shares that are told in the same sentence.
    """
    low, high = (0.0 if abs(edge(shares)) < LEVEL else edge(shares) for edge in (min, max))
    every = [*shares, *beside]
    least = LEVEL if max(every) >= TIMES and min(every) >= LEVEL else TIMES

    def number(share: float) -> str:
        digits = max(0, 2 - math.floor(math.log10(1 + share))) if share >= least else 0
        return f"{1 + share:,.{digits}f}" if share >= least else f"{100 * abs(share):.0f}"

    def unit(share: float) -> str:
        return f"times as {much}" if share >= least else f"% {'more' if share > 0 else 'less'}"

    def word(share: float) -> str:
        return f"{number(share)} {unit(share)}" if share else "the same"

    if word(low) == word(high):
        return word(low)
    if low and high and unit(low) == unit(high):
        near, far = sorted((low, high), key=abs)
        return f"{number(near)} to {number(far)} {unit(far)}"
    return f"{word(low)} to {word(high)}"


def range_words(shares: Sequence[float]) -> str:
    """Shares from the least to the largest, in percent."""
    low, high = (f"{100 * edge(shares):.0f}" for edge in (min, max))
    return f"{low} %" if low == high else f"{low} to {high} %"
