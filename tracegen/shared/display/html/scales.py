"""Scales: from values to places in a drawing, with ticks at round numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

STEPS = (1.0, 2.0, 5.0)
"""Ticks of a linear scale are multiples of one of these times a power of ten."""
LOG_ROOM = 0.04
"""Room at each end of a logarithmic scale, as a share of it."""
MOST_DIGITS = 12
"""Digits before or after the point from which a tick is written with a power of ten."""


def round_step(low: float, high: float, most: int) -> float:
    """Find the least round step with which at most so many ticks lie between two values.

    Parameters
    ----------
    low, high
        Ends; `high` is above `low`.
    most
        Ticks that there may be, 2 or more.
    """
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 10, 100):
        for one in STEPS:
            step = one * power * factor
            if _last(high, step) - _first(low, step) + 1 <= most:
                return step
    raise AssertionError  # a hundred times the span leaves one tick


def _first(low: float, step: float) -> int:
    return math.ceil(low / step - 1e-9)


def _last(high: float, step: float) -> int:
    return math.floor(high / step + 1e-9)


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values from `low` to `high`, at most so many, all the same step apart."""
    if not high > low:
        return [low]
    step = round_step(low, high, most)
    # Of a multiple of a power of ten, rounding leaves the number as people write it.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(_first(low, step), _last(high, step) + 1)]


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Powers of ten from `low` to `high`, at most `most`; where they are few, 2 and 5 times these too."""
    first, last = _first(math.log10(low), 1), _last(math.log10(high), 1)
    decades = last - first + 1
    if decades > most:
        every = math.ceil(decades / most)
        return [10.0**power for power in range(first, last + 1) if power % every == 0]
    fine = [
        one * 10.0**power
        for power in range(first - 1, last + 1)
        for one in STEPS
        if low * (1 - 1e-9) <= one * 10.0**power <= high * (1 + 1e-9)
    ]
    if len(fine) <= most:
        return fine if len(fine) > 1 else linear_ticks(low, high, most)
    return [10.0**power for power in range(first, last + 1)] or linear_ticks(low, high, most)


@dataclass(frozen=True)
class Scale:
    """Map from values to places.

    Attributes
    ----------
    low, high
        Values at the ends.
    start, end
        Their places, in the units of the drawing; `end` may be below `start`.
    is_log
        Whether equal factors, not equal differences, are equally far apart; needs `low` above 0.
    ticks
        Round values within the ends, upwards.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool
    ticks: Sequence[float]

    def __call__(self, value: float) -> float:
        """Place of a value; outside the ends if the value is."""
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def roomy(self) -> Scale:
        """The same logarithmic scale with room at its ends, where a value would seem to be 0; others as they are."""
        if not self.is_log:
            return self
        factor = (self.high / self.low) ** LOG_ROOM
        return dataclasses.replace(self, low=self.low / factor, high=self.high * factor)

    def up_to(self, low: float, high: float) -> Scale:
        """A linear scale between the same places that ends at these values, with the ticks that lie within."""
        ticks = [one for one in self.ticks if low - 1e-9 * abs(low) <= one <= high + 1e-9 * abs(high)]
        return dataclasses.replace(self, low=low, high=high, ticks=ticks)

    def has(self, value: float) -> bool:
        """Tell whether a value has a place."""
        return math.isfinite(value) and (value > 0 or not self.is_log)

    def labels(self) -> list[str]:
        """Each tick as it is written."""
        return tick_labels(self.ticks, is_log=self.is_log)


