"""Fitting kinds of tokens to a real trace (IMITATION.md).

Places of tokens by logistic factor analysis, kinds of them by k-means, how long they last by
covariances at distances; then moment matching by stochastic approximation: simulate, compare loads,
co-activation and reuse with the real ones, correct by the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from tracegen.generate import fields
from tracegen.generate.fields import Spectrum, TokenLayout
from tracegen.generate.kind_file import round_model
from tracegen.generate.latent_kinds import KindModel, choose
from tracegen.imitate import factors, kinds
from tracegen.imitate.durations import DRIFTS, Ruler, covariances
from tracegen.imitate.match import match
from tracegen.imitate.tokens import Tokens, in_order
from tracegen.stats.sample import indicators
from tracegen.trace.arrays import Array, Floats
from tracegen.trace.routing import RoutingTrace

LATENTS = 64
"""Dimensions of the space of tokens that all layers share. Held out by request, 64 explain a slope of
0.93 of co-activation and 0.72 of next-layer prediction; 128 kinds alone explain 0.80 and 0.67."""
COLUMNS_PER_LATENT = 6
"""Experts of all layers for each latent, at least: few columns tell few latents."""
DIMENSIONS = 8
"""Of the field that draws kinds. They hold 97 to 100 % of what kinds have in common at a distance of
4 tokens or more, on two traces; more of them lose correlation in the transport."""
TOKENS_PER_KIND = 32
"""At least, so that parameters stay below a tenth of a trace of 8,000 tokens."""
MAX_KINDS = 512
"""128 kinds in place of 260 lose 2 % of the spread of co-activation more."""
ANALYSED = 10_000_000
"""Tokens times columns of the factor analysis."""
ANALYSIS_ROUNDS = 5
KIND_ROUNDS = 3
"""Simulations of kinds alone."""
ROUNDS = 8
"""Simulations of routing."""
QUANTILES = 33
"""Numbers that describe the lengths of requests."""
_LOGISTIC = 1.702
"""Standard deviation of the normal distribution that is nearest to the logistic one (Haley)."""
_RIDGE = 1e-6
_BLOCK = 8192


def fit(
    trace: RoutingTrace,
    *,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> KindModel:
    """Parameters of latent routing whose traces have the statistics of this one.

    Parameters
    ----------
    trace
        Tokens of at least 24 requests of 80 tokens.
    rounds
        Simulations; each takes a few seconds.
    seed
        Of kinds and of simulations; the result depends on it a little, and on nothing else.
    progress
        Called after each.

    Raises
    ------
    UserError
        If the trace is too small, or too wide for one fit.
    """
    tokens = in_order(trace)
    model, places, kind = _places(trace, tokens, seed)
    model = _lasting(model, places, kind, tokens, seed)
    model = match(model, tokens, rounds=rounds, seed=seed, progress=progress)
    return round_model(model)


def _places(trace: RoutingTrace, tokens: Tokens, seed: int) -> tuple[KindModel, Floats, Array]:
    """Kinds, and the places and kinds of all tokens, in coordinates that visits measure.

    A unit of distance is a unit of difference in visits, over all columns; the first coordinates
    are those in which what kinds do lasts longest.
    """
    layers, count, _ = tokens.ids.shape
    load = trace.load_per_expert().ravel() / count
    columns = load.size
    width = min(LATENTS, max(1, columns // COLUMNS_PER_LATENT))
    some = np.linspace(0, count - 1, min(count, ANALYSED // columns)).astype(np.int64)
    visits = indicators(tokens.ids[:, some], tokens.num_experts)
    found = factors.analyse(visits, width, ANALYSIS_ROUNDS)
    loading = found.factors.astype(np.float64)
    metric = (loading * (load * (1 - load))[:, None]).T @ loading
    metric[np.diag_indices(width)] += _RIDGE * np.trace(metric)
    lower = np.linalg.cholesky(metric)
    sample = found.places.astype(np.float64) @ lower
    centre, members = kinds.centres(sample, min(MAX_KINDS, max(2, count // TOKENS_PER_KIND), len(sample)), seed)
    everywhere = _linear(visits, sample, tokens)
    kind, _ = kinds.nearest(everywhere, centre)
    lasting = covariances(centre[kind], tokens.counts)
    _, turn = np.linalg.eigh(lasting[[1, 4, 8, 14]].sum(axis=0))
    turn = turn[:, ::-1]
    middle = members @ centre / members.sum()
    loading = np.linalg.solve(lower, loading.T).T @ turn / _LOGISTIC
    bias = found.bias / _LOGISTIC + loading @ (middle @ turn)
    template = _template(trace)
    model = dataclasses.replace(
        template,
        bias=bias.reshape(layers, -1),
        factors=loading.reshape(layers, -1, width),
        kinds=(centre - middle) @ turn,
        tokens=members,
        axes=np.eye(min(DIMENSIONS, width), width),
    )
    return model, (everywhere - middle) @ turn, kind


def _linear(visits: factors.Single, places: Floats, tokens: Tokens) -> Floats:
    """Places of all tokens, as visits tell them linearly: shape (token, coordinate)."""
    mean, middle = visits.mean(axis=0), places.mean(axis=0)
    centred = visits - mean
    gram = (centred.T @ centred).astype(np.float64)
    gram[np.diag_indices(len(gram))] += 1e-3 * np.trace(gram) / len(gram)
    slope = np.linalg.solve(gram, centred.T.astype(np.float64) @ (places - middle))
    slope = slope.astype(np.float32)
    out = np.empty((tokens.ids.shape[1], places.shape[1]))
    for begin in range(0, len(out), _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        seen = indicators(tokens.ids[:, rows], tokens.num_experts)
        out[rows] = (seen - mean) @ slope + middle
    return out


def _template(trace: RoutingTrace) -> KindModel:
    """Everything that is read off the trace directly."""
    layout = TokenLayout.of(trace.tokens.request, trace.tokens.position)
    firsts = np.cumsum(layout.counts) - layout.counts
    prompts = trace.tokens.position[layout.order][firsts]
    grid = np.linspace(0, 1, QUANTILES)
    source = {
        "trace": trace.content_id,
        "title": trace.info.title,
        "license": trace.info.license,
        "made_by": "moereplay trace imitate",
    }
    origin = trace.info.provenance.get("source", {})
    if isinstance(origin, dict):
        source |= {k: str(origin[k]) for k in ("repository", "commit", "model") if k in origin}
    none = np.zeros((0, 0))
    return KindModel(
        moe_layer_index=tuple(trace.moe_layer_index.tolist()),
        topk=trace.topk,
        bias=none,
        factors=none[None],
        kinds=none,
        tokens=np.zeros(0, np.int64),
        axes=none,
        spectrum=Spectrum(none, np.zeros(0), 0.0),
        prompt_len=tuple(np.rint(np.quantile(prompts, grid)).astype(int).tolist()),
        num_tokens=tuple(np.rint(np.quantile(layout.counts, grid)).astype(int).tolist()),
        num_requests=int(layout.counts.size),
        source=source,
    )


def _lasting(model: KindModel, places: Floats, kind: Array, tokens: Tokens, seed: int) -> KindModel:
    """Add how long kinds last, and what is left of places when kinds are known."""
    total = covariances(places, tokens.counts)
    curve = np.einsum("dcc->d", total[1:])
    drift = min(DRIFTS, key=lambda one: Ruler(tokens.counts, one).misses(curve))
    ruler = Ruler(tokens.counts, drift)
    model = _kind_spectrum(model, model.kinds[kind], ruler, tokens, seed)
    drawn = covariances(model.kinds[_draw_kinds(model, tokens, seed)], tokens.counts)
    missing = total - drawn
    # What is left is standard normal in the final coordinates, and sorted by how long it lasts.
    rest = np.cov(places - model.kinds[kind], rowvar=False, bias=True).reshape(total.shape[1:])
    rest[np.diag_indices(len(rest))] += 1e-3 * np.trace(rest) / len(rest) + 1e-12
    lower = np.linalg.cholesky(rest)
    inverse = np.linalg.inv(lower)
    missing = inverse @ missing @ inverse.T
    _, turn = np.linalg.eigh(missing[[1, 4, 8, 14]].sum(axis=0))
    turn = turn[:, ::-1]
    lasting = ruler.split(np.einsum("dcc->dc", turn.T @ missing[1:] @ turn))
    new = lower @ turn
    shares = np.column_stack([1 - lasting.sum(axis=1), lasting])
    both = Spectrum(
        np.vstack([model.spectrum.shares, shares]),
        np.append(model.spectrum.lean, np.zeros(len(shares))),
        drift,
    )
    return dataclasses.replace(
        model,
        factors=model.factors @ new,
        kinds=np.linalg.solve(new, model.kinds.T).T,
        axes=model.axes @ new,
        spectrum=both.limit(),
    )


def _draw_kinds(model: KindModel, tokens: Tokens, seed: int) -> Array:
    """Kinds of a trace with these requests."""
    layout = TokenLayout.of(tokens.request, tokens.position)
    return choose(model, fields.draw(model.spectrum, layout, seed, balance=True), balance=True)


def _kind_spectrum(model: KindModel, real: Floats, ruler: Ruler, tokens: Tokens, seed: int) -> KindModel:
    """Let the field last as long as makes kinds last as long as they do.

    Choosing the nearest of a few hundred sites loses some of a field's correlation.
    """
    variance = np.maximum((real @ model.axes.T).var(axis=0), 1e-12)

    def parts(places: Floats) -> Floats:
        """Variance by span, relative to the real variance, shape (dimension, span but for the token)."""
        found = covariances(places @ model.axes.T, tokens.counts)
        by_span: Floats = ruler.split(np.einsum("dcc->dc", found[1:])) / variance[:, None]
        return by_span

    wanted = lasting = parts(real)
    slope = _slope(real @ model.axes.T / np.sqrt(variance), tokens)
    for turn in range(KIND_ROUNDS + 1):
        shares = np.column_stack([1 - lasting.sum(axis=1), lasting])
        spectrum = Spectrum(shares, slope, ruler.drift).limit()
        model = dataclasses.replace(model, spectrum=spectrum)
        if turn < KIND_ROUNDS:
            drawn = parts(model.kinds[_draw_kinds(model, tokens, seed + 1 + turn)])
            least = 0.02 * wanted.sum(axis=1, keepdims=True) + 1e-6
            grow = np.clip((wanted + least) / (drawn + least), 0.5, 2)
            lasting = spectrum.shares[:, 1:] * grow
    return model


def _slope(sites: Floats, tokens: Tokens) -> Floats:
    """Slope of a request's mean place on its length, less what few requests make by chance."""
    sums = np.add.reduceat(sites, np.cumsum(tokens.counts) - tokens.counts, axis=0)
    mean = sums / tokens.counts[:, None]
    found = fields.normal_scores(tokens.counts) @ mean / len(mean)
    by_chance = mean.var(axis=0) / len(mean)
    slope: Floats = found * np.maximum(1 - by_chance / np.maximum(found**2, 1e-300), 0)
    return slope
