"""Some of the layers in place of all: which are replayed, and what they say of the whole.

The layers are put in order of the rows of their busiest GPU, which decides most of their time, and
cut into groups of neighbours. Two layers of each group are replayed; of the first group three,
where the number is odd. They are drawn without replacement, by a seed that is always the same, so
that all schemes replay the same layers.

The sum over all layers is estimated as for any stratified sample (Cochran, Sampling Techniques, 3rd
edition, 1977, sections 5.3 to 5.6): each group's mean times its number of layers. The variance of a
group's mean is its sample variance over the layers drawn, times the share of those not drawn. The
interval is Student's, with Satterthwaite's degrees of freedom (section 5.4).
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.model.arrays import Ints

CONFIDENCE = 0.95
SEED = 0


class Interval(NamedTuple):
    """A sum over all layers: estimated, and where it lies with `CONFIDENCE`."""

    total: float
    low: float
    high: float


class LayerSample(NamedTuple):
    """Layers that are replayed in place of all.

    Attributes
    ----------
    places
        (replayed,): which of the layers they are, in order.
    group
        (replayed,): the group that each was drawn from.
    sizes
        (group,): layers of each group.
    """

    places: Ints
    group: Ints
    sizes: Ints

    def whole(self, values: Sequence[float]) -> Interval:
        """Estimate the sum over all layers from the values of those that were replayed."""
        total = variance = freedom = 0.0
        for group, size in enumerate(self.sizes.tolist()):
            drawn = np.asarray(values)[self.group == group]
            count = len(drawn)
            total += size * float(drawn.mean())
            if count < size:
                part = size * (size - count) * float(drawn.var(ddof=1)) / count
                variance += part
                freedom += part**2 / (count - 1)
        if variance == 0:
            return Interval(total, total, total)
        half = student(CONFIDENCE, variance**2 / freedom) * math.sqrt(variance)
        return Interval(total, total - half, total + half)


def choose(key: Sequence[tuple[float, ...]], number: int, seed: int = SEED) -> LayerSample:
    """Choose layers.

    Parameters
    ----------
    key
        Sort key of each layer.
    number
        Layers to choose, two or more, fewer than there are.
    seed
        Of the draw.
    """
    order = np.array(sorted(range(len(key)), key=lambda place: (key[place], place)))
    groups = np.array_split(order, number // 2)
    counts = np.full(len(groups), 2)
    # The groups before others are never smaller, so that the first has room for a third.
    counts[: number - 2 * len(groups)] += 1
    rng = np.random.default_rng([seed, len(key), number])
    drawn = [
        (int(place), index)
        for index, (group, count) in enumerate(zip(groups, counts, strict=True))
        for place in rng.choice(group, count, replace=False)
    ]
    places, group = np.array(sorted(drawn), np.int64).T
    return LayerSample(places, group, np.array([len(one) for one in groups], np.int64))


def student(confidence: float, freedom: float) -> float:
    """Quantile of Student's distribution within which a value lies with a probability.

    G. W. Hill, Algorithm 396, Communications of the ACM 13(10), 1970: good to six digits.

    Examples
    --------
    >>> [round(student(0.95, freedom), 3) for freedom in (1, 2, 10, 1000)]
    [12.706, 4.303, 2.228, 1.962]
    """
    tails, n = 1 - confidence, max(freedom, 1.0)
    if n == 1:
        return 1 / math.tan(tails * math.pi / 2)
    if n == 2:
        return math.sqrt(2 / (tails * (2 - tails)) - 2)
    a = 1 / (n - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * math.sqrt(a * math.pi / 2) * n
    y = (d * tails) ** (2 / n)
    if y > 0.05 + a:
        x = NormalDist().inv_cdf(tails / 2)
        y = x**2
        if n < 5:
            c += 0.3 * (n - 4.5) * (x + 0.6)
        c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
        y = (((((0.4 * y + 6.3) * y + 36) * y + 94.5) / c - y - 3) / b + 1) * x
        y = math.expm1(a * y**2)
    else:
        slope = 1 / (((n + 6) / (n * y) - 0.089 * d - 0.822) * (n + 2) * 3)
        y = ((slope + 0.5 / (n + 4)) * y - 1) * (n + 1) / (n + 2) + 1 / y
    return math.sqrt(n * y)
