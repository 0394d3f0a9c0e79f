"""Gaussian fields over tokens: sums of parts that last from one token to a run of requests.

A part that lasts some tokens is the mean of independent normals over a window of that many tokens
of the request (at its beginning over those there are), scaled to variance one: its correlation
falls in a straight line and is none beyond the window. Windows less than a factor of three apart
make any slower decline by their sum.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from tracegen.generate.latent_model import normal_quantile
from tracegen.trace.arrays import Array, Floats

WINDOWS = (1, 2, 5, 14, 40, 120)
"""Tokens that a part lasts."""
SPANS = (*(f"window_{tokens}" for tokens in WINDOWS), "request", "drift")
"""Parts of a field, shortest first; the last is a run of requests: the mix of topics drifts."""
_CHUNK = 2**14
"""Tokens drawn at a time; whole requests."""
_FIELD = 2**31 + 32
"""First key of the streams; no layer and no other purpose has it."""


@dataclass(frozen=True)
class TokenLayout:
    """Groups of tokens. Rows are in the order of requests, then of positions."""

    order: Array
    """Row of the trace for each row here, shape (token,)."""
    ids: Array
    """Number of each request, ascending, shape (request,)."""
    counts: Array
    """Tokens of each request, shape (request,)."""
    run: Array
    """First row of the run of consecutive positions that a row is in, shape (token,)."""

    @staticmethod
    def of(request: Array, position: Array) -> TokenLayout:
        """Layout of tokens in any order.

        Parameters
        ----------
        request, position
            Of each token, shape (token,).
        """
        order = np.lexsort((position, request))
        ids, begins, counts = np.unique(request[order], return_index=True, return_counts=True)
        starts = np.diff(position[order].astype(np.int64), prepend=-2) != 1
        starts[begins] = True
        firsts = np.flatnonzero(starts)
        run = np.repeat(firsts, np.diff(firsts, append=order.size))
        return TokenLayout(order, ids, counts, run)


@dataclass(frozen=True)
class Spectrum:
    """Durations of each dimension of a field."""

    shares: Floats
    """Of each span in the variance, shape (dimension, span); rows sum to 1."""
    lean: Floats
    """Slope of the request's part on the request's length, shape (dimension,): both in standard
    deviations, lengths by rank as normal scores. Its square is a part of the request's share."""
    drift: float
    """Correlation of the drift from request to request."""

    def limit(self) -> Spectrum:
        """Limit lasting shares to a sum of 1 per dimension; the single token's span gets the rest."""
        lasting = np.maximum(self.shares[:, 1:], 0)
        lasting = lasting / np.maximum(lasting.sum(axis=1, keepdims=True), 1)
        most = np.sqrt(lasting[:, -2])
        shares = np.column_stack([1 - lasting.sum(axis=1), lasting])
        return dataclasses.replace(self, shares=shares, lean=np.clip(self.lean, -most, most))


def draw(spectrum: Spectrum, layout: TokenLayout, seed: int, *, balance: bool) -> Floats:
    """A field over the tokens of a trace.

    Parameters
    ----------
    spectrum
        How long it lasts.
    layout
        Of the tokens.
    seed
        Non-negative. Each request has a stream of its own.
    balance
        Whether the parts that requests have in common have the moments that the spectrum says in
        this trace: mean 0, variance and correlation at every distance. A trace of few requests
        has few independent values of them, and would have a chance mix of topics otherwise.
        Without it, more requests extend the field of fewer.

    Returns
    -------
    Mean 0, variance 1; shape (token, dimension), in the rows of the layout.
    """
    dims, tokens = len(spectrum.shares), layout.run.size
    rngs = [_stream(seed, int(number)) for number in layout.ids]
    topics = [rng.standard_normal((3, dims)) for rng in rngs]
    if balance:
        of_request = _balanced_topics(spectrum, layout.counts, _stream(seed))
    else:
        of_request = _topics(spectrum, np.reshape(topics, (-1, 3, dims)))
    amount = np.sqrt(np.maximum(spectrum.shares, 0)).T
    out = np.empty((tokens, dims))
    ends = np.cumsum(layout.counts)
    first, begin = 0, 0
    while first < layout.ids.size:
        last = max(int(np.searchsorted(ends, begin + _CHUNK, side="right")), first + 1)
        end = int(ends[last - 1])
        parts = zip(rngs[first:last], layout.counts[first:last], strict=True)
        noise = np.concatenate([rng.standard_normal((n, len(WINDOWS), dims)) for rng, n in parts])
        rows = slice(begin, end)
        out[rows] = np.repeat(of_request[first:last], layout.counts[first:last], axis=0)
        for span, window in enumerate(WINDOWS):
            mean = _window_sums(noise[:, span], layout.run[rows] - begin, window)
            out[rows] += amount[span] * mean
        first, begin = last, end
    return out


def _stream(seed: int, *key: int) -> np.random.Generator:
    """Stream of one request, or of all; PCG64 by name, for numpy may change its default."""
    sequence = np.random.SeedSequence(seed, spawn_key=(_FIELD, *key))
    return np.random.Generator(np.random.PCG64(sequence))


def _window_sums(noise: Floats, run: Array, window: int) -> Floats:
    """Sum over the last tokens of a run, scaled to variance 1."""
    if window == 1:
        return noise
    after = np.arange(1, run.size + 1)
    begin = np.maximum(run, after - window)
    sums = np.concatenate([np.zeros((1, noise.shape[1])), np.cumsum(noise, axis=0)])
    scaled: Floats = (sums[after] - sums[begin]) / np.sqrt(after - begin)[:, None]
    return scaled


