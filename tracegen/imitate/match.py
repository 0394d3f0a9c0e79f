"""Moment matching by stochastic approximation: simulate, compare, correct by the difference.

Loads are met by popularity, co-activation by how little noise decides in a layer, and reuse by how
much lasts how long (the idea of NORTA, Cario and Nelson 1997: correct what goes in until what
comes out is right).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tracegen.generate.latent_draw import route_layers
from tracegen.generate.latent_kinds import KindModel, latents
from tracegen.generate.latent_model import normal_quantile
from tracegen.imitate.durations import Ruler, reuse
from tracegen.imitate.tokens import Tokens, some_requests
from tracegen.stats.sample import indicators
from tracegen.trace.arrays import Floats

SIMULATED = 40_000
"""Tokens of a simulation."""
_STEP = 0.7
"""Share of a difference that is corrected at once; 1 oscillates."""


def match(
    model: KindModel,
    tokens: Tokens,
    *,
    rounds: int,
    seed: int,
    progress: Callable[[], object] | None,
) -> KindModel:
    """Correct popularity, the strength of layers and how long things last by simulation.

    Parameters
    ----------
    model
        Kinds, and how long they last.
    tokens
        Of the real trace.
    rounds
        Simulations.
    seed
        Of the first; each has one of its own.
    progress
        Called after each.
    """
    few = some_requests(tokens, SIMULATED)
    real_ruler = Ruler(tokens.counts, model.spectrum.drift)
    ruler = Ruler(few.counts, model.spectrum.drift)
    load = _load(tokens)
    pairs = _pair_spread(tokens)
    lasting = _parts(real_ruler, tokens, seed)
    for turn in range(rounds):
        drawn = latents(model, few.request, few.position, seed + 11 + turn, balance=True)
        ids = route_layers(model, drawn.astype(np.float32), seed + 11 + turn)
        ours = dataclasses.replace(few, ids=ids)
        # Half steps at the end average the noise of single simulations.
        step = _STEP if turn < 0.6 * rounds else _STEP / 2
        model = _last(model, lasting, _parts(ruler, ours, seed), step)
        model = _popular(model, load, _load(ours), step)
        model = _strong(model, pairs, _pair_spread(ours), step)
        if progress is not None:
            progress()
    return model


def _load(tokens: Tokens) -> Floats:
    """Share of tokens that visit each expert, shape (layer, expert)."""
    width = tokens.num_experts
    visits = [np.bincount(one.ravel(), minlength=width)[:width] for one in tokens.ids]
    load: Floats = np.stack(visits) / tokens.ids.shape[1]
    return load


def _pair_spread(tokens: Tokens) -> Floats:
    """Standard deviation over pairs of experts of how their visits correlate, shape (layer,)."""
    rows = np.arange(0, tokens.ids.shape[1], -(-tokens.ids.shape[1] // SIMULATED))
    upper = np.triu_indices(tokens.num_experts, 1)
    found = []
    for layer in range(len(tokens.ids)):
        visits = indicators(tokens.ids[layer : layer + 1, rows], tokens.num_experts)
        load = visits.mean(axis=0).astype(np.float64)
        covariance = (visits.T @ visits).astype(np.float64) / len(rows) - np.outer(load, load)
        spread = np.sqrt(np.maximum(load * (1 - load), 1e-12))
        found.append((covariance / np.outer(spread, spread))[upper].std())
    return np.array(found)


def _parts(ruler: Ruler, tokens: Tokens, seed: int) -> Floats:
    """Reuse by how long what causes it lasts, shape (span but for the single token,)."""
    curve = reuse(tokens.ids, tokens.counts, tokens.num_experts, seed)
    by_span: Floats = ruler.split(curve[:, None])[0]
    return by_span


def _last(model: KindModel, real: Floats, ours: Floats, step: float) -> KindModel:
    """Let every span have more or less, in all dimensions alike."""
    # How much of what requests have in common is drift, places have told from all requests; a
    # simulation of some has few independent values of it.
    pooled = np.array([*real[:-2], real[-2:].sum()]), np.array([*ours[:-2], ours[-2:].sum()])
    real, ours = (np.append(one, one[-1]) for one in pooled)
    least = 0.05 * real[:-1].sum()
    grow = np.clip((real + least) / (ours + least), 0.5, 2) ** step
    spectrum = model.spectrum
    shares = np.column_stack([spectrum.shares[:, :1], spectrum.shares[:, 1:] * grow])
    return dataclasses.replace(model, spectrum=dataclasses.replace(spectrum, shares=shares).limit())


def _popular(model: KindModel, real: Floats, ours: Floats, step: float) -> KindModel:
    """Move popularity by the difference of loads, in deviations of the whole score."""
    centred = model.kinds - model.share @ model.kinds
    spread = (centred * model.share[:, None]).T @ centred + np.eye(len(model.kinds.T))
    deviation = np.sqrt(1 + ((model.factors @ spread) * model.factors).sum(axis=2))
    move = deviation * (normal_quantile(real) - normal_quantile(ours))
    return dataclasses.replace(model, bias=model.bias + step * move)


def _strong(model: KindModel, real: Floats, ours: Floats, step: float) -> KindModel:
    """Let noise decide less in layers whose experts go together too little."""
    grow = np.clip(real / np.maximum(ours, 1e-9), 0.5, 2) ** (2 * step)
    return dataclasses.replace(
        model,
        factors=model.factors * grow[:, None, None],
        bias=model.bias * grow[:, None],
    )
