"""Bands and shares, read off times in draws."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from numbers import Integral
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from replay.errors import UserError, check_kind, unknown
from replay.experiments.layer.bands import Band, Cause, Uncertainty
from replay.model.arrays import Reals

MOST_DRAWS = 100_000  # bands of many fewer are sharper than their model
LOW, HIGH = 5, 95  # percentiles of a band
MOST_CAUSES = 3
CHANCE = 0.05
"""Chance that of values which are all unrelated to a lead any is named as what decides it."""


class Draw(NamedTuple):
    """One draw: times of all results, and by name what was drawn that concerns the first two.

    Times that are not there are NaN: a scheme may refuse what was drawn.
    """

    times_us: Reals
    values: dict[str, float]


class DrawnResult(NamedTuple):
    """A result whose time is drawn; one that is a bound is no rival of the others."""

    scheme: str
    placement: str
    nominal_us: float
    is_bound: bool


def check(draws: int, seed: int, of: str | Sequence[str], possible: Sequence[str]) -> list[str]:
    """Refuse what cannot be drawn, and return what is drawn, in order.

    Parameters
    ----------
    draws, seed
        How many, and what they come from.
    of
        What is drawn, of what is `possible`; or one name.

    Raises
    ------
    UserError
        If the number or the seed is of another kind or not possible, or there is nothing of that
        name to draw.
    """
    check_kind("draws", draws, Integral, f"a whole number from 1 to {MOST_DRAWS}")
    check_kind("seed", seed, Integral, "a whole number of at least 0")
    names = f"names out of {', '.join(possible)}"
    check_kind("of", of, (str, list, tuple, set, frozenset), names)
    of = [of] if isinstance(of, str) else of
    if not 1 <= draws <= MOST_DRAWS:
        message = f"draws must be from 1 to {MOST_DRAWS}, not {draws}"
        raise UserError(message)
    if seed < 0:
        message = f"the seed must be at least 0, not {seed}"
        raise UserError(message)
    for name in of:
        check_kind("of", name, str, names)
        if name not in possible:
            raise unknown("uncertainty", name, possible)
    chosen = [name for name in possible if name in of]
    if not chosen:
        message = f"nothing is to be drawn; possible: {', '.join(possible)}"
        raise UserError(message)
    return chosen


def summary(
    rows: Sequence[DrawnResult],
    found: Sequence[Draw],
    seed: int,
    of: Sequence[str],
    notes: Sequence[str],
    refusal: str = "a scheme has no code for their routing",
) -> Uncertainty:
    """Read bands and shares off the draws.

    Parameters
    ----------
    rows
        The fastest first.
    found
        Each with a time for every row.
    seed, of, notes
        See `Uncertainty`.
    refusal
        Why times are missing, of the draws in which any is.

    Raises
    ------
    UserError
        If a time is missing in every draw.
    """
    draws, notes = len(found), list(notes)
    times = np.array([draw.times_us for draw in found])  # (draw, row)
    refused = np.isnan(times).any(axis=1)
    if refused.all():
        message = f"no draw can be replayed: {refusal}"
        raise UserError(message)
    if refused.any():
        notes.append(f"{refused.sum()} draws left out: {refusal}")
        found = [draw for draw, is_refused in zip(found, refused, strict=True) if not is_refused]
        times = times[~refused]
    rivals = rivals_of(rows)
    shares = _shares(times[:, rivals])
    bands = []
    for index, row in enumerate(rows):
        low, middle, high = np.percentile(times[:, index], (LOW, 50, HIGH))
        first, before_next = next(shares) if index in rivals else (None, None)
        bands.append(
            Band(
                scheme=row.scheme,
                placement=row.placement,
                nominal_us=row.nominal_us,
                low_us=float(low),
                median_us=float(middle),
                high_us=float(high),
                first=first,
                before_next=before_next,
                times_us=times[:, index].tolist(),
            )
        )
    return Uncertainty(
        draws=draws,
        seed=seed,
        drawn=list(of),
        notes=notes,
        bands=bands,
        order_holds=float((np.diff(times[:, rivals], axis=1) >= 0).all(axis=1).mean()),
        decides=_causes(times[:, rivals], found) if len(rivals) > 1 else [],
    )


def rivals_of(rows: Sequence[DrawnResult]) -> list[int]:
    """Places of the rows that are no bounds."""
    return [place for place, row in enumerate(rows) if not row.is_bound]


def _shares(times: Reals) -> Iterator[tuple[float, float | None]]:
    """Of each rival: the shares of draws in which it is first, and not slower than the next."""
    first = (times <= times.min(axis=1, keepdims=True, initial=np.inf)).mean(axis=0)
    before = (times[:, :-1] <= times[:, 1:]).mean(axis=0)
    for index in range(times.shape[1]):
        yield float(first[index]), float(before[index]) if index < len(before) else None


def _causes(times: Reals, found: Sequence[Draw]) -> list[Cause]:
    """Causes that correlate most with the lead of the first over the second."""
    if len(found) < 2:
        return []
    lead = _ranks(np.log(times[:, 1] / times[:, 0]))
    causes = []
    for name in found[0].values:
        values = _ranks(np.array([draw.values[name] for draw in found]))
        if lead.std() and values.std():
            correlation = float(np.corrcoef(values, lead)[0, 1])
            causes.append(Cause(name=name, correlation=max(-1.0, min(1.0, round(correlation, 6)))))
    # Of unrelated numbers a correlation has this deviation; so many are looked at (Bonferroni), either sign counts.
    deviation = 1 / math.sqrt(len(found) - 1)
    least = NormalDist().inv_cdf(1 - CHANCE / 2 / max(len(causes), 1)) * deviation
    clear = [one for one in causes if abs(one.correlation) >= least]
    return sorted(clear, key=lambda one: -abs(one.correlation))[:MOST_CAUSES]


def _ranks(values: Reals) -> Reals:
    """Mean rank of each value; equal ones share theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks: Reals = (ends - (counts - 1) / 2)[inverse]
    return ranks
