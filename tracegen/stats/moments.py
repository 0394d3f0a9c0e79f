"""Second moments of routing by time scale, to which a latent model is fitted.

Whether a token visits an expert is a number 0 or 1. Covariances of these numbers within one
token, a few tokens apart, far apart in a request, and between neighbouring requests are sums
of one part per scale of :data:`tracegen.generate.latent_model.SCALES`, each with a known
weight; least squares over the distances separates the parts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracegen.errors import UserError
from tracegen.generate.latent_model import fast_correlation
from tracegen.trace.arrays import Array, Floats

WINDOWS = ((1, 1), (2, 5), (8, 31))
"""Distances in tokens that are pooled: neighbours, a few tokens, the plateau after them."""
REQUESTS_APART = (2, 8)
"""Distances in requests that are pooled; 1 is left out: neighbours may be the same question."""
BLOCK = 40
"""Consecutive tokens of a sampled piece; longer than the last window."""
MAX_BLOCKS = 1500
"""Sampled pieces: 60,000 tokens tell a correlation to 0.004, and take seconds."""
MIN_REQUESTS = 24
"""Requests below which their covariance means nothing."""


@dataclass(frozen=True)
class Pieces:
    """Two runs of consecutive tokens from each request, as rows of a trace."""

    rows: Array
    """Token rows, shape (piece, token of the piece); pieces 2i and 2i + 1 share a request."""

    @property
    def count(self) -> int:
        """Pieces, an even number."""
        return int(self.rows.shape[0])


def pieces(request: Array, position: Array, seed: int) -> Pieces:
    """Choose pieces of the requests that are long enough.

    Parameters
    ----------
    request, position
        Of each token, in any order.
    seed
        Of the choice.

    Raises
    ------
    UserError
        If the trace has too few long requests to tell time scales apart.
    """
    order = np.lexsort((position, request))
    _, begins, counts = np.unique(request[order], return_index=True, return_counts=True)
    long_enough = np.flatnonzero(counts >= 2 * BLOCK)
    if long_enough.size < MIN_REQUESTS:
        msg = (
            f"{long_enough.size} requests of at least {2 * BLOCK} tokens; imitation needs "
            f"{MIN_REQUESTS} to tell what lasts a token from what lasts a request"
        )
        raise UserError(msg)
    stride = -(-2 * long_enough.size // MAX_BLOCKS)
    chosen = long_enough[::stride]
    rng = np.random.default_rng(seed)
    half = counts[chosen] // 2
    first = rng.integers(0, half - BLOCK + 1)
    second = rng.integers(half, counts[chosen] - BLOCK + 1)
    starts = begins[chosen][:, None] + np.stack([first, second], axis=1)
    return Pieces(order[starts.ravel()[:, None] + np.arange(BLOCK)])


def indicators(ids: Array, num_experts: int) -> npt.NDArray[np.float32]:
    """Indicators of the visits of each token to each expert of each layer.

    Parameters
    ----------
    ids
        Shape (layer, token, k); ids of `num_experts` and more are empty slots.
    num_experts
        Of a layer.

    Returns
    -------
    0 or 1, shape (token, layer * expert).
    """
    layers, tokens, _ = ids.shape
    out = np.zeros((tokens, layers, num_experts + 1), np.float32)
    row = np.arange(tokens)[:, None]
    for layer in range(layers):
        out[row, layer, np.minimum(ids[layer].astype(np.int64), num_experts)] = 1
    return np.ascontiguousarray(out[:, :, :num_experts]).reshape(tokens, -1)


def weights(slow: float, drift: float) -> Floats:
    """Share of each scale in a covariance at each distance.

    Parameters
    ----------
    slow, drift
        Correlations of :class:`tracegen.generate.latent_model.LatentModel`.

    Returns
    -------
    Shape (distance, scale); distances as in :func:`covariances`.
    """

    def mean(rho: float, first: int, last: int) -> float:
        return float(np.mean(rho ** np.arange(first, last + 1)))

    def fast(first: int, last: int) -> float:
        return float(np.mean([fast_correlation(apart) for apart in range(first, last + 1)]))

    near = [[0.0, fast(a, b), mean(slow, a, b), 1.0, 1.0] for a, b in WINDOWS]
    far = [0.0, 0.0, 0.0, 1.0, 1.0]
    apart = [0.0, 0.0, 0.0, 0.0, mean(drift, *REQUESTS_APART)]
    return np.array([[1.0] * 5, *near, far, apart])


def covariances(present: npt.NDArray[np.float32], count: int) -> tuple[Floats, Floats]:
    """Means, and covariances at each distance.

    Parameters
    ----------
    present
        From :func:`indicators`, pieces one after another.
    count
        Pieces.

    Returns
    -------
    Means, shape (expert of a layer,); covariances, shape (distance, same, same): within a
    token, at each of :data:`WINDOWS`, between the pieces of a request, between requests.
    """
    width = present.shape[1]
    single = np.float32  # of counts: numpy before 2 divides by a large whole number in doubles
    mean = present.mean(axis=0)
    centred = (present - mean).reshape(count, BLOCK, width)
    flat = centred.reshape(-1, width)
    found = [flat.T @ flat / single(flat.shape[0])]
    running = np.zeros((count, BLOCK + 1, width), np.float32)
    np.cumsum(centred, axis=1, out=running[:, 1:])
    for first, last in WINDOWS:
        now = centred[:, last:].reshape(-1, width)
        before = running[:, last - first + 1 : BLOCK - first + 1] - running[:, : BLOCK - last]
        product = now.T @ before.reshape(-1, width) / single(now.shape[0] * (last - first + 1))
        found.append((product + product.T) / 2)
    by_piece = centred.mean(axis=1)
    one, other = by_piece[0::2], by_piece[1::2]
    product = one.T @ other / single(one.shape[0])
    found.append((product + product.T) / 2)
    request = (one + other) / 2
    first, last = REQUESTS_APART
    total = np.zeros((width, width), np.float32)
    for apart in range(first, last + 1):
        product = request[apart:].T @ request[:-apart] / single(request.shape[0] - apart)
        total += (product + product.T) / (2 * (last - first + 1))
    return mean.astype(np.float64), np.stack([*found, total]).astype(np.float64)


def by_scale(found: Floats, weight: Floats) -> Floats:
    """Split covariances into the part of each scale, entry by entry.

    Parameters
    ----------
    found
        From :func:`covariances`.
    weight
        From :func:`weights`.

    Returns
    -------
    Shape (scale, expert of a layer, expert of a layer).
    """
    return np.tensordot(np.linalg.pinv(weight), found, 1)
