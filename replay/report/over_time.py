"""The machine over time, and how long tokens take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.measure.result import LayerResult
from replay.report.limits import CLASSES
from tracegen.shared.display.content import Axis, Column, Line, Plot, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from replay.experiments.layer.result import Result
    from replay.measure.parts import TokenLatency
    from replay.measure.result import Measures

SHOWN = ("sm", "uplink", "downlink", "hbm", "nic-out")
"""Classes of resources that are drawn over time."""

MOST_LINES = 6
"""Lines in one picture that can still be told apart."""

MOST_CHAINED = 512
"""Layers of a chain that are drawn, the last ones."""

SHARES = {"p50_us": 50.0, "p90_us": 90.0, "p99_us": 99.0, "max_us": 100.0}


def use_plots(results: Mapping[str, Result]) -> Iterator[Plot]:
    """Share of each kind of resource in service, window by window.

    Parameters
    ----------
    results
        By the name of their line; of several layers the one that takes longest is drawn.
    """
    measures = {name: slowest(one) for name, one in results.items()}
    for group in SHOWN:
        lines = [
            _line(name, one, group)
            for name, one in measures.items()
            if group in one.utilisation_over_time.groups
        ]
        if lines:
            yield Plot(
                name=f"use-{group}",
                title=f"{CLASSES[group]} in use over time",
                x=Axis("us"),
                y=Axis("in use, %"),
                lines=lines,
            )


def slowest(result: Result) -> Measures:
    """Measures of the part that takes longest."""
    return max(result.measured, key=lambda one: one.makespan_us)


def _line(name: str, measures: Measures, group: str) -> Line:
    over = measures.utilisation_over_time
    shares = over.groups[group]
    x = [place * over.window_us for place in range(len(shares))]
    y = [100 * share for share in shares]
    if x:  # the last window ends with the schedule
        x.append(max(measures.makespan_us, x[-1]))
        y.append(y[-1])
    return Line(name, x, y, form="steps")


def layers_plot(result: Result) -> Plot | None:
    """Time of each layer, isolated or in a chain; None where there is only one."""
    lines: dict[str, tuple[list[float], list[float]]] = {}
    if result.chain is None:
        for layer in result.layers:
            name = _pass(layer.step, is_backward=layer.is_backward)
            _append(lines, name, layer.decoder_layer, layer.measures.makespan_us)
    else:
        for chained in result.chain.layers[-MOST_CHAINED:]:
            name = _pass(chained.step, is_backward=chained.is_backward)
            _append(lines, name, chained.layer_index, chained.mean_us)
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


def _pass(step: int, *, is_backward: bool) -> str:
    return f"step {step}, {'backward' if is_backward else 'forward'}"


def _append(
    lines: dict[str, tuple[list[float], list[float]]], name: str, x: float, y: float
) -> None:
    of = lines.setdefault(name, ([], []))
    of[0].append(x)
    of[1].append(y)


def latencies(result: Result) -> tuple[TokenLatency, TokenLatency | None] | None:
    """Latencies of the slowest layer, from its dispatch and from its start; None in chains."""
    if not result.layers:
        return None
    layer = max(result.layers, key=lambda one: one.measures.makespan_us)
    assert isinstance(layer, LayerResult)
    return layer.token_latency_us, layer.token_latency_from_start_us


def latency_plot(results: Sequence[Result]) -> Plot | None:
    """Distribution of the tokens' time from dispatch to combine; None where no result has any."""
    lines = []
    for name, one in zip(row_names(results), results, strict=True):
        found = latencies(one)
        if found is not None and found[0].num_tokens:
            y = [getattr(found[0], field) for field in SHARES]
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


def latency_table(results: Sequence[Result]) -> Table | None:
    """Quantiles of the tokens' times; None where no result has any."""
    rows = []
    for name, one in zip(row_names(results), results, strict=True):
        found = latencies(one)
        if found is None:
            continue
        sent, begun = found
        rows.append(
            (
                name,
                sent.mean_us,
                *(getattr(sent, field) for field in SHARES),
                *((None, None) if begun is None else (begun.mean_us, begun.p99_us)),
            )
        )
    if not rows:
        return None
    columns = [
        Column("scheme"),
        Column("mean", "us", ",.1f"),
        Column("median", "us", ",.1f", rank=1),
        Column("90 %", "us", ",.1f", rank=2),
        Column("99 %", "us", ",.1f"),
        Column("longest", "us", ",.1f", rank=1),
        Column("mean from start", "us", ",.1f", rank=3, says="from the start of the layer"),
        Column("99 % from start", "us", ",.1f", rank=3),
    ]
    return Table("latency", "Time of the tokens, from dispatch to combine", columns, rows)
