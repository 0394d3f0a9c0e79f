"""Fitting latent routing to a real trace, and making a trace like it.

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
from tracegen.generate.latent_model import MAX_SHARED, SCALES, LatentModel, normal_quantile, rounded
from tracegen.stats import moments
from tracegen.trace import provenance
from tracegen.trace.arrays import Array, Floats, place_in_group
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import DECODE, RequestTable, TokenTable, TraceInfo

WIDTH = {"token": 32, "fast": 8, "slow": 6, "request": 12, "drift": 8}
"""Latents of each scale: 66 numbers per expert. With 20 of a token, layers of gpt-oss-20b-decode
predict each other 10 % less than they should; more of the others did not help."""
PRIVATE = 4
"""Latents of each layer alone."""
PAIRS = 16
"""Expert pairs of each layer."""
MAX_MIXING = 0.95
"""Partners with all of each other's score would tie."""
ITERATIONS = 12
MAX_COLUMNS = 4096
"""Layers times experts that one fit takes: seven covariance matrices of this size are 1 GB."""
QUANTILES = 33
"""Numbers that describe the lengths of requests."""
_LEAST = 1e-5
_STEP = 0.7
"""Share of a difference that is corrected at once; 1 oscillates."""


@dataclass
class _State:
    """Parameters that the iteration changes, all in units of a score's standard deviation."""

    bias: Floats
    factors: dict[str, Floats]
    """By scale: shape (column, latent), columns being the experts of all layers."""
    private: Floats
    """Shape (layer, expert, latent)."""
    pairs: npt.NDArray[np.int64]
    mixing: Floats
    """Shape (layer, pair)."""
    gain: Floats
    """Factor by which each iteration scales the factors of a scale, shape (scale, layer)."""


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
    weight = moments.weights(template.slow, template.drift)
    present = moments.indicators(trace.expert_ids[:, rows], trace.num_experts)
    _, found = moments.covariances(present, chosen.count)
    target = moments.by_scale(found, weight)
    del present, found
    load = trace.load_per_expert() / trace.num_tokens
    state = _start(load, target)
    simulated = np.zeros_like(target)
    simulated_load = load
    for iteration in range(iterations):
        # Half steps at the end average the noise of single simulations.
        step = _STEP if iteration < 0.6 * iterations else _STEP / 2
        state.bias += step * (normal_quantile(load) - normal_quantile(simulated_load))
        _correct(state, target - simulated, step, load)
        if iteration:
            which = np.arange(trace.num_layers)[:, None]
            ends = which, state.pairs[:, :, 0], state.pairs[:, :, 1]
            missing = _within(target, trace.num_layers)[ends]
            missing = missing - _within(simulated, trace.num_layers)[ends]
            state.mixing = np.clip(state.mixing + step * missing, 0, MAX_MIXING)
            _match_lags(state, target, simulated, load)
        _limit(state)
        if iteration + 1 < iterations:
            model = _model(state, template)
            drawn = latents(model, request, position, seed + 1 + iteration, balance=True)
            ids = route_layers(model, drawn[rows].astype(np.float32), seed + 1 + iteration)
            present = moments.indicators(ids, trace.num_experts)
            mean, found = moments.covariances(present, chosen.count)
            simulated_load = mean.reshape(load.shape)
            simulated = moments.by_scale(found, weight)
        if progress is not None:
            progress()
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


def _start(load: Floats, target: Floats) -> _State:
    """No factors yet, and the pairs of each layer that are chosen together most."""
    layers, experts = load.shape
    correlation = _within(target, layers)
    first, second = np.triu_indices(experts, 1)
    count = min(PAIRS, first.size)
    best = np.argsort(-correlation[:, first, second], axis=1, kind="stable")[:, :count]
    return _State(
        bias=normal_quantile(load),
        factors={name: np.zeros((layers * experts, width)) for name, width in WIDTH.items()},
        private=np.zeros((layers, experts, min(PRIVATE, experts))),
        pairs=np.stack([first[best], second[best]], axis=2),
        mixing=np.zeros((layers, count)),
        gain=np.ones((len(SCALES), layers)),
    )


def _within(parts: Floats, layers: int) -> Floats:
    """Correlation of visits by one token, shape (layer, expert, expert)."""
    within = _blocks(parts.sum(axis=0), layers)
    spread = np.sqrt(np.maximum(np.einsum("lee->le", within), _LEAST))
    correlation: Floats = within / (spread[:, :, None] * spread[:, None, :])
    return correlation


def _blocks(matrix: Floats, layers: int) -> Floats:
    """Diagonal blocks of a matrix over all layers: shape (layer, expert, expert)."""
    size = matrix.shape[0] // layers
    diagonal = np.arange(layers)
    return matrix.reshape(layers, size, layers, size)[diagonal, :, diagonal, :]


def _correct(state: _State, difference: Floats, step: float, load: Floats) -> None:
    """Move latent covariances towards the real ones."""
    layers = load.shape[0]
    # To first order the covariance of two indicators is that of the scores times the normal
    # densities at their thresholds; rare experts would divide by almost nothing.
    density = np.exp(-(normal_quantile(load) ** 2) / 2) / np.sqrt(2 * np.pi)
    scale = 1 / np.maximum(density, 0.6 * np.sqrt(load * (1 - load)) + _LEAST).ravel()
    for name, missing in zip(SCALES, difference, strict=True):
        latent = step * missing * np.outer(scale, scale)
        if name == "token":
            # A token's covariance with itself is its load's; it says nothing about factors.
            np.fill_diagonal(latent, 0)
        old = state.factors[name]
        wanted = old @ old.T + latent
        state.factors[name] = _strongest(wanted, old)
        if name == "token":
            _correct_private(state, _blocks(wanted, layers), _blocks(latent, layers))


