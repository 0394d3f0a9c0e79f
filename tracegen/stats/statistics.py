"""Statistics of routing that decide what communication costs: skew, locality, co-activation.

Sums are kept by group of requests, so that every statistic comes with the standard error that
leaving out one group at a time gives (delete-a-group jackknife): tokens of one request are
alike, and an error over tokens would be far too small.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from tracegen.shared.display.exhibit import Exhibit
from tracegen.shared.least import least
from tracegen.stats.sample import (
    Sample,
    Statistic,
    distinct,
    indicators,
    jackknife,
    sample_of,
)
from tracegen.trace.arrays import Array, Floats
from tracegen.trace.routing import RoutingTrace

LAGS = (1, 2, 4, 8, 16, 32, 64)
"""Distances at which reuse is measured, in tokens of the same request."""
BATCHES = (64, 256, 1024, 4096)
"""Consecutive tokens of a batch (prefill-like)."""
REQUEST_BATCHES = (32, 128, 512)
"""Requests of a batch with one token of each (decode-like)."""
DRAWS = 64
"""Batches drawn of each size."""
MAX_TOKENS = 60_000
"""Tokens for pair statistics: correlations to 0.004."""
MAX_REUSES = 20_000
"""Token pairs of each lag."""


@dataclass(frozen=True)
class TraceStatistics(Exhibit):
    """Everything that ``moereplay trace stats`` shows."""

    PAGE: ClassVar[str] = "tracegen.stats.page:statistics_page"

    by_name: dict[str, Statistic]
    load: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Share of tokens that visit each expert, shape (layer, expert)."""
    correlation: Floats = field(default_factory=lambda: np.zeros((0, 0, 0)))
    """Of visits of two experts by the same token, shape (layer, expert, expert)."""
    fanout: dict[int, Floats] = field(default_factory=dict)
    """By number of expert groups: share of tokens that visit 0, 1, ... groups, (layer, groups)."""
    travel: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Visits from a group of experts (of 8) of one layer to one of the next; sums to 1."""

    def summary(self) -> dict[str, float]:
        """Every statistic over all layers, by name."""
        return {name: statistic.summary for name, statistic in self.by_name.items()}

    def _rows(self) -> list[dict[str, Any]]:
        """One for each statistic and layer."""
        return [
            {
                "statistic": name,
                "label": one.label,
                "layer_index": layer,
                "value": value,
                "standard_error": error,
            }
            for name, one in self.by_name.items()
            for layer, (value, error) in enumerate(zip(one.value.tolist(), one.error.tolist(), strict=True))
        ]

    def to_json(self) -> dict[str, Any]:
        """All numbers, JSON-ready."""
        return {
            name: {
                "label": s.label,
                "summary": s.summary,
                "summary_error": s.summary_error,
                "value": s.value.tolist(),
                "error": s.error.tolist(),
            }
            for name, s in self.by_name.items()
        }


def statistics(trace: RoutingTrace, *, seed: int = 0) -> TraceStatistics:
    """Measure a trace.

    Parameters
    ----------
    trace
        With at least two requests.
    seed
        Of the samples where all tokens would take long.

    Raises
    ------
    UserError
        If there is nothing to measure.
    """
    sample = sample_of(trace, seed)
    found: dict[str, Statistic] = {}
    _skew(sample, found)
    _reuse(sample, found)
    correlation, travel = _together(sample, found)
    fanout = _fanout(sample, found)
    _busiest(sample, found)
    return TraceStatistics(found, _load(sample).sum(0) / sample.request.size, correlation, fanout, travel)


def _load(sample: Sample) -> Array:
    """Visits by group of requests, layer and expert."""
    layers = sample.ids.shape[0]
    groups = int(sample.group.max()) + 1
    width = sample.num_experts
    out = np.zeros((groups, layers, width))
    for layer in range(layers):
        key = sample.ids[layer].astype(np.int64)
        real = key < width
        key = sample.group[:, None] * width + np.minimum(key, width - 1)
        out[:, layer] = np.bincount(key[real], minlength=groups * width).reshape(groups, width)
    return out


def gini(load: Floats) -> Floats:
    """Gini coefficient of loads: 0 when all are equal.

    Parameters
    ----------
    load
        Non-negative, shape (..., expert).

    Examples
    --------
    >>> gini(np.array([[1.0, 1.0], [0.0, 1.0]])).tolist()
    [0.0, 0.5]
    """
    ordered = np.sort(load, axis=-1)
    count = load.shape[-1]
    rank = np.arange(1, count + 1)
    total = np.maximum(ordered.sum(axis=-1), 1e-300)
    coefficient: Floats = 2 * (ordered @ rank) / (count * total) - (count + 1) / count
    return coefficient


def _skew(sample: Sample, found: dict[str, Statistic]) -> None:
    """Load of experts; and reuse between requests, which the load alone decides."""
    load, topk = _load(sample), sample.ids.shape[2]
    found["load_max_over_mean"] = jackknife(
        "load: busiest expert over mean",
        load,
        lambda n: n.max(axis=1) / np.maximum(n.mean(axis=1), 1e-300),
        np.median,
    )
    found["load_gini"] = jackknife("load: Gini coefficient", load, gini, np.median)
    found["reuse_other_request"] = jackknife(
        "reuse: a token of any request",
        load,
        lambda n: topk * ((n / np.maximum(n.sum(1, keepdims=True), 1e-300)) ** 2).sum(1),
        np.mean,
    )


def _reuse(sample: Sample, found: dict[str, Statistic]) -> None:
    """Share of a token's experts that another token of its request visits too."""
    request, rng = sample.request, sample.rng
    pairs: dict[str, tuple[str, Array, Array]] = {}
    for lag in LAGS:
        rows = np.flatnonzero(request[lag:] == request[:-lag]) + lag
        if rows.size:
            rows = rng.choice(rows, min(rows.size, MAX_REUSES), replace=False)
            pairs[f"reuse_lag_{lag}"] = (f"reuse: lag {lag}", rows, rows - lag)
    rows = rng.choice(request.size, min(request.size, MAX_REUSES), replace=False)
    rows = rows[sample.counts[request[rows]] > 1]
    if rows.size:
        begin, count = sample.begins[request[rows]], sample.counts[request[rows]]
        distance = 1 + np.floor(rng.random(rows.size) * (count - 1)).astype(np.int64)
        label = "reuse: a token of the same request"
        pairs["reuse_same_request"] = (label, rows, begin + (rows - begin + distance) % count)
    groups = int(sample.group.max()) + 1
    for name, (label, tokens, partners) in pairs.items():
        sums = np.zeros((groups, sample.ids.shape[0], 2))
        for layer, ids in enumerate(sample.ids):
            visited = ids[tokens]
            is_visit = visited < sample.num_experts
            is_reuse = (visited[:, :, None] == ids[partners][:, None, :]).any(axis=2) & is_visit
            for column, count in enumerate((is_reuse.sum(1), is_visit.sum(1))):
                sums[:, layer, column] = np.bincount(sample.group[tokens], count, groups)
        found[name] = jackknife(label, sums, _ratio, np.mean)


