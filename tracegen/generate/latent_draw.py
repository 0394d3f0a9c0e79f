"""Drawing latents and routing from a :class:`tracegen.generate.latent_model.LatentModel`.

Streams are keyed by request and by layer: a trace with more requests extends one with fewer, and a
layer is the same however many there are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tracegen.generate.latent_kinds import KindModel
from tracegen.generate.latent_model import FAST_KERNEL, SCALES, LatentModel, sparse
from tracegen.shared.least import least
from tracegen.trace.arrays import Array, Floats, place_in_group
from tracegen.trace.tables import expert_dtype

ROWS_PER_BLOCK = 2048
"""Rows scored at a time; 2048 x 256 experts x 8 B stay in a core's cache."""
_SHARED = 2**31
"""First key of the streams that belong to no layer: layers are far fewer."""
_REQUEST, _DRIFT, _TYPES, _MIXED = range(4)


def _stream(seed: int, *key: int) -> np.random.Generator:
    """Stream of one purpose; PCG64 by name, for numpy may change its default."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=key)))


def latents(model: LatentModel, request: Array, position: Array, seed: int) -> Floats:
    """Latents of every token, all scales side by side.

    Parameters
    ----------
    model
        Number of latents, and the time that they last.
    request, position
        Of each token, in any order, shape (token,).
    seed
        Non-negative.

    Returns
    -------
    Shape (token, latent), latents in the order of :data:`SCALES`, mixed ones last.
    """
    width = {name: model.factors[name].shape[2] for name in SCALES}
    order = np.lexsort((position, request))
    ids, begins, counts = np.unique(request[order], return_index=True, return_counts=True)
    per_token = width["token"] + width["fast"] + width["slow"]
    sorted_rows = np.empty((request.size, per_token))
    topics = np.empty((ids.size, width["request"]))
    for row, (number, begin, count) in enumerate(zip(ids, begins, counts, strict=True)):
        rng = _stream(seed, _SHARED, _REQUEST, int(number))
        topics[row] = rng.standard_normal(width["request"])
        sorted_rows[begin : begin + count] = rng.standard_normal((count, per_token))
    innovations = _stream(seed, _SHARED, _DRIFT).standard_normal((ids.size, width["drift"]))
    runs = _autoregression(innovations, model.drift, np.zeros(1, np.int64), np.array([ids.size]))
    fast = slice(width["token"], width["token"] + width["fast"])
    slow = slice(fast.stop, per_token)
    age = place_in_group(counts)
    sorted_rows[:, fast] = _moving_average(sorted_rows[:, fast], age)
    sorted_rows[:, slow] = _autoregression(sorted_rows[:, slow], model.slow, begins, counts)
    mixed = model.shares.shape[0]
    out = np.empty((request.size, sum(width.values()) + mixed))
    out[order, :per_token] = sorted_rows
    if model.num_types:
        out[:, : width["token"]] = _types(model, out[:, : width["token"]], seed)
    of_row = np.repeat(np.arange(ids.size), counts)
    out[order, per_token : out.shape[1] - mixed] = np.hstack([topics, runs])[of_row]
    if mixed:
        gap = np.diff(position[order].astype(np.int64), prepend=-2) != 1
        gap[begins] = True
        firsts = np.flatnonzero(gap)
        out[order, -mixed:] = _mix(model, ids, counts, firsts, seed)
    return out


def _mix(model: LatentModel, ids: Array, counts: Array, runs: Array, seed: int) -> Floats:
    """Latents of several scales, shape (token, latent).

    Tokens are in order, `counts` of them of each request of `ids`; `runs` are the rows where
    consecutive positions begin.
    """
    amount, width = (
        np.sqrt(model.shares / model.shares.sum(axis=1, keepdims=True)).T,
        len(model.shares),
    )
    rngs = [_stream(seed, _SHARED, _MIXED, int(number)) for number in ids]
    topics = np.stack([rng.standard_normal((2, width)) for rng in rngs])
    drift = _autoregression(topics[:, 1], model.drift, np.zeros(1, np.int64), np.array([ids.size]))
    of_row = np.repeat(np.arange(ids.size), counts)
    out: Floats = (amount[3] * topics[:, 0] + amount[4] * drift)[of_row]
    lengths = np.diff(runs, append=of_row.size)
    for scale in range(3):
        drawn = [r.standard_normal((n, width)) for r, n in zip(rngs, counts, strict=True)]
        noise = np.concatenate(drawn) if drawn else np.zeros((0, width))
        if scale == 1:
            noise = _moving_average(noise, place_in_group(lengths))
        elif scale == 2:
            noise = _autoregression(noise, model.slow, runs, lengths)
        out += amount[scale] * noise
    return sparse(out)


def _moving_average(noise: Floats, age: Array) -> Floats:
    """:data:`FAST_KERNEL` over each token and those before it in its request, variance 1."""
    values = np.zeros_like(noise)
    variance = np.zeros((noise.shape[0], 1))
    for back, weight in enumerate(FAST_KERNEL):
        has = age >= back
        values[has] += weight * noise[np.flatnonzero(has) - back]
        variance[has] += weight**2
    averaged: Floats = values / np.sqrt(variance)
    return averaged


def _autoregression(noise: Floats, rho: float, begins: Array, counts: Array) -> Floats:
    """Stationary AR(1) within each run of rows, from independent standard normals."""
    values = noise.copy()
    innovation = math.sqrt(1 - rho * rho)
    longest_first = np.argsort(-counts, kind="stable")
    begins, counts = begins[longest_first], counts[longest_first]
    for age in range(1, int(counts.max(initial=0))):
        alive = int(np.searchsorted(-counts, -age, side="left"))
        rows = begins[:alive] + age
        values[rows] = rho * values[rows - 1] + innovation * noise[rows]
    return values


def _whiten(values: Floats, weights: Array) -> Floats:
    """Values with weighted mean 0 and covariance 1, where there are enough rows for that.

    Where there are not, the variance of each column alone is 1.
    """
    if values.shape[0] < 2 or not values.shape[1]:
        return values
    share = weights / weights.sum()
    centred = values - share @ values
    if values.shape[0] <= 2 * values.shape[1]:
        spread: Floats = np.sqrt(share @ centred**2)
        scaled: Floats = centred / spread
        return scaled
    lower = np.linalg.cholesky((centred * share[:, None]).T @ centred)
    white: Floats = np.linalg.solve(lower, centred.T).T
    return white


def _types(model: LatentModel, own: Floats, seed: int) -> Floats:
    """Token latents from a vocabulary, in place of one drawn for each token."""
    rng = _stream(seed, _SHARED, _TYPES)
    frequency = np.arange(1, model.num_types + 1) ** -model.type_exponent
    vectors = _whiten(rng.standard_normal((model.num_types, own.shape[1])), frequency)
    # The token's own first latent decides its type: no further random number is needed.
    edges = np.cumsum(frequency / frequency.sum())
    chosen = np.searchsorted(edges, _normal_cdf(own[:, 0])) if own.shape[1] else np.zeros(0, int)
    types: Floats = vectors[np.minimum(chosen, model.num_types - 1)]
    return types if own.shape[1] else own


def _normal_cdf(values: Floats) -> Floats:
    """Standard normal distribution function."""
    erf = np.frompyfunc(math.erf, 1, 1)
    cdf: Floats = 0.5 * (1 + np.asarray(erf(values / math.sqrt(2)), np.float64))
    return cdf


def route(
    model: LatentModel | KindModel,
    shared: Floats,
    layer: int,
    rng: np.random.Generator,
    groups: tuple[int, int] | None = None,
    topk: int | None = None,
) -> npt.NDArray[np.unsignedinteger]:
    """Choose the experts of every token in one layer.

    Parameters
    ----------
    model
        Parameters.
    shared
        From :func:`latents`, or rows of it, shape (token, latent). Its type is the one worked
        in: float64 makes ids that do not depend on the machine.
    layer
        Position among the MoE layers.
    rng
        Stream of this layer.
    groups
        Number of groups of neighbouring experts, and how many a token may choose from.
    topk
        Experts per token; None for the model's.

    Returns
    -------
    Ids, best score first, shape (token, k).
    """
    topk = model.topk if topk is None else topk
    score_of = _scorer(model, layer, shared.dtype)
    out = np.empty((shared.shape[0], topk), expert_dtype(model.num_experts))
    for begin in range(0, shared.shape[0], ROWS_PER_BLOCK):
        score = score_of(shared[begin : begin + ROWS_PER_BLOCK], rng)
        if groups is not None:
            _leave_groups(score, *groups)
        out[begin : begin + ROWS_PER_BLOCK] = _best(score, topk)
    return out


_Scorer = Callable[[Array, np.random.Generator], Array]
"""Scores of some rows of latents, shape (token, expert)."""


def _scorer(model: LatentModel | KindModel, layer: int, kind: np.dtype[Any]) -> _Scorer:
    """Scorer of one layer's tokens, in the type that is worked in."""
    bias = model.bias[layer].astype(kind)
    if isinstance(model, KindModel):
        factors = model.factors[layer].astype(kind)

        def by_kind(block: Array, rng: np.random.Generator) -> Array:
            score = rng.standard_normal((block.shape[0], bias.size), dtype=kind.type)
            score += block @ factors.T
            score += bias
            return score

        return by_kind
    loadings = model.loadings(layer).astype(kind)
    own = model.private[layer].astype(kind)
    mix, scale = _mixing(model, layer, kind)
    noise = model.noise()[layer].astype(kind)

    def by_scale(block: Array, rng: np.random.Generator) -> Array:
        score = rng.standard_normal((block.shape[0], bias.size), dtype=kind.type)
        score *= noise
        score += block @ loadings.T
        if own.shape[1]:
            score += rng.standard_normal((block.shape[0], own.shape[1]), dtype=kind.type) @ own.T
        if mix:
            alone = score.copy()
            for partner, weight in mix:
                score += weight * alone[:, partner]
            score *= scale
        score += bias
        return score

    return by_scale


