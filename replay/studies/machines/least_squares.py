"""Least-squares fit of constants to measurements, and how well they are known.

Everything is relative: errors are shares of what was measured, and a slope says by what share a
prediction moves with a share of a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np

from replay.model.arrays import Reals

Errors: TypeAlias = Callable[[Mapping[str, float]], Reals]
"""From constants to (row,) errors: predicted over measured, less 1."""

STEP = 0.05  # of a constant, for slopes
ROUNDS = 4
SOFT = 0.06  # larger relative errors count linearly, not squared
LARGEST_MOVE = 0.4  # of a constant in one round
USUAL_ERROR = 0.05  # of a line, where too few lines say it
KNOWN_WITHIN = 0.2  # one standard deviation of a constant that lines determine
LEAST_SLOPE = 0.02


def round_value(value: float) -> float:
    """Keep three digits, so that fitting again gives the same value."""
    return float(f"{value:.3g}")


def is_share(key: str) -> bool:
    """Tell whether a constant cannot exceed 1."""
    return key.endswith("efficiency")


def slopes(errors: Errors, values: Mapping[str, float], now: Reals) -> Reals:
    """(row, constant): by what share a prediction moves with each constant."""
    found = [
        (errors({**values, key: value * (1 + step)}) - now) / step
        for key, value in values.items()
        for step in [-STEP if is_share(key) and value * (1 + STEP) > 1 else STEP]
    ]
    return np.array(found).reshape(len(values), len(now)).T


def fit_values(start: Mapping[str, float], errors: Errors, rounds: int = ROUNDS) -> dict[str, float]:
    """Fit by Gauss-Newton on relative errors, and return the best round's values.

    Parameters
    ----------
    start
        Constants and the values to begin with.
    errors
        Relative errors of all predictions with given values, (row,).
    """
    values, best, least = dict(start), dict(start), np.inf
    for _ in range(rounds):
        now = errors(values)
        if np.abs(now).mean() < least:
            best, least = dict(values), float(np.abs(now).mean())
        weight = np.minimum(1, SOFT / np.maximum(np.abs(now), 1e-9))
        matrix = slopes(errors, values, now) * weight[:, None]
        move = np.linalg.lstsq(matrix, -now * weight, rcond=None)[0]
        before = dict(values)
        for key, change in zip(values, np.clip(move, -LARGEST_MOVE, LARGEST_MOVE), strict=True):
            values[key] = round_value(values[key] * (1 + float(change)))
            if is_share(key):
                values[key] = min(values[key], 1.0)
        if values == before:
            break
    if np.abs(errors(values)).mean() < least:
        best = values
    return best


def deviations(matrix: Reals, error: float) -> Reals:
    """(constant,): standard deviation of each, as a share of it, from slopes and lines' error."""
    try:
        inverse = np.linalg.inv(matrix.T @ matrix)
    except np.linalg.LinAlgError:
        return np.full(matrix.shape[1], np.inf)
    variance = np.diagonal(inverse)
    return error * np.sqrt(np.where(variance > 0, variance, np.inf))


def keep_determined(keys: Iterable[str], matrix: Reals) -> list[str]:
    """Keep the constants that lines determine.

    With lines that are `USUAL_ERROR` off at random, each would be known within `KNOWN_WITHIN`.
    While one is not, the least known is dropped; constants that no line depends on go first.

    Parameters
    ----------
    matrix
        (line, constant) slopes.
    """
    keys = list(keys)
    left = [at for at in range(len(keys)) if np.abs(matrix[:, at]).max(initial=0) >= LEAST_SLOPE]
    while left:
        known = deviations(matrix[:, left], USUAL_ERROR)
        if known.max() <= KNOWN_WITHIN:
            break
        # Of constants that no line tells apart, the one that lines show least.
        shown = np.abs(matrix[:, left]).sum(axis=0)
        left.pop(int(np.lexsort((shown, -known))[0]))
    return [keys[at] for at in left]
