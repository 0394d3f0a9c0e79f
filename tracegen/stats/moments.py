"""Second moments of routing by time scale, to which a latent model is fitted.

Whether a token visits an expert is a number 0 or 1. Covariances of these numbers within one
token, a few tokens apart, far apart in a request, and between neighbouring requests are sums
of one part per scale of :data:`tracegen.generate.latent_model.SCALES`, each with a known
weight; least squares over the distances separates the parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracegen.errors import UserError
from tracegen.generate.latent_model import fast_correlation
from tracegen.trace.arrays import Array, Floats, place_in_group

WINDOWS = ((1, 1), (2, 5), (8, 31))
"""Distances in tokens that are pooled: neighbours, a few tokens, the plateau after them."""
REQUESTS_APART = (2, 8)
"""Distances in requests that are pooled; 1 is left out: neighbours may be the same question."""
BLOCK = 40
"""Consecutive tokens of a piece; longer than the last window."""
MAX_BLOCKS = 1500
"""Pieces: 60,000 tokens tell a correlation to 0.004, and take seconds."""
MIN_REQUESTS = 24
"""Requests below which their covariance means nothing."""
_CURVE = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Distances at which persistence is looked at."""
MAX_REUSES = 5000
"""Token pairs of each distance."""
_PERSISTENCES = (0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98)
"""Correlations from token to token that are told apart: latents that last 5 to 50 tokens."""


@dataclass(frozen=True)
class Pieces:
    """Runs of consecutive tokens, at least two from each request, as rows of a trace."""

    rows: Array
    """Token rows, shape (piece, token of the piece); pieces of a request follow one another."""
    request: Array
    """Number of each piece's request, from 0 and ascending, shape (piece,)."""