def _mixing(model: LatentModel, layer: int, kind: np.dtype[Any]) -> tuple[list[tuple[Array, Array]], Array]:
    """Partner and weight of every expert, in as many rounds as one has partners; and a scale.

    The scale brings each expert's variance back to one.
    """
    shared = np.concatenate([model.loadings(layer), model.private[layer]], axis=1)
    covariance = shared @ shared.T + np.diag(model.noise()[layer] ** 2)
    transform = np.eye(model.num_experts)
    rounds: list[tuple[Array, Array]] = []
    for (one, other), weight in zip(model.pairs[layer].tolist(), model.pair_mixing[layer].tolist(), strict=True):
        if not weight:
            continue
        transform[one, other] += weight
        transform[other, one] += weight
        free = (r for r in rounds if not r[1][one] and not r[1][other])
        found = next(free, None)
        if found is None:
            found = (np.arange(model.num_experts), np.zeros(model.num_experts, kind))
            rounds.append(found)
        found[0][[one, other]] = other, one
        found[1][[one, other]] = weight
    variance = ((transform @ covariance) * transform).sum(axis=1)
    return rounds, (1 / np.sqrt(np.maximum(variance, 1e-6))).astype(kind)


def _best(score: Array, topk: int) -> Array:
    """Positions of the largest scores of each row, largest first."""
    cost = -score
    chosen = least(cost, topk)
    order = np.argsort(np.take_along_axis(cost, chosen, axis=1), axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1)