def _ratio(sums: Array) -> Floats:
    """First sum over the second."""
    ratio: Floats = sums[:, 0] / np.maximum(sums[:, 1], 1e-300)
    return ratio


def _together(sample: Sample, found: dict[str, Statistic]) -> tuple[Floats, Floats]:
    """Co-activation within a layer, and how well a layer predicts the next."""
    tokens = sample.request.size
    # Every n-th: pieces of all requests, long ones with more.
    rows = np.arange(0, tokens, -(-tokens // MAX_TOKENS))
    group = sample.group[rows]
    groups, layers, width = int(sample.group.max()) + 1, sample.ids.shape[0], sample.num_experts
    joint = np.zeros((groups, layers, width, width))
    recall = np.zeros((groups, max(layers - 1, 0), 2))
    owner = sample.expert_per_group.get(8, np.zeros(width, int))[:width]
    travel = np.zeros((int(owner.max()) + 1,) * 2)
    places = 8 if 8 in sample.expert_per_group else 1
    before: Array | None = None
    learns = group % 2 == 0
    for layer in range(layers):
        present = indicators(sample.ids[layer : layer + 1, rows], width)
        for part in range(groups):
            ours = present[group == part]
            joint[part, layer] = ours.T @ ours
        if before is not None:
            table = before[learns].T @ present[learns]
            np.add.at(travel, (owner[:, None], owner[None, :]), table)
            table /= np.maximum(before[learns].sum(axis=0), 1)[:, None]
            guess = before[~learns] @ table
            hits = _hits(guess, present[~learns], sample.ids.shape[2])
            for column, count in enumerate((hits, present[~learns].sum(axis=1))):
                recall[:, layer - 1, column] = np.bincount(group[~learns], count, groups)
        before = present
    visits = np.bincount(group, minlength=groups).astype(np.float64)
    packed = np.concatenate([joint.reshape(groups, layers, -1), np.tile(visits[:, None, None], (1, layers, 1))], axis=2)
    upper = np.triu_indices(width, 1)

    def pairs(sums: Array) -> Floats:
        return _correlation(sums, width)[:, upper[0], upper[1]]

    found["pair_std"] = jackknife("co-activation: spread", packed, lambda s: pairs(s).std(axis=1), np.median)
    found["pair_max"] = jackknife("co-activation: strongest pair", packed, lambda s: pairs(s).max(axis=1), np.median)
    if layers > 1:
        # Groups that only taught the table have no hits to leave out.
        tested = recall[recall[:, 0, 1] > 0]
        if tested.size:
            label = "next layer: experts predicted"
            found["next_layer_recall"] = jackknife(label, tested, _ratio, np.mean)
    travel = travel[:places, :places]  # without zero experts
    return _correlation(packed.sum(axis=0), width), travel / max(travel.sum(), 1)


def _hits(guess: Array, present: Array, topk: int) -> Array:
    """Number of the most likely experts that each token did visit."""
    best = least(-guess, topk)
    hits: Array = np.take_along_axis(present, best, axis=1).sum(axis=1)
    return hits


def _correlation(packed: Array, width: int) -> Floats:
    """Correlation of visits from joint counts and, in the last column, tokens."""
    joint = packed[:, :-1].reshape(-1, width, width) / np.maximum(packed[:, -1:, None], 1)
    share = np.einsum("lee->le", joint)
    covariance = joint - share[:, :, None] * share[:, None, :]
    spread = np.sqrt(np.maximum(share * (1 - share), 1e-12))
    correlation: Floats = covariance / (spread[:, :, None] * spread[:, None, :])
    return correlation


def _fanout(sample: Sample, found: dict[str, Statistic]) -> dict[int, Floats]:
    """Distinct groups of experts that a token visits."""
    groups = int(sample.group.max()) + 1
    layers, _, topk = sample.ids.shape
    shares = {}
    for number, owner in sample.expert_per_group.items():
        histogram = np.zeros((groups, layers, topk + 1))
        for layer, ids in enumerate(sample.ids):
            key = sample.group * (topk + 1) + distinct(owner[ids], number)
            histogram[:, layer] = np.bincount(key, minlength=groups * (topk + 1)).reshape(groups, topk + 1)
        found[f"distinct_groups_{number}"] = jackknife(
            f"distinct of {number} groups per token",
            histogram,
            lambda n: (n @ np.arange(topk + 1)) / np.maximum(n.sum(axis=1), 1),
            np.mean,
        )
        total = histogram.sum(axis=0)
        shares[number] = total / np.maximum(total.sum(axis=1, keepdims=True), 1)
    return shares


def _busiest(sample: Sample, found: dict[str, Statistic]) -> None:
    """Visits of the busiest group of experts over the mean, by size and kind of batch."""
    tokens = sample.request.size
    batches: list[tuple[str, str, list[Array]]] = []
    for size in BATCHES:
        if size <= tokens:
            starts = sample.rng.integers(0, tokens - size + 1, DRAWS)
            rows = [np.arange(start, start + size) for start in starts]
            batches.append((f"tokens_{size}", f"{size} consecutive tokens", rows))
    for size in REQUEST_BATCHES:
        if size <= sample.counts.size:
            rows = []
            for _ in range(DRAWS):
                chosen = sample.rng.choice(sample.counts.size, size, replace=False)
                offset = np.floor(sample.rng.random(size) * sample.counts[chosen])
                rows.append(sample.begins[chosen] + offset.astype(np.int64))
            batches.append((f"requests_{size}", f"a token of {size} requests", rows))
    for number, owner in sample.expert_per_group.items():
        for name, label, drawn in batches:
            value = np.stack([_imbalance(sample.ids[:, rows], owner, number) for rows in drawn])
            mean, spread = value.mean(axis=0), value.std(axis=0) / np.sqrt(len(drawn))
            # Layers share the batches: the error of their mean is that of the batches' means.
            overall = value.mean(axis=1).std() / np.sqrt(len(drawn))
            found[f"busiest_group_{number}_{name}"] = Statistic(
                f"busiest of {number} groups: {label}",
                mean,
                spread,
                float(mean.mean()),
                float(overall),
            )


def _imbalance(ids: Array, owner: Array, number: int) -> Floats:
    """Visits of the busiest group over the mean, by layer."""
    layers = ids.shape[0]
    key = (np.arange(layers)[:, None] * (number + 1) + owner[ids].reshape(layers, -1)).ravel()
    visits = np.bincount(key, minlength=layers * (number + 1)).reshape(layers, number + 1)
    real = visits[:, :number]
    busiest: Floats = real.max(axis=1) / np.maximum(real.mean(axis=1), 1e-300)
    return busiest