def pieces(request: Array, position: Array, seed: int) -> Pieces:
    """Choose pieces of the requests that are long enough, all of them where there are few.

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
    each = np.minimum(counts[chosen] // BLOCK, max(2, MAX_BLOCKS // chosen.size))
    number = np.repeat(np.arange(chosen.size), each)
    # Each piece lies anywhere in its equal share of the request.
    share, place = counts[chosen] / each, place_in_group(each)
    low = np.ceil(place * share[number]).astype(np.int64)
    high = np.floor((place + 1) * share[number]).astype(np.int64) - BLOCK
    offset = np.random.default_rng(seed).integers(low, np.maximum(high, low) + 1)
    offset = np.minimum(offset, counts[chosen][number] - BLOCK)
    starts = begins[chosen][number] + offset
    return Pieces(order[starts[:, None] + np.arange(BLOCK)], number)


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


def covariances(present: npt.NDArray[np.float32], request: Array) -> tuple[Floats, Floats]:
    """Means, and covariances at each distance.

    Parameters
    ----------
    present
        From :func:`indicators`, pieces one after another.
    request
        Of each piece, as in :class:`Pieces`.

    Returns
    -------
    Means, shape (expert of a layer,); covariances, shape (distance, same, same): within a
    token, at each of :data:`WINDOWS`, between the pieces of a request, between requests.
    """
    mean, products = _products(present, request)
    found = []
    for now, other, count in products:
        product = now.T @ other / count
        found.append((product + product.T) / 2)
    return mean.astype(np.float64), np.stack(found).astype(np.float64)


def variances(present: npt.NDArray[np.float32], request: Array) -> tuple[Floats, Floats, Floats]:
    """Means, covariances within a token, and the diagonals alone of those at each distance.

    Parameters
    ----------
    present, request
        As for :func:`covariances`, of which this takes a fifth of the time.

    Returns
    -------
    Means, shape (expert of a layer,); covariances within a token, shape (same, same); the
    covariance of each column with itself, shape (distance, same), in the order of
    :func:`covariances`.
    """
    mean, products = _products(present, request)
    found: list[Floats] = []
    within: Floats = np.zeros(0)
    for now, other, count in products:
        if not found:
            within = (now.T @ other / count).astype(np.float64)
            found.append(np.diagonal(within))
        else:
            found.append(np.einsum("tc,tc->c", now, other).astype(np.float64) / float(count))
    return mean.astype(np.float64), within, np.stack(found)


_Single = npt.NDArray[np.float32]


def _products(
    present: _Single, request: Array
) -> tuple[_Single, Iterator[tuple[_Single, _Single, np.float32]]]:
    """Mean, and for each distance two matrices and a number: the covariance is their product.

    Rows of one are deviations, rows of the other mean deviations at that distance.
    """
    width, count = present.shape[1], request.size
    single = np.float32  # of counts: numpy before 2 divides by a large whole number in doubles
    mean = present.mean(axis=0)
    centred = (present - mean).reshape(count, BLOCK, width)

    def generate() -> Iterator[tuple[_Single, _Single, np.float32]]:
        flat = centred.reshape(-1, width)
        yield flat, flat, single(flat.shape[0])
        running = np.zeros((count, BLOCK + 1, width), np.float32)
        np.cumsum(centred, axis=1, out=running[:, 1:])
        for first, last in WINDOWS:
            now = centred[:, last:].reshape(-1, width)
            before = running[:, last - first + 1 : BLOCK - first + 1] - running[:, : BLOCK - last]
            yield now, before.reshape(-1, width), single(now.shape[0] * (last - first + 1))
        by_piece = running[:, -1] / single(BLOCK)
        others, partners = _far(by_piece, request)
        yield by_piece[partners > 0], others[partners > 0], single((partners > 0).sum())
        by_request, total = _by_request(by_piece, request)
        first, last = REQUESTS_APART
        sums = np.concatenate([np.zeros((1, width), np.float32), np.cumsum(by_request, axis=0)])
        later = np.arange(first, total)
        begin = np.maximum(later - last, 0)
        before = (sums[later - first + 1] - sums[begin]) / (later - first + 1 - begin)[:, None]
        yield by_request[later], before.astype(np.float32), single(later.size)

    return mean, generate()


def _by_request(by_piece: _Single, request: Array) -> tuple[_Single, int]:
    """Mean over the pieces of each request; the number of requests."""
    begins = np.flatnonzero(np.diff(request, prepend=-1))
    counts = np.diff(begins, append=request.size)
    sums = np.add.reduceat(by_piece, begins, axis=0)
    return (sums / counts[:, None]).astype(np.float32), begins.size


def _far(by_piece: _Single, request: Array) -> tuple[_Single, Array]:
    """Mean over the pieces of the same request that are not next to each, and their number.

    A request of two pieces has no others: there the neighbour counts, which lies in the other
    half.
    """
    begins = np.flatnonzero(np.diff(request, prepend=-1))
    counts = np.diff(begins, append=request.size)
    sums = np.add.reduceat(by_piece, begins, axis=0)[request] - by_piece
    partners = counts[request] - 1
    near = np.zeros_like(by_piece)
    same = (np.diff(request) == 0) & (counts[request[1:]] > 2)
    near[1:][same] += by_piece[:-1][same]
    near[:-1][same] += by_piece[1:][same]
    partners[1:] -= same
    partners[:-1] -= same
    mean = (sums - near) / np.maximum(partners, 1)[:, None]
    return mean.astype(np.float32), partners


def persistence(ids: Array, request: Array, num_experts: int, seed: int) -> float:
    """Correlation from token to token of what lasts longer than two and shorter than a request.

    Reuse at a distance is a sum of what lasts about two tokens, of something that falls with a
    power of the distance, and of what lasts; non-negative least squares for each of a few powers.

    Parameters
    ----------
    ids
        Shape (layer, token, k), tokens of a request one after another.
    request
        Of each token, shape (token,).
    num_experts
        Of a layer; ids from there on are empty slots.
    seed
        Of the sample of token pairs.
    """
    rng = np.random.default_rng(seed)
    load = np.stack([np.bincount(one.ravel(), minlength=num_experts)[:num_experts] for one in ids])
    by_chance = float(((load / request.size) ** 2).sum())

    def reuse(later: Array, earlier: Array) -> tuple[float, Array]:
        """What pairs of tokens of one request have in common beyond chance; their distances."""
        pairs = np.flatnonzero(request[later] == request[earlier])
        pairs = rng.choice(pairs, min(pairs.size, MAX_REUSES), replace=False)
        one, other = ids[:, later[pairs]], ids[:, earlier[pairs]]
        same = (one[:, :, :, None] == other[:, :, None, :]).any(axis=3) & (one < num_experts)
        shared = float(same.sum()) / max(pairs.size, 1) - by_chance
        return shared, np.abs(later[pairs] - earlier[pairs])

    row = np.arange(request.size)
    # Tokens anywhere in a request, by shuffling each; they count as much as a third of the curve.
    mixed = np.lexsort((rng.random(request.size), request))
    found = [reuse(row[lag:], row[:-lag]) for lag in _CURVE] + [reuse(mixed[1:], mixed[:-1])]
    weight = np.sqrt([1.0] * len(_CURVE) + [len(_CURVE) / 3])
    wanted = weight * np.array([shared for shared, _ in found])
    fast = np.array([*(fast_correlation(lag) for lag in _CURVE), 0.0])

    def misses(rho: float) -> float:
        slow = np.array([float(np.mean(rho**apart)) if apart.size else 0.0 for _, apart in found])
        parts = np.array([fast, slow, np.ones(weight.size)]) * weight
        return _least_squares_misses(parts.T, wanted)

    return min(_PERSISTENCES, key=misses)


def _least_squares_misses(parts: Floats, wanted: Floats) -> float:
    """Sum of squares that non-negative amounts of a few parts leave: the best of all subsets."""
    best = float(wanted @ wanted)
    for subset in range(1, 2 ** parts.shape[1]):
        used = parts[:, [column for column in range(parts.shape[1]) if subset >> column & 1]]
        amounts = np.linalg.lstsq(used, wanted, rcond=None)[0]
        if (amounts >= 0).all():
            best = min(best, float(((used @ amounts - wanted) ** 2).sum()))
    return best


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
