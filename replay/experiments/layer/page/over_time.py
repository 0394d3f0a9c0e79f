"""How long each layer of a run takes, and how long tokens take, as plots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.experiments.layer.tables.tokens import slowest_layer
from tracegen.shared.display.content import Axis, Line, Plot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.result import ChainedLayer, LayerResult

MOST_LINES = 6
"""Lines in one picture that can still be told apart."""

MOST_CHAINED = 512
"""Layers of a chain that are drawn, the last ones."""

SHARES = {"p50_us": 50.0, "p90_us": 90.0, "p99_us": 99.0, "max_us": 100.0}


def layers_plot(result: Result) -> Plot | None:
    """Time of each layer, isolated or in a chain; None where there is only one."""
    times: list[tuple[LayerResult | ChainedLayer, int, float]]
    if result.chain is None:
        times = [(one, one.decoder_layer, one.measures.makespan_us) for one in result.layers]
    else:
        chained = result.chain.layers[-MOST_CHAINED:]
        times = [(each, each.layer_index, each.mean_us) for each in chained]
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for layer, place, us in times:
        name = f"step {layer.step}, {'backward' if layer.is_backward else 'forward'}"
        x, y = lines.setdefault(name, ([], []))
        x.append(place)
        y.append(us)
    if max((len(x) for x, _ in lines.values()), default=0) < 2:
        return None
    return Plot(
        name="layers",
        title="Time of each layer",
        x=Axis("layer of the model" if result.chain is None else "MoE layer", from_zero=False),
        y=Axis("us"),
        lines=[Line(name, x, y, form="points") for name, (x, y) in lines.items()][-MOST_LINES:],
        says="" if result.chain is None else "From its beginning on a GPU to its end there, mean.",
    )


def latency_plot(results: Sequence[Result]) -> Plot | None:
    """Distribution of the tokens' time from dispatch to combine; None where no result has any."""
    lines = []
    for name, layer in zip(row_names(results), map(slowest_layer, results), strict=True):
        if layer is not None and layer.token_latency_us.num_tokens:
            y = [getattr(layer.token_latency_us, field) for field in SHARES]
            lines.append(Line(name, list(SHARES.values()), y))
    if not lines:
        return None
    return Plot(
        name="latency",
        title="Tokens: time from dispatch to combine",
        x=Axis("share of the tokens, %", from_zero=False),
        y=Axis("us", log=all(min(line.y) > 0 for line in lines)),
        lines=lines,
        says="Quantiles: so many of a hundred tokens take no longer.",
    )