def _leave_groups(score: Array, num_groups: int, topk_group: int) -> None:
    """Take experts outside each token's best groups out, in place.

    A group's score is the sum of its two best, as in DeepSeek-V3 (arXiv 2412.19437,
    section 2.1.2).
    """
    by_group = score.reshape(score.shape[0], num_groups, -1)
    best = min(2, by_group.shape[2])
    total = np.partition(by_group, by_group.shape[2] - best, axis=2)[:, :, -best:].sum(axis=2)
    out = np.argsort(-total, axis=1, kind="stable")[:, topk_group:]
    np.put_along_axis(by_group, out[:, :, None], -np.inf, axis=1)


def route_layers(
    model: LatentModel | KindModel,
    shared: Floats,
    seed: int,
    on_layer: Callable[[int], None] | None = None,
) -> npt.NDArray[np.unsignedinteger]:
    """Choose the experts of every token in every layer.

    Parameters
    ----------
    model, shared
        As for :func:`route`.
    seed
        Of the layers' streams.
    on_layer
        Called with the number of finished layers.

    Returns
    -------
    Ids, shape (layer, token, k).
    """
    shape = (model.num_layers, shared.shape[0], model.topk)
    ids = np.empty(shape, expert_dtype(model.num_experts))
    for layer in range(model.num_layers):
        ids[layer] = route(model, shared, layer, _stream(seed, layer, 1))
        if on_layer is not None:
            on_layer(layer + 1)
    return ids