def scale(
    values: Iterable[float],
    start: float,
    end: float,
    most: int,
    *,
    is_log: bool = False,
    from_zero: bool = True,
    is_whole: bool = False,
) -> Scale:
    """Make the scale that shows all values, and whose ends are round.

    Parameters
    ----------
    values
        To be shown; those that are not finite, or without a place on a logarithmic scale, do not
        count.
    start, end
        See `Scale`.
    most
        Ticks that there may be.
    is_log
        See `Scale`.
    from_zero
        Whether a linear scale has a place for 0 at any rate.
    is_whole
        Whether the values count something, so that ticks between whole numbers would stand for nothing.
    """
    found = [one for one in values if math.isfinite(one) and (one > 0 or not is_log)]
    if not found:
        found = [1.0] if is_log else [0.0]
    low, high = min(found), max(found)
    if is_log:
        if low == high:
            low, high = low / 2, high * 2
        return Scale(low, high, start, end, True, log_ticks(low, high, most))
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # Differences that rounding would hide are no differences.
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        spread = abs(high) / 2 or 1.0
        low, high = low - (0 if from_zero else spread), high + spread
    step = max(round_step(low, high, most), 1.0 if is_whole else 0.0)
    low, high = (_floor(low, step), _ceil(high, step))
    ticks = linear_ticks(low, high, most + 2)
    return Scale(low, high, start, end, False, [one for one in ticks if not is_whole or one == round(one)])


def _floor(value: float, step: float) -> float:
    return math.floor(value / step + 1e-9) * step


def _ceil(value: float, step: float) -> float:
    return math.ceil(value / step - 1e-9) * step


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def tick_labels(ticks: Sequence[float], *, is_log: bool = False) -> list[str]:
    """Write ticks, all in the same way.

    Parameters
    ----------
    ticks
        Round numbers.
    is_log
        Whether each is written with the digits that it needs itself.

    Examples
    --------
    >>> tick_labels([0.0, 0.5, 1.0]), tick_labels([0.01, 1, 100], is_log=True)
    (['0', '0.5', '1.0'], ['0.01', '1', '100'])
    >>> tick_labels([0, 2e6, 4e6]), tick_labels([1e-5, 1e-4], is_log=True)
    (['0', '2×10⁶', '4×10⁶'], ['10⁻⁵', '10⁻⁴'])
    """
    sizes = [abs(one) for one in ticks if one]
    if sizes and (max(sizes) >= (1e7 if is_log else 1e6) or min(sizes) < 1e-4):
        return [_power(one) for one in ticks]
    if is_log:
        return [f"{one:,.{_digits(one)}f}" for one in ticks]
    digits = max((_digits(one) for one in ticks), default=0)
    return ["0" if one == 0 else f"{one:,.{digits}f}" for one in ticks]


def _digits(value: float) -> int:
    """Digits after the point that a round number needs."""
    return next((one for one in range(MOST_DIGITS) if _is_near(value, one)), MOST_DIGITS)


def _is_near(value: float, digits: int) -> bool:
    return math.isclose(round(value, digits), value, rel_tol=1e-9, abs_tol=0.0)


def _power(value: float) -> str:
    """Write a number as a factor and a power of ten."""
    if value == 0:
        return "0"
    power = math.floor(math.log10(abs(value)) + 1e-9)
    factor = value / 10.0**power
    ten = f"10{str(power).translate(_RAISED)}"
    written = f"{factor:.{_digits(round(factor, 9))}f}"
    return {"1": ten, "-1": f"-{ten}"}.get(written, f"{written}×{ten}")


def figures(values: Iterable[float]) -> str:
    """Find the format in which numbers of one kind are written: three figures of the largest.

    Parameters
    ----------
    values
        All of the kind.

    Returns
    -------
    As `format` takes it.

    Examples
    --------
    >>> figures([120.3, 4.56]), figures([1.2, 0.001]), figures([52_345.0])
    (',.1f', ',.2f', ',.0f')
    """
    largest = max((abs(one) for one in values if math.isfinite(one)), default=0.0)
    if largest == 0:
        return ",.0f"
    power = math.floor(math.log10(largest))
    if power >= 9 or power < -4:
        return ".3g"
    return f",.{max(0, 1 if power == 2 else 2 - power)}f"
