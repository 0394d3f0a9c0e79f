"""Durations of what tokens share: covariances by distance, split into parts of known spans.

Every token counts the same, as it does in the statistics: a long request counts for more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tracegen.generate import fields
from tracegen.generate.fields import SPANS
from tracegen.trace.arrays import Array, Floats

DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
"""Tokens of a request apart."""
APART = (1, 2, 4, 8, 16)
"""Requests apart."""
WEIGHT = np.array([4, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 3, 1, 6, 2, 2, 2, 2, 2], np.float64)
"""In least squares, by distance, then anywhere in a request, then by requests apart: distances at
which statistics look count for three, and any two tokens of a request for many."""
DRIFTS = (0.5, 0.8, 0.9, 0.95, 0.98)
"""Correlations from request to request that are told apart: runs of 2 to 50 requests."""
_PAIRS = 6_000
"""Token pairs of each distance whose reuse is looked at."""


@dataclass(frozen=True)
class Ruler:
    """Correlations that a part of each span gives tokens at each distance, in one trace."""

    counts: Array
    """Tokens of each request, shape (request,)."""
    drift: float
    """Correlation of the drift from request to request."""

    @cached_property
    def marks(self) -> Floats:
        """Correlations, shape (distance, span but for the single token)."""
        near = fields.correlations(self.counts, np.array(DISTANCES))[:, 1:]
        chance = fields.partners_at(self.counts)
        every = fields.correlations(self.counts, np.arange(1, len(chance) + 1))[:, 1:]
        anywhere = chance @ every
        within = np.vstack([near, anywhere])
        requests = len(self.counts)
        power = fields.drift_power(self.drift, requests), fields.drift_power(0.0, requests)
        drift, own = (np.fft.ifft(one).real for one in power)
        apart = np.minimum(np.array(APART), requests - 1)
        marks = np.zeros((len(WEIGHT), len(SPANS) - 1))
        marks[: len(within), :-2] = within
        marks[: len(within), -2:] = 1
        marks[len(within) :, -2:] = np.stack([own[apart], drift[apart]], axis=1)
        return marks

    def split(self, curve: Floats) -> Floats:
        """Parts of each span, none negative, whose sum is a curve, by least squares.

        Parameters
        ----------
        curve
            Shape (distance, dimension).

        Returns
        -------
        Shape (dimension, span but for the single token).
        """
        return np.stack([_least_squares(self.marks, one)[0] for one in curve.T])

    def misses(self, curve: Floats) -> float:
        """Sum of squared residuals of the best split of a curve.

        Parameters
        ----------
        curve
            Shape (distance,).
        """
        return _least_squares(self.marks, curve)[1]


def _least_squares(marks: Floats, curve: Floats) -> tuple[Floats, float]:
    """Non-negative least squares for a few parts: the best of all subsets, and what it leaves."""
    parts, wanted = marks * WEIGHT[:, None], curve * WEIGHT
    gram, right = parts.T @ parts, parts.T @ wanted
    best, least = np.zeros(parts.shape[1]), 0.0
    for subset in range(1, 2 ** parts.shape[1]):
        used = [column for column in range(parts.shape[1]) if subset >> column & 1]
        # A ridge far below what a curve tells: spans that a short trace cannot tell apart.
        some = gram[np.ix_(used, used)] + 1e-9 * np.eye(len(used))
        amount = np.linalg.solve(some, right[used])
        gain = -float(amount @ right[used])
        if gain < least and (amount >= 0).all():
            best, least = np.zeros(parts.shape[1]), gain
            best[used] = amount
    return best, float(wanted @ wanted) + least


def covariances(values: Floats, counts: Array) -> Floats:
    """Covariances between tokens at every distance.

    Parameters
    ----------
    values
        Tokens in order, shape (token, dimension).
    counts
        Tokens of each request.

    Returns
    -------
    Shape (1 + distance, dimension, dimension): within a token, then in the order of
    :data:`WEIGHT`.
    """
    centred = (values - values.mean(axis=0)).astype(np.float32)
    request = np.repeat(np.arange(len(counts)), counts)
    found = [centred.T @ centred / max(len(centred), 1)]
    for apart in DISTANCES:
        both = request[apart:] == request[:-apart]
        later, earlier = centred[apart:][both], centred[:-apart][both]
        found.append(later.T @ earlier / max(int(both.sum()), 1))
    begins = np.cumsum(counts) - counts
    sums = np.add.reduceat(centred.astype(np.float64), begins, axis=0)
    # Over tokens, the mean product with the other tokens of the request.
    weight = 1 / np.maximum(counts - 1, 1)
    own = (centred * np.repeat(weight, counts)[:, None].astype(np.float32)).T @ centred
    found.append(((sums * weight[:, None]).T @ sums - own) / max(int(counts[counts > 1].sum()), 1))
    for apart in APART:
        pairs = max(float(counts[apart:] @ counts[:-apart]), 1)
        found.append(sums[apart:].T @ sums[:-apart] / pairs)
    both_ways = np.stack(found).astype(np.float64)
    symmetric: Floats = (both_ways + both_ways.transpose(0, 2, 1)) / 2
    return symmetric


def reuse(ids: Array, counts: Array, num_experts: int, seed: int) -> Floats:
    """Experts that two tokens have in common beyond chance, by distance.

    Parameters
    ----------
    ids
        Tokens in order, shape (layer, token, k); from `num_experts` on are empty slots.
    counts
        Tokens of each request.
    num_experts
        Of a layer.
    seed
        Of the sample of token pairs.

    Returns
    -------
    Mean over layers as a share of k, in the order of :data:`WEIGHT`, shape (distance,).
    """
    rng = np.random.default_rng(seed)
    tokens = ids.shape[1]
    load = np.stack([np.bincount(one.ravel(), minlength=num_experts)[:num_experts] for one in ids])
    by_chance = float(((load / tokens) ** 2).sum()) / (len(ids) * ids.shape[2])
    request = np.repeat(np.arange(len(counts)), counts)
    begins = np.cumsum(counts) - counts
    found = []

    def add_shared(one: Array, other: Array) -> None:
        same = (ids[:, one, :, None] == ids[:, other, None, :]).any(axis=3)
        same &= ids[:, one] < num_experts
        found.append(float(same.mean()) - by_chance if one.size else 0.0)

    def some(rows: Array) -> Array:
        return rng.choice(rows, min(rows.size, _PAIRS), replace=False)

    for apart in DISTANCES:
        rows = some(np.flatnonzero(request[apart:] == request[:-apart]))
        add_shared(rows + apart, rows)
    rows = some(np.flatnonzero(counts[request] > 1))
    first, count = begins[request[rows]], counts[request[rows]]
    step = 1 + np.floor(rng.random(rows.size) * (count - 1)).astype(np.int64)
    add_shared(rows, first + (rows - first + step) % count)
    for apart in APART:
        rows = some(np.flatnonzero(request + apart < len(counts)))
        later = request[rows] + apart
        place = np.floor(rng.random(rows.size) * counts[later]).astype(np.int64)
        add_shared(begins[later] + place, rows)
    return np.array(found)
