"""Comparison of an imitation with the real trace, and with independent tokens."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegen.generate import draw
from tracegen.generate.shares import weights_for_shares
from tracegen.stats.statistics import TraceStatistics, gini
from tracegen.trace import provenance
from tracegen.trace.arrays import Floats
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import TraceInfo

TOLERANCE = 0.05
"""Relative difference that is never held against an imitation, however alike the halves are."""


@dataclass(frozen=True)
class StatisticRow:
    """One statistic of three traces."""

    name: str
    label: str
    real: float
    imitated: float
    independent: float
    """Of tokens that choose independently, with the same skew."""
    floor: float | None = None
    """Relative difference between halves of the real trace (:mod:`tracegen.imitate.floors`);
    None where halves are too small for this statistic."""

    @property
    def difference(self) -> float:
        """Relative difference of the imitation; infinite where the real value alone is 0."""
        if not self.real:
            return float(np.inf) if self.imitated else 0.0
        return self.imitated / self.real - 1

    @property
    def limit(self) -> float:
        """Largest relative difference of an imitation that is fit for use."""
        return max(self.floor or 0.0, TOLERANCE)

    @property
    def outside(self) -> bool:
        """Tell whether the imitation differs by more than `limit`."""
        return not abs(self.difference) <= self.limit

    def to_json(self) -> dict[str, Any]:
        """The row, JSON-ready."""
        verdict = {"allowed": self.limit, "outside": self.outside}
        difference = self.difference if np.isfinite(self.difference) else None
        return {**dataclasses.asdict(self), "difference": difference, **verdict}


def compare_statistics(
    real: TraceStatistics,
    imitated: TraceStatistics,
    independent: TraceStatistics,
    floors: Mapping[str, float] | None = None,
) -> list[StatisticRow]:
    """One row for every statistic that all three have.

    Parameters
    ----------
    real, imitated, independent
        From :func:`tracegen.stats.statistics.statistics`.
    floors
        From :func:`tracegen.imitate.floors.floors`, of summaries.
    """
    return [
        StatisticRow(
            name,
            statistic.label,
            statistic.summary,
            imitated.by_name[name].summary,
            independent.by_name[name].summary,
            None if floors is None else floors.get(name),
        )
        for name, statistic in real.by_name.items()
        if name in imitated.by_name and name in independent.by_name
    ]


def zipf_exponent(load: Floats) -> float:
    """Exponent of the Zipf law whose Gini coefficient is the median over layers.

    Parameters
    ----------
    load
        Shape (layer, expert).

    Returns
    -------
    Between 0 and 4, to 1e-6.

    Examples
    --------
    >>> round(zipf_exponent(np.arange(1, 33.0)[None] ** -0.6), 3)
    0.6
    """
    wanted = float(np.median(gini(load)))
    rank = np.arange(1, load.shape[1] + 1, dtype=np.float64)
    low, high = 0.0, 4.0
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if gini(rank**-middle) < wanted else (low, middle)
    return (low + high) / 2


def independent_zipf(trace: RoutingTrace, seed: int = 0) -> RoutingTrace:
    """The same requests with every token choosing for itself, by a Zipf law of the same skew.

    Parameters
    ----------
    trace
        Whose requests and skew are taken.
    seed
        Of the choices.
    """
    exponent = zipf_exponent(trace.load_per_expert().astype(np.float64))
    shares = np.arange(1, trace.num_experts + 1, dtype=np.float64) ** -exponent
    shares /= shares.sum()
    if shares[0] * trace.topk < 1:  # else no weights give that load: an expert is visited once
        shares = weights_for_shares(shares, trace.topk)
    ids = np.empty(trace.expert_ids.shape, trace.expert_ids.dtype)
    for layer in range(trace.num_layers):
        rank = draw.stream(seed, layer, draw.SHAPE_STREAM).permutation(trace.num_experts)
        rng = draw.stream(seed, layer, 1)
        ids[layer] = draw.topk_without_replacement(rng, shares[rank], trace.topk, trace.num_tokens)
    return dataclasses.replace(
        trace,
        expert_ids=ids,
        gate_weights=None,
        flags=None,
        info=TraceInfo(
            kind="synthetic",
            title=f"independent Zipf routing with the skew of {trace.info.title}",
            license="CC0-1.0",
            slot_order="weight_desc",
            provenance=provenance.record(
                "tracegen.imitate.resemblance.independent_zipf",
                parameters={"exponent": exponent, "seed": seed},
                parents=[trace.content_id],
            ),
        ),
        stored_content_id="",
    )
