"""Weights of draws that give a wanted load."""

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Floats

NODES = 64
"""Points of the Gauss-Legendre rule over arrival times."""
ITERATIONS = 6
"""Corrections of the weights; each shrinks the error about tenfold."""
ALWAYS = 1 - 1e-9
"""An expert that every token visits would need an infinite weight; this is near enough."""


def weights_for_shares(shares: Floats, topk: int) -> Floats:
    """Weights of successive draws without replacement whose expected load is the given one.

    Drawing without replacement flattens a load: no expert can be drawn twice. Were the
    race of :mod:`tracegen.generate.draw` stopped at a fixed time, an expert that a
    fraction p of the tokens visits would need ``-log(1 - p)``; starting there, the
    weights are corrected by what :func:`visit_probability` says they give.

    Parameters
    ----------
    shares
        Proportional to the token-expert pairs of each expert, shape (expert,).
    topk
        Experts per token.

    Returns
    -------
    Shape (expert,); zero where the share is.

    Raises
    ------
    UserError
        If a share is larger than 1 / topk: a token visits an expert once.
    """
    wanted: Floats = shares / shares.sum() * topk
    worst = int(np.argmax(wanted))
    if wanted[worst] > 1 + 1e-9:
        msg = (
            f"expert {worst} would take {wanted[worst] / topk:.3f} of all token-expert pairs; "
            f"with top-{topk} no expert can take more than 1/{topk}"
        )
        raise UserError(msg)
    if np.ptp(wanted) == 0:
        return np.ones_like(wanted)
    target: Floats = -np.log1p(-np.minimum(wanted, ALWAYS))
    weights = target.copy()
    used = target > 0
    for _ in range(ITERATIONS):
        given = np.minimum(visit_probability(weights, topk), ALWAYS)
        weights[used] *= target[used] / -np.log1p(-given[used])
    return weights


def visit_probability(weights: Floats, topk: int) -> Floats:
    """Probability that a token visits each expert, for draws without replacement.

    With independent exponential arrival times of rate ``w``, expert e is among the
    first k if fewer than k others arrive before it: the integral over its arrival time of the
    Poisson-binomial distribution of the others' count.

    Parameters
    ----------
    weights
        Non-negative, more than ``topk`` of them positive, shape (expert,).
    topk
        Experts per token.

    Returns
    -------
    Shape (expert,); sums to ``topk``.

    Examples
    --------
    >>> p = np.array([0.5, 0.3, 0.2])  # second draw of two, by hand
    >>> float(visit_probability(p, 2)[0]).__round__(6) == round(0.5 + 0.3 * 5 / 7 + 0.2 * 5 / 8, 6)
    True
    """
    if np.count_nonzero(weights) <= topk:
        certain: Floats = (weights > 0).astype(np.float64)
        return certain
    nodes, factor = np.polynomial.legendre.leggauss(NODES)
    # Times on the scale on which k experts arrive, by t = -scale log(1 - v), 0 < v < 1.
    v = (nodes + 1) / 2
    scale = _time_of_arrivals(weights, topk)
    times = -scale * np.log1p(-v)
    measure = factor / 2 * scale / (1 - v)
    arrived = -np.expm1(-np.outer(weights, times))  # (expert, node)
    before = _counts(arrived, topk)
    after = _counts(arrived[::-1], topk)[::-1]
    # Fewer than k among all others: i before e in the list, at most k - 1 - i behind it.
    at_most = np.cumsum(after, axis=2)[:, :, ::-1]
    fewer = np.einsum("eqi,eqi->eq", before, at_most)
    density = weights[:, None] * (1 - arrived)
    probability: Floats = (density * fewer) @ measure
    scaled: Floats = np.minimum(probability * topk / probability.sum(), 1.0)
    return scaled


def _time_of_arrivals(weights: Floats, topk: int) -> float:
    """Time by which ``topk`` experts are expected to have arrived."""
    low, high = 0.0, 1.0 / float(weights.max())
    while -np.expm1(-weights * high).sum() < topk:
        low, high = high, 2 * high
        if high > 1e30:
            break
    for _ in range(50):
        middle = (low + high) / 2
        if -np.expm1(-weights * middle).sum() < topk:
            low = middle
        else:
            high = middle
    return high


def _counts(arrived: Floats, topk: int) -> Floats:
    """Distribution of the number of arrivals among the experts before each, up to k - 1.

    Parameters
    ----------
    arrived
        Probability to have arrived, shape (expert, node).
    topk
        Counts 0 to topk - 1 are kept.

    Returns
    -------
    Shape (expert, node, count).
    """
    num_experts, num_nodes = arrived.shape
    counts = np.zeros((num_experts, num_nodes, topk))
    counts[0, :, 0] = 1.0
    for expert in range(1, num_experts):
        p = arrived[expert - 1][:, None]
        counts[expert] = counts[expert - 1] * (1 - p)
        counts[expert, :, 1:] += counts[expert - 1, :, :-1] * p
    return counts
