"""How long each scheme takes, and what stands in its way."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.experiments.layer.result import Comparison, Result
    from replay.measure.result import Measures


def count(result: Result) -> int:
    """Number that totals are divided by: isolated layers, or steps of a chain."""
    return len(result.layers) if result.chain is None else result.chain.num_steps


def per(result: Result, of: Callable[[Measures], float]) -> float:
    """Sum something over the parts of a result, for each layer or step."""
    return sum(of(one) for one in result.measured) / count(result)


def time_us(result: Result) -> float:
    """Time of a layer, or of a step of a chain."""
    return result.totals.makespan_us / count(result)


def times_table(compared: Comparison, results: Sequence[Result]) -> Table:
    """Times, bounds and the busiest resource, in the order of the results."""
    chained = results[0].chain is not None
    base = time_us(compared.base)
    columns = [
        Column("scheme"),
        Column("step" if chained else "layer", "us", ",.1f"),
        Column("speed-up", "", ".2f", says=says("speed-up")),
        *([Column("MoE layer", "us", ",.1f", rank=4)] if chained else []),
        Column("exposed", "us", ",.1f", rank=1, says=says("exposed")),
        Column("bound", "us", ",.1f", rank=3, says=says("bound")),
        Column("bound/time", "", ".1%", rank=5, says=says("bound/time")),
        Column("binds", rank=2, says=says("binds")),
        Column("in use", "", ".1%", rank=3),
    ]
    rows = []
    for name, result in zip(row_names(results), results, strict=True):
        taken_us, bound_us = time_us(result), per(result, lambda one: one.bounds_us.largest_us)
        busiest = max(
            (one.busiest_resource for one in result.measured), key=lambda one: one.utilisation
        )
        rows.append(
            (
                name,
                taken_us,
                base / taken_us if taken_us else None,
                *([_mean_chained_us(result)] if chained else []),
                per(result, lambda one: one.exposed_communication_us),
                bound_us,
                bound_us / taken_us if taken_us else None,
                busiest.name,
                busiest.utilisation,
            )
        )
    title = f"Time {measured(results[0])}; speed-up over {compared.base_name}"
    return Table("times", title, columns, rows)


def measured(result: Result) -> str:
    """Span of a comparison's times for its heading: one layer, per layer, or per step."""
    if result.chain is not None:
        steps = f", mean of {result.chain.num_steps} steps" if result.chain.num_steps > 1 else ""
        return f"per step ({result.chain.num_layers} layers{steps})"
    number = len(result.layers)
    return (
        f"per layer (mean of {number})"
        if number > 1
        else f"of layer {result.layers[0].decoder_layer}"
    )


def _mean_chained_us(result: Result) -> float:
    assert result.chain is not None
    times = [layer.mean_us for layer in result.chain.layers]
    return sum(times) / len(times)