def _correct_private(state: _State, wanted: Floats, latent: Floats) -> None:
    """Give what the token factors leave of a layer's covariance to private factors.

    Pairs are left out: they are mixed.
    """
    layers, experts, width = state.private.shape
    token = state.factors["token"].reshape(layers, experts, -1)
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


def _match_lags(state: _State, target: Floats, simulated: Floats, load: Floats) -> None:
    """Scale factors so that experts are reused as much as in the trace, at every distance.

    Reuse is the trace of a covariance matrix; few factors fit the rest of it better with
    another one.
    """
    layers, experts = load.shape
    floor = 0.05 * load * (1 - load) + _LEAST
    for scale, name in enumerate(SCALES[1:], start=1):
        real = np.diagonal(target[scale]).reshape(layers, experts)
        ours = np.diagonal(simulated[scale]).reshape(layers, experts)
        by_expert = (np.maximum(real, 0) + floor) / (np.maximum(ours, 0) + floor)
        sums = [np.maximum(values.sum(axis=1), _LEAST) for values in (real, ours)]
        by_layer = np.clip(sums[0] / sums[1], 0.5, 2) ** 0.25
        # The correction of covariances pulls back each time: sum up what it takes against it.
        # Not for drift, of which one simulation shows a dozen independent values.
        grown = np.clip(state.gain[scale] * by_layer, 0.8, 1.5)
        state.gain[scale] = by_layer if name == "drift" else grown
        own = np.clip(by_expert, 0.5, 2) ** 0.25
        state.factors[name] *= (state.gain[scale][:, None] * own).reshape(-1, 1)


def _limit(state: _State) -> None:
    """Leave each expert some noise: shrink what lasts a token, for that is observed least."""
    layers, experts, _ = state.private.shape
    lasting = np.zeros(layers * experts)
    for name in SCALES[1:]:
        lasting += (state.factors[name] ** 2).sum(axis=1)
    shrink = np.sqrt(np.minimum(1, 0.9 * MAX_SHARED / np.maximum(lasting, _LEAST)))
    for name in SCALES[1:]:
        state.factors[name] *= shrink[:, None]
    free = (MAX_SHARED - lasting * shrink**2).reshape(layers, experts)
    token = (state.factors["token"] ** 2).sum(axis=1).reshape(layers, experts)
    brief = token + (state.private**2).sum(axis=2)
    shrink = np.sqrt(np.clip(free / np.maximum(brief, _LEAST), 0, 1))
    state.factors["token"] *= shrink.reshape(-1, 1)
    state.private *= shrink[:, :, None]


def _model(state: _State, template: LatentModel) -> LatentModel:
    """Model of the present state."""
    layers, experts, _ = state.private.shape
    return dataclasses.replace(
        template,
        bias=state.bias,
        factors={n: f.reshape(layers, experts, -1) for n, f in state.factors.items()},
        private=state.private,
        pairs=state.pairs,
        pair_mixing=state.mixing,
    )


def synthesise(
    model: LatentModel,
    like: RoutingTrace,
    *,
    seed: int = 0,
    on_layer: Callable[[int], None] | None = None,
) -> RoutingTrace:
    """Make a trace of as many requests as were fitted, one after another.

    Parameters
    ----------
    model
        From :func:`fit`.
    like
        The trace it was fitted to; only its model header is taken.
    seed
        The same seed gives the same trace.
    on_layer
        Called with the number of finished layers.
    """
    tokens, requests = _tables(model, int(like.tokens.phase[0]), seed)
    drawn = latents(model, tokens.request, tokens.position, seed, balance=True)
    ids = route_layers(model, drawn, seed, on_layer)
    arguments = {"seed": seed, "num_requests": model.num_requests}
    return RoutingTrace(
        model=like.model,
        moe_layer_index=np.array(model.moe_layer_index, np.uint16),
        expert_ids=ids,
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        requests=requests,
        info=TraceInfo(
            kind="synthetic",
            title=f"imitation of {like.info.title}",
            license=like.info.license,
            slot_order="weight_desc",
            provenance=provenance.record(
                "moereplay trace imitate",
                parameters=arguments,
                source=dict(model.source),
                parents=[like.content_id],
            ),
        ),
    )


def _tables(model: LatentModel, phase: int, seed: int) -> tuple[TokenTable, RequestTable]:
    """Requests with lengths as described, in random order, one token per step."""
    rng = np.random.default_rng(seed)
    count = model.num_requests
    even = (np.arange(count) + 0.5) / count

    def lengths(quantiles: tuple[int, ...]) -> Array:
        grid = np.linspace(0, 1, len(quantiles))
        return rng.permutation(np.rint(np.interp(even, grid, quantiles)).astype(np.int64))

    recorded, prompt = lengths(model.num_tokens), lengths(model.prompt_len)
    request = np.repeat(np.arange(count), recorded)
    offset = place_in_group(recorded)
    decode = phase == DECODE
    step = np.arange(request.size) if decode else request
    tokens = TokenTable(
        step=step.astype(np.uint32),
        request=request.astype(np.uint32),
        position=(np.repeat(prompt, recorded) + offset).astype(np.uint32),
        phase=np.full(request.size, phase, np.uint8),
    )
    requests = RequestTable(
        id=np.arange(count, dtype=np.uint32),
        prompt_len=(prompt if decode else recorded).astype(np.uint32),
        output_len=(recorded if decode else 0 * recorded).astype(np.uint32),
    )
    return tokens, requests