def _topics(spectrum: Spectrum, noise: Floats) -> Floats:
    """Factors that requests share, shape (request, dimension); lengths are drawn, too."""
    own, drift = _request_shares(spectrum)
    runs = noise[:, 1].copy()
    innovation = math.sqrt(1 - spectrum.drift**2)
    for request in range(1, len(runs)):
        runs[request] = spectrum.drift * runs[request - 1] + innovation * runs[request]
    lengths = noise[:, 2, :1] * spectrum.lean
    topics: Floats = np.sqrt(own) * noise[:, 0] + np.sqrt(drift) * runs + lengths
    return topics


def _balanced_topics(spectrum: Spectrum, counts: Array, rng: np.random.Generator) -> Floats:
    """Likewise, with exactly the moments of the spectrum, weighted by tokens.

    Random phases of prescribed amplitudes: the surrogate data of Theiler et al. (1992). Every
    series has the wanted correlation with itself at every distance, around the ring of requests.
    """
    own, drift = _request_shares(spectrum)
    weight = counts / max(counts.sum(), 1)
    power = own + np.outer(drift_power(spectrum.drift, counts.size), drift)
    length = _standard(normal_scores(counts)[:, None], weight)
    series = _series(power, counts.size, rng)
    # The slope alone says how topics go with lengths: their mean over requests, each the same,
    # differs from that over tokens by nothing else.
    few = _standard(1 / np.maximum(counts, 1)[:, None], weight)
    few = _standard(few - length * (weight @ (length * few)), weight)
    for known in (length, few):
        series -= known * (weight @ (known * series))
    topics: Floats = np.sqrt(own + drift) * _standard(series, weight) + length * spectrum.lean
    return topics


def _request_shares(spectrum: Spectrum) -> tuple[Floats, Floats]:
    """Variance of what requests have by themselves, beyond their length, and of the drift."""
    return np.maximum(spectrum.shares[:, -2] - spectrum.lean**2, 0), spectrum.shares[:, -1]


def _standard(values: Floats, weight: Floats) -> Floats:
    """Weighted mean 0 and variance 1; zeros where all values are the same."""
    centred = values - weight @ values
    scaled: Floats = centred / np.sqrt(np.maximum(weight @ centred**2, 1e-300))
    return np.where(np.abs(centred).max(axis=0, initial=0) > 1e-12, scaled, 0.0)


def drift_power(drift: float, requests: int) -> Floats:
    """Power spectrum of an AR(1) over requests without its mean, shape (request,).

    Parameters
    ----------
    drift
        Correlation from request to request.
    requests
        Length of the series.

    Returns
    -------
    By frequency, mean 1 over all but the first, which is 0.
    """
    angle = 2 * np.pi * np.arange(requests) / max(requests, 1)
    power = (1 - drift**2) / (1 - 2 * drift * np.cos(angle) + drift**2)
    power[:1] = 0
    scaled: Floats = power * (requests - 1) / max(float(power.sum()), 1e-300)
    return scaled


def _series(power: Floats, length: int, rng: np.random.Generator) -> Floats:
    """Real series of these powers and random phases, shape (length, dimension)."""
    half = length // 2 + 1
    phase = rng.uniform(0, 2 * np.pi, (half, power.shape[1]))
    amplitude = np.sqrt(power[:half]) * np.exp(1j * phase)
    amplitude[0] = 0
    if length % 2 == 0:
        # The highest frequency has no phase, only a sign.
        amplitude[-1] = np.sqrt(power[half - 1]) * np.where(phase[-1] < np.pi, 1.0, -1.0)
    series: Floats = np.fft.irfft(amplitude, length, axis=0)
    return series


def normal_scores(values: Array) -> Floats:
    """Quantiles of the standard normal distribution at the ranks of values; ties share theirs.

    Parameters
    ----------
    values
        Shape (value,).
    """
    _, which, ties = np.unique(values, return_inverse=True, return_counts=True)
    middle = np.cumsum(ties) - ties / 2
    return normal_quantile(middle[which.ravel()] / max(values.size, 1))


def correlations(counts: Array, distances: Array) -> Floats:
    """Mean correlation of each window's part over token pairs of a request, by distance.

    Parameters
    ----------
    counts
        Tokens of each request, shape (request,).
    distances
        In tokens, shape (distance,).

    Returns
    -------
    Shape (distance, window); every pair counts the same. No pairs make 0.
    """
    longest = int(counts.max(initial=0))
    alive = np.searchsorted(np.sort(counts), np.arange(longest + 1), side="right")
    alive = counts.size - alive  # requests with more than so many tokens
    out = np.zeros((len(distances), len(WINDOWS)))
    for row, distance in enumerate(distances):
        early = np.arange(max(longest - int(distance), 0))
        late = early + distance
        weight = alive[late] / max(int(alive[late].sum()), 1)
        for column, window in enumerate(WINDOWS):
            before = np.maximum(late - window + 1, 0)
            shared = np.maximum(early - before + 1, 0)
            size = np.sqrt(np.minimum(early + 1, window) * np.minimum(late + 1, window))
            out[row, column] = weight @ (shared / size)
    return out


def partners_at(counts: Array) -> Floats:
    """Chance of each distance between a token and another one of its request.

    Parameters
    ----------
    counts
        Tokens of each request.

    Returns
    -------
    From a distance of 1 on, shape (distance,): every token counts the same, and so does each
    of its partners.
    """
    out = np.zeros(max(int(counts.max(initial=0)) - 1, 0))
    for count in counts[counts > 1].tolist():
        out[: count - 1] += 2 * np.arange(count - 1, 0, -1) / (count - 1)
    scaled: Floats = out / max(float(out.sum()), 1e-300)
    return scaled
