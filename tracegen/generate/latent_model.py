"""Parameters of latent routing, from which :mod:`tracegen.generate.latent` draws.

A token's score for expert ``e`` of layer ``l`` is

    bias[l, e] + sum over scales s of factors[s][l, e] . x_s + private[l, e] . x_l + noise

and some of the score of a partner, if it has one (then scaled back to variance one), with
standard normal latents ``x_s`` shared by all layers, and it visits the top-k. ``mixed`` factors
are on latents that are sums of all scales, in proportions of their own: the same numbers then say
which experts go together in a token and which stay together over tokens. Such a sum counts by the
square of what it has over :data:`QUIET`, and not below (then brought back to mean 0 and variance
1): topics are absent from most tokens and strong in a few, and experts that share one go together
more than Gaussian scores of any correlation would let them.

The scales differ in how long a latent lasts: one token, about two (``fast``: a moving average),
some dozens (``slow``: AR(1) within a request), a request, or a run of requests (``drift``: AR(1)
over requests). Noise fills each expert's variance up to one, so a squared factor is a share of what
decides about an expert.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tracegen.trace.arrays import Floats

SCALES = ("token", "fast", "slow", "request", "drift")
"""Spans of a latent, shortest first."""
FAST_KERNEL = (1.0, 1.0, 0.3)
"""Moving average of the fast latents over a token and those before it: correlations 0.62, 0.14
and none after two tokens. Reuse in gpt-oss-20b-decode falls from 0.437 at lag 1 over 0.382 and
0.367 to a slow decline; an AR(1) as steep as that would need twice the variance for it."""
QUIET = 0.5
"""Standard deviations up to which a mixed latent does nothing. Latents of gpt-oss-20b-decode and
of DeepSeek-V2-Lite (law), as their visits show them, are skewed by 1 to 6, this by 3."""
MAX_SHARED = 0.98
"""Largest share of a score's variance that is not noise; all of it would make ties."""


@dataclass(frozen=True)
class LatentModel:
    """Everything that decides latent routing, apart from the seed. Dimensions: layer, expert."""

    moe_layer_index: tuple[int, ...]
    """Decoder layer number of each MoE layer."""
    topk: int
    bias: Floats
    """Popularity, in standard deviations of a score, shape (layer, expert)."""
    factors: dict[str, Floats]
    """By scale: shape (layer, expert, latent of that scale)."""
    private: Floats
    """Factors on latents of one token and one layer, shape (layer, expert, latent)."""
    pairs: npt.NDArray[np.int64]
    """Experts that are chosen together beyond what the factors say, shape (layer, pair, 2)."""
    pair_mixing: Floats
    """Share of the partner's score that is added to each, shape (layer, pair). Scores of a pair
    that correlate by r do so by (2 w + r (1 + w^2)) / (1 + w^2 + 2 w r) afterwards."""
    mixed: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Factors on latents of several scales, shape (layer, expert, latent); no layers for none."""
    shares: Floats = field(default_factory=lambda: np.zeros((0, len(SCALES))))
    """Share of each scale in the variance of each of those, shape (latent, scale); rows sum to
    1, up to rounding."""
    slow: float = 0.98
    """Correlation of the slow latents from token to token."""
    drift: float = 0.98
    """Correlation of the drift latents from request to request."""
    num_types: int = 0
    """Token types (a vocabulary) that token latents are drawn from; 0 for a new one each time."""
    type_exponent: float = 1.0
    """Zipf exponent of the token types' frequencies."""
    prompt_len: tuple[int, ...] = (0,)
    """Equidistant quantiles of the prompt lengths of requests, in tokens."""
    num_tokens: tuple[int, ...] = (512,)
    """Equidistant quantiles of the recorded tokens of a request."""
    num_requests: int = 1
    """Requests of the trace that was fitted."""
    source: dict[str, str] = field(default_factory=dict)
    """Origin of the numbers."""

    @property
    def num_layers(self) -> int:
        """MoE layers."""
        return int(self.bias.shape[0])

    @property
    def num_experts(self) -> int:
        """Routed experts of a layer."""
        return int(self.bias.shape[1])

    @property
    def num_numbers(self) -> int:
        """Numbers in biases, factors and pairs."""
        factors = sum(f.size for f in self.factors.values())
        mixed = self.mixed.size + self.shares.size
        return self.bias.size + factors + mixed + self.private.size + 3 * self.pair_mixing.size

    def loadings(self, layer: int) -> Floats:
        """Factors on all latents that layers share, shape (expert, latent).

        Parameters
        ----------
        layer
            Position among the MoE layers.
        """
        parts = [self.factors[name][layer] for name in SCALES]
        return np.concatenate([*parts, *self.mixed[layer : layer + 1]], axis=1)

    def noise(self) -> Floats:
        """Standard deviation of each expert's own noise, shape (layer, expert)."""
        shared = np.sum([(f**2).sum(axis=2) for f in self.factors.values()], axis=0)
        shared = shared + (self.private**2).sum(axis=2)
        if self.mixed.size:
            shared = shared + (self.mixed**2).sum(axis=2)
        # Rounding of the file may lift a sum over its limit; the rest of noise stays.
        noise: Floats = np.sqrt(np.maximum(1 - shared, 1 - MAX_SHARED))
        return noise


def normal_quantile(share: Floats) -> Floats:
    """Bias that makes a standard normal score positive with this probability.

    Parameters
    ----------
    share
        Of tokens; kept 1e-5 away from none and all.

    Examples
    --------
    >>> normal_quantile(np.array([0.5, 0.975])).round(2).tolist()
    [0.0, 1.96]
    """
    inverse = np.frompyfunc(statistics.NormalDist().inv_cdf, 1, 1)
    return np.asarray(inverse(np.clip(share, 1e-5, 1 - 1e-5)), np.float64)


def sparse(values: Floats) -> Floats:
    """Make mixed latents of standard normal ones: quiet for most, strong for a few.

    Parameters
    ----------
    values
        Standard normal, any shape.

    Returns
    -------
    Of mean 0 and variance 1.

    Examples
    --------
    >>> drawn = sparse(np.random.default_rng(0).standard_normal(10**6))
    >>> round(float(drawn.mean()), 2), round(float(drawn.std()), 2), round(float(drawn.min()), 2)
    (0.0, 1.0, -0.32)
    """
    over = 1 - statistics.NormalDist().cdf(QUIET)
    density = statistics.NormalDist().pdf(QUIET)
    mean = (1 + QUIET**2) * over - QUIET * density
    square = (QUIET**4 + 6 * QUIET**2 + 3) * over - (QUIET**3 + 5 * QUIET) * density
    made: Floats = (np.maximum(values - QUIET, 0) ** 2 - mean) / np.sqrt(square - mean**2)
    return made
