"""Parameters of latent routing by kinds of tokens, and the latents that they give.

A token's score for expert ``e`` of layer ``l`` is

    bias[l, e] + factors[l, e] . (kinds[k] + rest) + noise

with standard normal noise, and it visits the top-k. All layers share the token's kind ``k`` and its
rest, which is standard normal in every latent. Kinds are what no Gaussian latents have: topics and
words that are absent from most tokens, and that bring many experts with them in all layers.

A kind is drawn by a Gaussian field of a few dimensions that lasts as topics and passages do
(:mod:`tracegen.generate.fields`): kinds are sites in its space, and each has the cell that gives it
its share of tokens (:mod:`tracegen.generate.transport`). The rest is a field, too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tracegen.generate import fields, transport
from tracegen.generate.fields import Spectrum, TokenLayout
from tracegen.trace.arrays import Array, Floats


@dataclass(frozen=True)
class KindModel:
    """Everything that decides routing by kinds, apart from the seed."""

    moe_layer_index: tuple[int, ...]
    """Decoder layer number of each MoE layer."""
    topk: int
    bias: Floats
    """Popularity, in standard deviations of the noise, shape (layer, expert)."""
    factors: Floats
    """Shape (layer, expert, latent)."""
    kinds: Floats
    """Place of each kind, shape (kind, latent)."""
    tokens: Array
    """Tokens of each kind in the sample that was fitted, shape (kind,)."""
    axes: Floats
    """From latents to the space of the field that draws kinds, shape (dimension, latent)."""
    spectrum: Spectrum
    """Of the field that draws kinds and, in the dimensions after it, of the rest."""
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
        """Numbers in the parameter file, apart from the lengths of requests."""
        field_ = self.axes.size + self.spectrum.shares.size + self.spectrum.lean.size
        return self.bias.size + self.factors.size + self.kinds.size + self.tokens.size + field_

    @property
    def share(self) -> Floats:
        """Share of each kind in the tokens."""
        share: Floats = self.tokens / self.tokens.sum()
        return share


def latents(model: KindModel, request: Array, position: Array, seed: int, *, balance: bool = False) -> Floats:
    """Latents of every token.

    Parameters
    ----------
    model
        Kinds, and how long they last.
    request, position
        Of each token, in any order, shape (token,).
    seed
        Non-negative.
    balance
        Whether this trace has the mix of kinds, and the drift, that the parameters describe, and
        not a chance one: for a trace of about as many requests as were fitted.

    Returns
    -------
    Shape (token, latent).
    """
    layout = TokenLayout.of(request, position)
    drawn = fields.draw(model.spectrum, layout, seed, balance=balance)
    kind = choose(model, drawn, balance=balance)
    out = np.empty((request.size, model.kinds.shape[1]))
    out[layout.order] = model.kinds[kind] + drawn[:, len(model.axes) :]
    return out


def choose(model: KindModel, drawn: Floats, *, balance: bool) -> Array:
    """Kind of each token.

    Parameters
    ----------
    model
        Kinds.
    drawn
        A field; its first dimensions decide, shape (token, dimension or more).
    balance
        Whether these tokens get the kinds in their shares, rather than any number of tokens.

    Returns
    -------
    Shape (token,).
    """
    dims = len(model.axes)
    sites = model.kinds @ model.axes.T
    points = np.ascontiguousarray(drawn[:, :dims])
    sample = points
    if not balance:
        rng = np.random.Generator(np.random.PCG64(0))
        sample = rng.standard_normal((transport.POINTS, dims))
    return transport.sites_of(points, sites, transport.weights(sample, sites, model.share))
