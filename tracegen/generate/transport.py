"""Assignment of points to sites so that every site gets its share.

Semi-discrete optimal transport with squared distances: a site's cell are the points for which
``point . site + weight`` is largest, and the weights are those that give each cell its share
(Aurenhammer, Hoffmann, Aronov, 1998). They are found as in Sinkhorn's algorithm, with a share of
each point for every site that narrows to its best (Cuturi, 2013; Schmitzer, 2019, for narrowing).
"""

from __future__ import annotations

import numpy as np

from tracegen.trace.arrays import Array, Floats

POINTS = 2**14
"""Points that weights are found on; every n-th of more."""
_WIDTHS = (1.0, 0.005)
"""Of the smoothing, in deviations of the scores: the first tells nothing apart, and cells of the
last are as sharp as those of so few points can be."""
_STEPS = 24
_ROWS_PER_BLOCK = 2048


def weights(points: Floats, sites: Floats, share: Floats) -> Floats:
    """Weights that give each site its share of the points.

    Parameters
    ----------
    points
        Shape (point, dimension).
    sites
        Shape (site, dimension).
    share
        Positive, sums to 1, shape (site,).

    Returns
    -------
    Shape (site,).
    """
    some = points[:: max(1, -(-len(points) // POINTS))]
    found = np.zeros(len(share))
    if len(share) < 2 or not len(some):
        return found
    score = some @ sites.T
    spread = max(float(score.std()), 1e-12)
    wanted = np.log(share)
    for width in np.geomspace(_WIDTHS[0] * spread, _WIDTHS[1] * spread, _STEPS):
        total = np.zeros(len(share))
        for begin in range(0, len(some), _ROWS_PER_BLOCK):
            part = score[begin : begin + _ROWS_PER_BLOCK] + found
            part -= part.max(axis=1, keepdims=True)
            part /= width
            np.exp(part, out=part)
            total += (1 / part.sum(axis=1)) @ part
        found += width * (wanted - np.log(np.maximum(total / len(some), 1e-12)))
    return found


def sites_of(points: Floats, sites: Floats, weight: Floats) -> Array:
    """The site that each point goes to.

    Parameters
    ----------
    points, sites
        As for :func:`weights`.
    weight
        From there.

    Returns
    -------
    Shape (point,).
    """
    out = np.empty(len(points), np.int64)
    for begin in range(0, len(points), _ROWS_PER_BLOCK):
        rows = slice(begin, begin + _ROWS_PER_BLOCK)
        out[rows] = (points[rows] @ sites.T + weight).argmax(axis=1)
    return out
