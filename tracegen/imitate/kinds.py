"""Kinds of tokens: groups of places that visit nearly the same experts in all layers (k-means)."""

from __future__ import annotations

import numpy as np

from tracegen.trace.arrays import Array, Floats

_ROUNDS = 12
"""Of Lloyd's algorithm; later ones move hardly any token."""
_BLOCK = 8192


def centres(points: Floats, count: int, seed: int) -> tuple[Floats, Array]:
    """Centres of groups with little variance, by Lloyd's algorithm (k-means).

    Parameters
    ----------
    points
        Shape (token, coordinate).
    count
        Groups; no more than there are points.
    seed
        Of the points that they start from.

    Returns
    -------
    Shape (kind, coordinate), and the number of points of each, at least 1, shape (kind,).
    """
    rng = np.random.default_rng(seed)
    found = points[rng.choice(len(points), count, replace=False)]
    for _ in range(_ROUNDS):
        kind, apart = nearest(points, found)
        tokens = np.bincount(kind, minlength=count)
        empty = np.flatnonzero(tokens == 0)
        if empty.size:
            # A centre that no point is near to goes to one of the points that have none near.
            kind[np.argsort(-apart, kind="stable")[: empty.size]] = empty
            tokens = np.bincount(kind, minlength=count)
        sums = [np.bincount(kind, column, count) for column in points.T]
        found = np.stack(sums, axis=1) / np.maximum(tokens, 1)[:, None]
    return found, np.maximum(np.bincount(nearest(points, found)[0], minlength=count), 1)


def nearest(points: Floats, found: Floats) -> tuple[Array, Floats]:
    """The centre that each point is nearest to, and its squared distance.

    Parameters
    ----------
    points
        Shape (token, coordinate).
    found
        Centres, shape (kind, coordinate).

    Returns
    -------
    Both of shape (token,).
    """
    kind, apart = np.empty(len(points), np.int64), np.empty(len(points))
    middle = (found**2).sum(axis=1)
    for begin in range(0, len(points), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        distance = middle - 2 * points[rows] @ found.T
        kind[rows] = distance.argmin(axis=1)
        apart[rows] = distance.min(axis=1) + (points[rows] ** 2).sum(axis=1)
    return kind, apart
