"""Whole picoseconds and bytes, and exact rates between them.

Inside the package a time is an integer number of picoseconds and a size an
integer number of bytes, as Python ints or int64 arrays. A rate is a ratio of two
integers, so that a duration never depends on how a float was rounded: sums of
equal parts are equal on every machine. Human units (GB/s, ns, us) exist only in
preset files and in printed output; 1 GB is 10^9 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hwmodel.errors import UserError

PS_PER_NS = 1_000
PS_PER_US = 1_000_000
PS_PER_S = 1_000_000_000_000
BYTES_PER_GB = 1_000_000_000
BYTES_PER_MIB = 1 << 20

#: An int64 array.
IntArray = npt.NDArray[np.int64]

#: Either a Python int or an int64 array; a function returns what it was given.
Whole = TypeVar("Whole", int, IntArray, int | IntArray)

# Large numbers are multiplied by a remainder (< denominator) times the numerator, so the product
# of a rate's two terms must fit in an int64. That leaves it about eighteen digits.
_MAX_PRODUCT = 1 << 62

_UNIT_SUFFIXES = {
    "_GB_per_s": "GB/s",
    "_TFLOP_per_s": "TFLOP/s",
    "_GFLOP_per_s": "GFLOP/s",
    "_bytes_per_clock": "bytes/clock",
    "_pJ_per_byte": "pJ/byte",
    "_pJ_per_flop": "pJ/flop",
    "_GHz": "GHz",
    "_W": "W",
    "_MiB": "MiB",
    "_bytes": "bytes",
    "_flits": "flits",
    "_clocks": "clocks",
    "_ns": "ns",
    "_us": "us",
}


def unit_of(key: str) -> str:
    """Read the unit that a preset key carries in its name; empty for counts and ratios.

    Examples
    --------
    >>> unit_of("link.bandwidth_GB_per_s"), unit_of("gpu.num_sms")
    ('GB/s', '')
    """
    for suffix, unit in _UNIT_SUFFIXES.items():
        if key.endswith(suffix):
            return unit
    return ""


def exact(value: float | int) -> Fraction:
    """Return the decimal number that was written, not the nearest binary float.

    Examples
    --------
    >>> exact(0.9435)
    Fraction(1887, 2000)
    """
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def ceil_fraction(value: Fraction) -> int:
    """Round a non-negative fraction up to a whole number."""
    return -((-value.numerator) // value.denominator)


def ps_from_ns(value_ns: float | int) -> int:
    """Convert nanoseconds to whole picoseconds, rounding up."""
    return ceil_fraction(exact(value_ns) * PS_PER_NS)


def ps_from_us(value_us: float | int) -> int:
    """Convert microseconds to whole picoseconds, rounding up."""
    return ceil_fraction(exact(value_us) * PS_PER_US)


_INT64, _UNSIGNED = np.dtype(np.int64), np.dtype(np.uint64)
_MOST = (1 << 63) - 1


def whole(value: Any, name: str) -> Any:
    """Check a count: a non-negative int, or an array of them, as int or int64 array.

    Parameters
    ----------
    value
        A Python or numpy integer, or anything numpy reads as an integer array.
    name
        Name of the count, for the error message.

    Raises
    ------
    UserError
        If it is negative or not made of whole numbers.
    """
    return _whole(value, name)[0]


def _whole(value: Any, name: str) -> tuple[Any, int]:
    """Check a count, see `whole`; it, and the largest number of it."""
    if type(value) is int and value >= 0:  # as most are
        return value, value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(value)
        if number < 0:
            message = f"{name} must not be negative; got {number}"
            raise UserError(message)
        return number, number
    array = value if type(value) is np.ndarray else np.asarray(value)
    if array.dtype is not _INT64:
        if array.dtype.kind not in "iu" and array.size:
            message = f"{name} must be whole numbers; got dtype {array.dtype}"
            raise UserError(message)
        array = array.astype(np.int64, copy=False)
    # Without their signs, negative numbers are the largest: one look finds both ends.
    largest: int = array.item(array.view(_UNSIGNED).argmax()) if array.size else 0
    if largest < 0:
        message = f"{name} must not be negative; got {int(array.min())}"
        raise UserError(message)
    return array, largest


def ceil_div(value: Whole, divisor: int) -> Whole:
    """Divide whole numbers, rounding up.

    Examples
    --------
    >>> ceil_div(129, 128)
    2
    """
    return -((-value) // divisor)


def scale_up(value: Whole, factor: Fraction) -> Whole:
    """Multiply whole, non-negative numbers by a fraction, rounding up.

    An int64 array overflows only where the result itself would.
    """
    largest = value if isinstance(value, int) else int(np.maximum.reduce(value, axis=None, initial=0))
    scaled: Whole = _scaled_up(value, largest, factor)
    return scaled


def _scaled_up(value: Any, largest: int, factor: Fraction) -> Any:
    """Multiply numbers of at most `largest` by a fraction, rounding up; see `scale_up`."""
    numerator, denominator = factor.as_integer_ratio()
    if isinstance(value, int):
        return -(-value * numerator // denominator)
    # In place from the first step on: memory for another array takes longer than the arithmetic.
    if largest * numerator <= _MOST - denominator:
        scaled = value * numerator
        scaled += denominator - 1
        scaled //= denominator
        return scaled
    scaled = value // denominator  # and the remainder, whose product always fits
    rest = scaled * -denominator
    rest += value
    rest *= numerator
    rest += denominator - 1
    rest //= denominator
    scaled *= numerator
    scaled += rest
    return scaled


def _simplify(value: Fraction) -> Fraction:
    """Nearest fraction (of a value >= 1) whose terms multiply to less than _MAX_PRODUCT."""
    return value.limit_denominator(max(1, math.isqrt(_MAX_PRODUCT // (math.ceil(value) + 1))))


@dataclass(frozen=True, slots=True)
class Rate:
    """Amount of something (bytes, floating-point operations) that passes per second.

    Attributes
    ----------
    ps_per_unit
        Picoseconds per unit, as an exact fraction.
    """

    ps_per_unit: Fraction

    @classmethod
    def per_second(cls, amount: Fraction | int) -> Rate:
        """Make a rate from units (bytes, operations) per second.

        Raises
        ------
        UserError
            If the amount is not positive.
        """
        if amount <= 0:
            message = f"a rate must be positive; got {float(amount)} per second"
            raise UserError(message)
        period = Fraction(PS_PER_S) / Fraction(amount)
        if period < 1:  # a fast rate keeps its precision through the reciprocal
            return cls(1 / _simplify(1 / period))
        return cls(_simplify(period))

    @classmethod
    def per_unit(cls, ps: Fraction) -> Rate:
        """Make a rate from the picoseconds of a unit, which may be 0."""
        return cls(_simplify(ps))

    @classmethod
    def gigabytes_per_second(cls, value_gb_per_s: float | int) -> Rate:
        """Make a rate from GB/s (10^9 bytes per second)."""
        return cls.per_second(exact(value_gb_per_s) * BYTES_PER_GB)

    @property
    def units_per_second(self) -> float:
        """Units per second, for printing and for tests."""
        return float(PS_PER_S / self.ps_per_unit)

    def times(self, factor: Fraction | int) -> Rate:
        """Return the rate of ``factor`` such servers together, or at that efficiency."""
        return _times(self.ps_per_unit, factor)

    def duration_ps(self, amount: Whole) -> Whole:
        """Time that an amount takes on an idle server, rounded up.

        Parameters
        ----------
        amount
            Units (bytes or operations), non-negative.

        Returns
        -------
        Picoseconds: ``ceil(amount * ps_per_unit)``.

        Examples
        --------
        >>> Rate.gigabytes_per_second(450).duration_ps(450_000)
        1000000
        """
        checked, largest = _whole(amount, "amount")
        duration: Whole = _scaled_up(checked, largest, self.ps_per_unit)
        return duration


@lru_cache(maxsize=1024)
def _times(ps_per_unit: Fraction, factor: Fraction | int) -> Rate:
    """Rate of several servers; few are asked for, and each again for every block of messages."""
    return Rate.per_second(PS_PER_S / ps_per_unit * factor)
