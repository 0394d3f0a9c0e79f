"""Fitting latent routing to a real trace.

Moment matching by stochastic approximation: simulate, compare loads and the covariances of
:mod:`tracegen.stats.moments` with the real ones, correct the latent covariances by the difference,
keep the strongest factors; the idea of NORTA (Cario and Nelson, 1997) with factors in place
of a full correlation matrix.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracegen.errors import UserError
from tracegen.generate.latent_draw import latents, route_layers
from tracegen.generate.latent_file import rounded
from tracegen.generate.latent_model import MAX_SHARED, SCALES, LatentModel, normal_quantile
from tracegen.stats import moments
from tracegen.trace.arrays import Array, Floats
from tracegen.trace.routing import RoutingTrace

WIDTH = 68
"""Latents that all layers share, each a mixture of scales: numbers of each expert."""
COLUMNS_PER_LATENT = 6
"""Experts of all layers for each latent, at least: few columns tell few latents."""
PRIVATE = 6
"""Latents of each layer alone."""
PAIRS = 40
"""Expert pairs of each layer."""
MAX_MIXING = 0.95
"""Partners with all of each other's score would tie."""
ITERATIONS = 10
MAX_COLUMNS = 4096
"""Layers times experts that one fit takes: seven covariance matrices of this size are 1 GB."""
QUANTILES = 33
"""Numbers that describe the lengths of requests."""
_TURNS = 8
"""Iterations of the search for latents; it goes on from where the last simulation left it."""
_LEAST = 1e-5
_STEP = 0.7
"""Share of a difference that is corrected at once; 1 oscillates."""


@dataclass
class _State:
    """Parameters that the iteration changes, all in units of a score's standard deviation."""

    bias: Floats
    mixed: Floats
    """Shape (column, latent), columns being the experts of all layers."""
    shares: Floats
    """Of the scales in each latent, shape (latent, scale)."""
    gain: Floats
    """Factor on the shares of each scale, shape (scale,)."""
    private: Floats
    """Shape (layer, expert, latent)."""
    pairs: npt.NDArray[np.int64]
    mixing: Floats
    """Shape (layer, pair)."""


