"""Tables of tokens: their routing, and quantiles of their times."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names, short_placement
from replay.measure.result import LayerResult
from replay.report.tables import table
from tracegen.shared.display.content import Column

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.result import ChainResult
    from tracegen.shared.display.content import Table


def routing_table(results: Sequence[Result]) -> Table:
    """Routing of each layer, of each placement once."""
    first: dict[str, Result] = {}
    for result in results:
        first.setdefault(result.placement, result)
    rows = [
        (short_placement(one.spec.placement), _layer(part), part.routing)
        for one in first.values()
        for part in one.parts
    ]
    pairs = "of a token and an expert that it chose"
    copies = "of a token and a GPU that hosts an expert of it"
    return table(
        "routing",
        "What the routing asks for",
        rows,
        (Column("placement"), lambda one: one[0]),
        (Column("layer"), lambda one: one[1]),
        (Column("tokens", "", ",.0f", 1), lambda one: one[2].num_tokens),
        (Column("pairs", "", ",.0f", 2, pairs), lambda one: one[2].num_pairs),
        (Column("copies", "", ",.0f", 0, copies), lambda one: one[2].num_copies),
        (Column("GPUs per token", "", ".2f", 2), lambda one: one[2].mean_distinct_ranks),
        (Column("other GPUs per token", "", ".2f"), lambda one: one[2].mean_distinct_remote_ranks),
        (
            Column("experts elsewhere", "", ".2f", 3, "of a token, on other GPUs"),
            lambda one: one[2].mean_remote_pairs,
        ),
        (
            Column("imbalance", "x", ".2f", says="pairs of the busiest GPU over the mean"),
            lambda one: one[2].rank_imbalance,
        ),
    )


def _layer(part: LayerResult | ChainResult) -> str:
    if not isinstance(part, LayerResult):
        return "mean of the layers"
    way = ", backward" if part.is_backward else ""
    return f"{part.decoder_layer}{way}, step {part.step}"


def slowest_layer(result: Result) -> LayerResult | None:
    """The isolated layer that takes longest; None in chains."""
    return max(result.layers, key=lambda one: one.measures.makespan_us, default=None)


def latency_table(results: Sequence[Result]) -> Table | None:
    """Quantiles of the tokens' times; None where no result has any."""
    named = zip(row_names(results), map(slowest_layer, results), strict=True)
    known = [(name, layer) for name, layer in named if layer is not None]

    def from_start(layer: LayerResult, quantile: str) -> float | None:
        found = layer.token_latency_from_start_us
        return None if found is None else getattr(found, quantile)

    made = table(
        "latency",
        "Time of the tokens, from dispatch to combine",
        [layer for _, layer in known],
        (Column("mean", "us", ",.1f"), lambda one: one.token_latency_us.mean_us),
        (Column("median", "us", ",.1f", 1), lambda one: one.token_latency_us.p50_us),
        (Column("90 %", "us", ",.1f", 2), lambda one: one.token_latency_us.p90_us),
        (Column("99 %", "us", ",.1f"), lambda one: one.token_latency_us.p99_us),
        (Column("longest", "us", ",.1f", 1), lambda one: one.token_latency_us.max_us),
        (
            Column("mean from start", "us", ",.1f", 3, "from the start of the layer"),
            lambda one: from_start(one, "mean_us"),
        ),
        (Column("99 % from start", "us", ",.1f", 3), lambda one: from_start(one, "p99_us")),
        labels=[name for name, _ in known],
    )
    return made if known else None
