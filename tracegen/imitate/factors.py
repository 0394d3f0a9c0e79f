"""Logistic factor analysis: places of tokens in a space that all layers share.

Whether a token visits an expert is a coin with the log-odds ``bias + factors . place``. Places and
factors are estimated in turn, each by a step of Newton's method on its penalised likelihood: a
place has a standard normal prior, and so has a factor, worth one token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracegen.trace.arrays import Floats

Single = npt.NDArray[np.float32]
"""Fits work in single precision: parameters are rounded to far less in the end."""

_RIDGE = 1.0
_FREE = 1e-3
"""Penalty of a bias: next to none."""
_RARE = 1e-3
"""Load below which a factor's start is not divided by ever less."""
_LONGEST = 1.0
"""Longest step, root mean square over the coordinates: Newton's overshoots far from the optimum."""
_BLOCK = 512
_SUBSPACE = 8
"""Steps of the subspace iteration that finds the start."""


@dataclass
class FactorAnalysis:
    """Logistic factor analysis of visits to columns, which are the experts of all layers."""

    bias: Single
    """Shape (column,)."""
    factors: Single
    """Shape (column, latent)."""
    places: Single
    """Posterior modes, shape (token, latent)."""


def analyse(visits: Single, latents: int, rounds: int) -> FactorAnalysis:
    """Fit factors and places.

    Parameters
    ----------
    visits
        0 or 1, shape (token, column).
    latents
        Dimensions of the space.
    rounds
        Times that places and then factors take a step.
    """
    tokens = len(visits)
    found = FactorAnalysis(*_start(visits, latents), np.zeros((tokens, latents), np.float32))
    by_column = np.ascontiguousarray(visits.T)
    prior = np.full(latents, _RIDGE, np.float32)
    penalty = np.append(prior, np.float32(_FREE))
    one = np.ones((tokens, 1), np.float32)
    for turn in range(rounds):
        for _ in range(2 if turn == 0 else 1):
            found.places, curvature = _step(visits, found.bias, found.factors, found.places, prior)
        _unit_variance(found, curvature)
        known = np.hstack([found.places, one])
        both = np.hstack([found.factors, found.bias[:, None]])
        both, _ = _step(by_column, np.zeros(tokens, np.float32), known, both, penalty)
        found.factors, found.bias = np.ascontiguousarray(both[:, :-1]), both[:, -1].copy()
    found.places, _ = _step(visits, found.bias, found.factors, found.places, prior)
    return found


def _start(visits: Single, latents: int) -> tuple[Single, Single]:
    """Bias, and factors of the correlations of visits as a linear model would have them."""
    load = visits.mean(axis=0).astype(np.float64)
    spread = np.sqrt(np.maximum(load * (1 - load), _RARE))
    covariance = (visits.T @ visits).astype(np.float64) / len(visits) - np.outer(load, load)
    covariance /= np.outer(spread, spread)
    np.fill_diagonal(covariance, 0)
    basis = np.random.default_rng(0).standard_normal((len(load), latents))
    for _ in range(_SUBSPACE):
        basis, _ = np.linalg.qr(covariance @ basis)
    values, vectors = np.linalg.eigh(basis.T @ covariance @ basis)
    # Without the diagonal some values are negative; their latents start small, not at nothing.
    least = 1e-2 * max(float(values[-1]), 1e-6)
    factors = basis @ (vectors * np.sqrt(np.maximum(values, least))) / spread[:, None]
    inside = np.clip(load, 1e-4, 1 - 1e-4)
    bias = np.log(inside / (1 - inside))
    return bias.astype(np.float32), factors.astype(np.float32)


def _step(visits: Single, offset: Single, known: Single, now: Single, penalty: Single) -> tuple[Single, Floats]:
    """One step of Newton's method for each row of coefficients.

    Rows are logistic regressions on the same known values: of shape (row, column) the visits,
    (column,) the offset, (column, coefficient) the known values, (row, coefficient) the
    coefficients now. Also returned is the mean curvature, shape (coefficient, coefficient).
    """
    size = known.shape[1]
    first, second = np.triu_indices(size)
    products = np.ascontiguousarray(known[:, first] * known[:, second])
    out = np.empty_like(now)
    total = np.zeros((size, size))
    for begin in range(0, len(visits), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        chance = probability(now[rows] @ known.T + offset)
        curvature = np.empty((len(chance), size, size), np.float32)
        curvature[:, first, second] = (chance * (1 - chance)) @ products
        curvature[:, second, first] = curvature[:, first, second]
        curvature[:, np.arange(size), np.arange(size)] += penalty
        slope = (visits[rows] - chance) @ known - now[rows] * penalty
        move = np.linalg.solve(curvature, slope[:, :, None])[:, :, 0]
        length = np.sqrt((move**2).mean(axis=1, keepdims=True))
        out[rows] = now[rows] + move * np.minimum(1, _LONGEST / np.maximum(length, 1e-9))
        total += curvature.sum(axis=0)
    return out, total / len(visits)


def probability(odds: Single) -> Single:
    """Chance of these log-odds, which are overwritten.

    Parameters
    ----------
    odds
        Any shape.
    """
    np.clip(odds, -30, 30, out=odds)
    np.negative(odds, out=odds)
    np.exp(odds, out=odds)
    odds += 1
    return np.reciprocal(odds, out=odds)


def _unit_variance(found: FactorAnalysis, curvature: Floats) -> None:
    """Scale latents to variance 1, counting what is uncertain about places."""
    spread = found.places.T @ found.places / np.float32(len(found.places))
    lower = np.linalg.cholesky(spread + np.linalg.inv(curvature))
    found.places = np.linalg.solve(lower, found.places.T).T.astype(np.float32)
    found.factors = (found.factors @ lower).astype(np.float32)