def fit(
    trace: RoutingTrace,
    *,
    iterations: int = ITERATIONS,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> LatentModel:
    """Parameters of latent routing whose traces have the statistics of this one.

    Parameters
    ----------
    trace
        Tokens of at least 24 requests of 80 tokens.
    iterations
        Simulations; each takes a few seconds.
    seed
        Of the simulations; the result depends on it a little, and on nothing else.
    progress
        Called after each.

    Raises
    ------
    UserError
        If the trace is too small, or too wide for one fit.
    """
    columns = trace.num_layers * trace.num_experts
    if columns > MAX_COLUMNS:
        msg = (
            f"{trace.num_layers} layers x {trace.num_experts} experts are {columns} columns; one "
            f"fit takes {MAX_COLUMNS}: choose {MAX_COLUMNS // trace.num_experts} layers"
        )
        raise UserError(msg)
    request, position = trace.tokens.request, trace.tokens.position
    chosen = moments.pieces(request, position, seed)
    rows = chosen.rows.ravel()
    template = _template(trace)
    present = moments.indicators(trace.expert_ids[:, rows], trace.num_experts)
    order = np.lexsort((position, request))
    ids = trace.expert_ids[:, order]
    rho = moments.persistence(ids, request[order], trace.num_experts, seed)
    template = dataclasses.replace(template, slow=rho)
    weight = moments.weights(template.slow, template.drift)
    _, found = moments.covariances(present, chosen.request)
    within = found[0]
    target = moments.by_scale(found, weight)
    del found
    load = trace.load_per_expert() / trace.num_tokens
    state = _start(load, within)
    _correct(state, 0.5 * within, load)
    lasting = np.einsum("scc->s", target)
    del target
    for iteration in range(iterations):
        _limit(state)
        _mix_scales(state, present, chosen.request, weight, load)
        model = _model(state, template)
        drawn = latents(model, request[rows], position[rows], seed + 1 + iteration, balance=True)
        ids = route_layers(model, drawn.astype(np.float32), seed + 1 + iteration)
        mean, ours, spread = moments.variances(
            moments.indicators(ids, trace.num_experts), chosen.request
        )
        # Half steps at the end average the noise of single simulations.
        step = _STEP if iteration < 0.6 * iterations else _STEP / 2
        state.bias += step * (normal_quantile(load) - normal_quantile(mean.reshape(load.shape)))
        _match_lags(state, lasting, moments.by_scale(spread, weight).sum(axis=1), step)
        _correct(state, step * (within - ours), load)
        which = np.arange(trace.num_layers)[:, None]
        ends = which, state.pairs[:, :, 0], state.pairs[:, :, 1]
        missing = _correlation(within, trace.num_layers)[ends]
        missing = missing - _correlation(ours, trace.num_layers)[ends]
        state.mixing = np.clip(state.mixing + step * missing, 0, MAX_MIXING)
        if progress is not None:
            progress()
    _limit(state)
    _mix_scales(state, present, chosen.request, weight, load)
    return rounded(_model(state, template))


def _template(trace: RoutingTrace) -> LatentModel:
    """Everything that is read off the trace directly."""
    order = np.lexsort((trace.tokens.position, trace.tokens.request))
    _, begins, counts = np.unique(
        trace.tokens.request[order], return_index=True, return_counts=True
    )
    prompts = trace.tokens.position[order][begins]
    grid = np.linspace(0, 1, QUANTILES)
    empty = np.zeros((trace.num_layers, trace.num_experts, 0))
    source = {
        "trace": trace.content_id,
        "title": trace.info.title,
        "license": trace.info.license,
        "made_by": "moereplay trace imitate",
    }
    origin = trace.info.provenance.get("source", {})
    if isinstance(origin, dict):
        source |= {k: str(origin[k]) for k in ("repository", "commit", "model") if k in origin}
    return LatentModel(
        moe_layer_index=tuple(trace.moe_layer_index.tolist()),
        topk=trace.topk,
        bias=np.zeros(empty.shape[:2]),
        factors=dict.fromkeys(SCALES, empty),
        private=empty,
        pairs=np.zeros((trace.num_layers, 0, 2), np.int64),
        pair_mixing=np.zeros((trace.num_layers, 0)),
        prompt_len=tuple(np.rint(np.quantile(prompts, grid)).astype(int).tolist()),
        num_tokens=tuple(np.rint(np.quantile(counts, grid)).astype(int).tolist()),
        num_requests=int(counts.size),
        source=source,
    )


def _start(load: Floats, within: Floats) -> _State:
    """No factors yet, and the pairs of each layer that are chosen together most."""
    layers, experts = load.shape
    correlation = _correlation(within, layers)
    first, second = np.triu_indices(experts, 1)
    count = min(PAIRS, first.size)
    best = np.argsort(-correlation[:, first, second], axis=1, kind="stable")[:, :count]
    width = min(WIDTH, max(1, layers * experts // COLUMNS_PER_LATENT))
    return _State(
        bias=normal_quantile(load),
        mixed=np.zeros((layers * experts, width)),
        shares=np.zeros((width, len(SCALES))),
        gain=np.ones(len(SCALES)),
        private=np.zeros((layers, experts, min(PRIVATE, experts))),
        pairs=np.stack([first[best], second[best]], axis=2),
        mixing=np.zeros((layers, count)),
    )


def _correlation(covariance: Floats, layers: int) -> Floats:
    """Correlation of visits by one token, shape (layer, expert, expert)."""
    within = _blocks(covariance, layers)
    spread = np.sqrt(np.maximum(np.einsum("lee->le", within), _LEAST))
    correlation: Floats = within / (spread[:, :, None] * spread[:, None, :])
    return correlation


def _blocks(matrix: Floats, layers: int) -> Floats:
    """Diagonal blocks of a matrix over all layers: shape (layer, expert, expert)."""
    size = matrix.shape[0] // layers
    diagonal = np.arange(layers)
    return matrix.reshape(layers, size, layers, size)[diagonal, :, diagonal, :]


def _scale(load: Floats) -> Floats:
    """Deviation of a score that goes with one of a visit, to first order, shape (column,).

    It is one over the normal density at the threshold; rare experts would divide by almost
    nothing.
    """
    density = np.exp(-(normal_quantile(load) ** 2) / 2) / np.sqrt(2 * np.pi)
    scale: Floats = 1 / np.maximum(density, 0.6 * np.sqrt(load * (1 - load)) + _LEAST).ravel()
    return scale


def _correct(state: _State, missing: Floats, load: Floats) -> None:
    """Move covariances of scores towards those of visits that are missing."""
    scale = _scale(load)
    latent = missing * scale[:, None] * scale
    # A visit's covariance with itself is its load's; it says nothing about factors.
    np.fill_diagonal(latent, 0)
    wanted = state.mixed @ state.mixed.T + latent
    state.mixed = _strongest(wanted, state.mixed)
    layers = load.shape[0]
    _correct_private(state, _blocks(wanted, layers), _blocks(latent, layers))


def _mix_scales(
    state: _State,
    present: npt.NDArray[np.float32],
    request: Array,
    weight: Floats,
    load: Floats,
) -> None:
    """Turn the latents to the directions in which tokens differ most, and say how long they last.

    The real trace's visits, as seen through the factors, are estimates of its latents, with
    noise that no two tokens share: covariances between tokens are those of the latents.
    """
    # A ridge keeps latents that hardly any expert has from being all noise.
    gram = state.mixed.T @ state.mixed
    gram[np.diag_indices_from(gram)] += 1e-3 * np.trace(gram) / len(gram) + _LEAST
    seen = _scale(load)[:, None] * np.linalg.solve(gram, state.mixed.T).T
    latent = present @ seen.astype(np.float32)
    turn = _most_skewed(latent - latent.mean(axis=0))
    state.mixed = state.mixed @ turn
    _, found = moments.covariances(latent @ turn.astype(np.float32), request)
    parts = moments.by_scale(found, weight)
    shares = np.maximum(np.einsum("sll->ls", parts)[:, 1:], 0) * state.gain[1:]
    shares /= np.maximum(shares.sum(axis=1, keepdims=True), 1)
    state.shares = np.column_stack([np.maximum(1 - shares.sum(axis=1), 0), shares])


def _most_skewed(values: npt.NDArray[np.float32]) -> Floats:
    """Rotation to the axes along which values are most skewed: independent component analysis.

    Latents of equal variance are told from any rotation of them by their third moments alone; a
    fixed point of Hyvarinen's iteration with all axes at once (2000, section 4.3).
    """
    turn = np.eye(values.shape[1])
    for _ in range(_TURNS):
        along = values @ turn.astype(np.float32)
        left, _, right = np.linalg.svd((values.T @ along**2).astype(np.float64))
        turn = left @ right
    return turn


def _correct_private(state: _State, wanted: Floats, latent: Floats) -> None:
    """Give what the token factors leave of a layer's covariance to private factors.

    Pairs are left out: they are mixed.
    """
    layers, experts, width = state.private.shape
    token = state.mixed.reshape(layers, experts, -1)
    which = np.arange(layers)[:, None]
    first, second = state.pairs[:, :, 0], state.pairs[:, :, 1]
    old = state.private @ state.private.transpose(0, 2, 1)
    rest = wanted + old - token @ token.transpose(0, 2, 1)
    rest[which, first, second] = rest[which, second, first] = old[which, first, second]
    diagonal = np.arange(experts)
    variance = old[:, diagonal, diagonal]
    # Before there are private factors: what a factor of the largest entry alone would have.
    rest[:, diagonal, diagonal] = np.where(variance > 0, variance, 0.5 * np.abs(latent).max(axis=2))
    values, vectors = np.linalg.eigh(rest)
    lengths = np.sqrt(np.maximum(values[:, -width:], 0))
    state.private = vectors[:, :, -width:] * lengths[:, None, :]


def _strongest(matrix: Floats, start: Floats) -> Floats:
    """Factors of the best positive approximation of low rank, by subspace iteration."""
    known = bool(np.abs(start).any())
    basis = start if known else np.random.default_rng(1).standard_normal(start.shape)
    for _ in range(3 if known else 12):
        basis, _ = np.linalg.qr(matrix @ basis)
    values, vectors = np.linalg.eigh(basis.T @ matrix @ basis)
    factors: Floats = basis @ (vectors * np.sqrt(np.maximum(values, 0)))
    return factors


def _match_lags(state: _State, real: Floats, ours: Floats, step: float) -> None:
    """Let scales have more or less, so that experts are reused as in the trace at every distance.

    `real` and `ours` are sums of the covariances of visits with themselves, shape (scale,).
    Requests and their drift are held to their sum, which is what a request reuses; how much of it
    is drift moves more slowly, for one simulation has a dozen independent values of a drift.
    """
    for scales, least in (([1], 0.02), ([2], 0.02), ([3, 4], 0.02), ([4], 0.05)):
        # Differences of less than that share of all are noise, and no reason to move.
        wanted, found = (
            max(float(values[scales].sum()), 0) + least * real.sum() for values in (real, ours)
        )
        grow = np.clip(wanted / found, 0.5, 2) ** step
        state.gain[scales] = np.clip(state.gain[scales] * grow, 0.01, 100)


def _limit(state: _State) -> None:
    """Leave each expert some noise."""
    layers, experts, _ = state.private.shape
    shared = (state.mixed**2).sum(axis=1) + (state.private**2).sum(axis=2).ravel()
    shrink = np.sqrt(np.minimum(1, MAX_SHARED / np.maximum(shared, _LEAST)))
    state.mixed *= shrink[:, None]
    state.private *= shrink.reshape(layers, experts, 1)


def _model(state: _State, template: LatentModel) -> LatentModel:
    """Model of the present state."""
    layers, experts, _ = state.private.shape
    return dataclasses.replace(
        template,
        bias=state.bias,
        mixed=state.mixed.reshape(layers, experts, -1),
        shares=state.shares,
        private=state.private,
        pairs=state.pairs,
        pair_mixing=state.mixing,
    )
