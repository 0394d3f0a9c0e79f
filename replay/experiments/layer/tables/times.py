"""Tables of times: of schemes, of one run, of its layers and of its critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import row_names
from replay.measure.result import LayerResult
from replay.report.tables import MB, named_table, table, word_column
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from replay.experiments.layer.result import Comparison, Result
    from replay.measure.parts import WaitTimes
    from replay.measure.result import ChainResult, Measures
    from tracegen.shared.display.content import Cell

CAUSES = {"wires": "wires", "imbalance": "imbalance", "latency": "latency of waiting"}
"""What a GPU waits for, and the words that explain it."""

BOUNDS = {
    "port_us": "busiest port",
    "phases_us": "ports, phases apart",
    "sm_us": "SMs",
    "memory_us": "memory, L2",
    "chain_us": "longest chain",
}
"""Name of each bound by its field."""


def count(result: Result) -> int:
    """Number that totals are divided by: isolated layers, or steps of a chain."""
    return len(result.layers) if result.chain is None else result.chain.num_steps


def unit_of(result: Result) -> str:
    """Unit that times are given for: a layer, or a step of a chain."""
    return "layer" if result.chain is None else "step"


def per(result: Result, of: Callable[[Measures], float]) -> float:
    """Sum something over the parts of a result, for each layer or step."""
    return sum(of(one) for one in result.schedules) / count(result)


def time_us(result: Result) -> float:
    """Time of a layer, or of a step of a chain."""
    return result.totals.makespan_us / count(result)


def bound_us(result: Result) -> float:
    """Largest bound of a layer, or of a step of a chain."""
    return per(result, lambda one: one.bounds_us.largest_us)


def fastest(results: Sequence[Result]) -> list[Result]:
    """Results in the order of their times."""
    return sorted(results, key=time_us)


def bounds_us(result: Result) -> dict[str, float]:
    """Each bound of a result by name, summed over its parts, for each layer or step."""
    found = {}
    for field, name in BOUNDS.items():
        values: list[float | None] = [getattr(one.bounds_us, field) for one in result.schedules]
        known = [value for value in values if value is not None]
        if len(known) == len(values):
            found[name] = sum(known) / count(result)
    return found


def binding(result: Result) -> str:
    """Name of the largest bound."""
    found = bounds_us(result)
    return max(found, key=lambda each: found[each])


def binding_of(measures: Measures) -> str:
    """Name of the largest bound of one schedule."""
    known = {name: getattr(measures.bounds_us, field) for field, name in BOUNDS.items()}
    return max(known, key=lambda each: known[each] or 0.0)


def times_table(compared: Comparison, results: Sequence[Result]) -> Table:
    """First table of a comparison: time, speed-up and bound of each scheme, in the order of the results."""
    base, chained = time_us(compared.base), []
    if results[0].chain is not None:
        chained = [(Column("MoE layer", "us", ",.1f", rank=4), _mean_chained_us)]

    def over_time(result: Result, us: float) -> float | None:
        return us / time_us(result) if time_us(result) else None

    return table(
        "times",
        f"Time {span_text(results[0])}; speed-up over {compared.base_name}",
        results,
        (Column(unit_of(results[0]), "us", ",.1f"), time_us),
        (word_column("speed-up", "", ".2f"), lambda one: over_time(one, base)),
        *chained,
        (
            word_column("exposed", "us", ",.1f", 1),
            lambda one: per(one, lambda each: each.exposed_communication_us),
        ),
        (word_column("bound", "us", ",.1f", 3), bound_us),
        (word_column("bound/time", "", ".1%", 5), lambda one: over_time(one, bound_us(one))),
        (word_column("binds", rank=2), binding),
        labels=row_names(results),
    )


def span_text(result: Result) -> str:
    """Span of a comparison's times for its heading: one layer, per layer, or per step."""
    if result.chain is not None:
        steps = f", mean of {result.chain.num_steps} steps" if result.chain.num_steps > 1 else ""
        layers = "layer" if result.chain.num_layers == 1 else "layers"
        return f"per step ({result.chain.num_layers} {layers}{steps})"
    number = len(result.layers)
    layers = f"per layer (mean of {number})" if number > 1 else f"of {layer_name(result.layers[0])}"
    return f"of the communication alone, {layers}" if result.spec.communication_only else layers


def _mean_chained_us(result: Result) -> float:
    assert result.chain is not None
    times = [layer.mean_us for layer in result.chain.layers]
    return sum(times) / len(times)


# ---- what is waited for --------------------------------------------------------------------------


def waiting_tables(results: Sequence[Result]) -> list[Table]:
    """Exposed communication by what is waited for, mean over the GPUs: by time, and by SMs.

    Parameters
    ----------
    results
        One row each; those of older versions, which do not say, have none.

    Returns
    -------
    Two tables, or none if no result says.
    """
    by_time, by_sms = [], []
    for name, result in zip(row_names(results), results, strict=True):
        times = [_times(one, result.system.values.get("gpu.num_sms")) for one in result.schedules]
        known = [one for one in times if one is not None]
        if known and len(known) == len(times):
            sums = [sum(column) / count(result) for column in zip(*known, strict=True)]
            by_time.append((name, sums[: 1 + len(CAUSES)]))
            by_sms.append((name, sums[1 + len(CAUSES) :]))
    if not by_time:
        return []
    unit = unit_of(results[0])
    causes = [word_column(cause, "us", ",.1f", word=word) for cause, word in CAUSES.items()]
    exposed, waiting = word_column("exposed", "us", ",.1f"), word_column("waiting", "us", ",.1f")
    sms = [word_column(what, "us", ",.1f", 1) for what in ("unfilled", "for L2", "for HBM")]
    title = f"Time of a GPU per {unit} in which it does not compute"
    same = f"The same by SMs, and what SMs wait for while they compute, per {unit}"
    return [
        named_table("waiting", title, [exposed, *causes], by_time),
        named_table("waiting-sms", same, [waiting, *causes, *sms], by_sms),
    ]


def _times(measured: Measures, num_sms: object) -> list[float] | None:
    """Cells of both rows of one schedule, or None where they are not known."""
    exposure, sms = measured.exposure, measured.sm_time_us
    if exposure is None or sms is None or not isinstance(num_sms, int):
        return None
    columns = [*_parts(exposure.by_time), *_parts(exposure.by_sms), exposure.unfilled_us]
    columns += [[time / num_sms for time in of] for of in (sms.waiting_for_l2_us, sms.waiting_for_hbm_us)]
    return [sum(column) / max(len(column), 1) for column in columns]


def _parts(waiting: WaitTimes) -> list[list[float]]:
    """All of it, and each cause, by GPU."""
    return [waiting.total_us, *(getattr(waiting, f"{cause}_us") for cause in CAUSES)]


# ---- one run -------------------------------------------------------------------------------------

MOST_CHAINED_ROWS = 24


def slowest_part(result: Result) -> LayerResult | ChainResult:
    """The layer, or the chain, that took longest."""
    return max(result.parts, key=lambda part: part.measures.makespan_us)


def layer_name(layer: LayerResult) -> str:
    """Name a layer by its number in the model, and its place among those with experts where that is another."""
    place = "" if layer.layer_index == layer.decoder_layer else f" (position {layer.layer_index})"
    return f"layer {layer.decoder_layer}{place}"


def part_name(part: LayerResult | ChainResult) -> str:
    """Name a layer or a chain for a heading."""
    if isinstance(part, LayerResult):
        return layer_name(part)
    return f"{part.num_steps} step(s) of {part.num_layers} layers"


def layers_table(result: Result) -> Table:
    """Times of all layers, isolated or in a chain."""
    return _isolated_table(result) if result.chain is None else _chain_table(result.chain)


def _isolated_table(result: Result) -> Table:
    def bound_over_time(layer: LayerResult) -> float | None:
        measures = layer.measures
        time_us, bound_us = measures.makespan_us, measures.bounds_us.largest_us
        return bound_us / time_us if time_us else None

    return table(
        "layers",
        f"{result.scheme.name}: layers",
        result.layers,
        (Column("layer", form="d"), lambda one: one.decoder_layer),
        (Column("time", "us", ",.1f"), lambda one: one.measures.makespan_us),
        (word_column("exposed", "us", ",.1f"), lambda one: one.measures.exposed_communication_us),
        (word_column("bound", "us", ",.1f", 1), lambda one: one.measures.bounds_us.largest_us),
        (word_column("bound/time", "", ".1%", 2), bound_over_time),
        (word_column("binds", rank=1), lambda one: binding_of(one.measures)),
        (Column("tasks", "", ",d", 3), lambda one: one.measures.num_tasks),
    )


def _chain_table(chain: ChainResult) -> Table:
    num_hidden = len(chain.layers) - MOST_CHAINED_ROWS
    hidden = f"The last {MOST_CHAINED_ROWS} layers; the JSON has {num_hidden} more."
    return table(
        "layers",
        "Layers in a chain, over all GPUs",
        chain.layers[-MOST_CHAINED_ROWS:],
        (Column("step", form="d"), lambda one: one.step),
        (Column("layer", form="d"), lambda one: one.layer_index),
        (Column("first begins", "us", ",.1f"), lambda one: one.start_us[0]),
        (Column("last begins", "us", ",.1f", 1), lambda one: one.start_us[1]),
        (Column("first ends", "us", ",.1f", 1), lambda one: one.end_us[0]),
        (Column("last ends", "us", ",.1f"), lambda one: one.end_us[1]),
        (word_column("mean", "us", ",.1f", word="mean of a chained layer"), lambda one: one.mean_us),
        notes=[hidden] if num_hidden > 0 else [],
    )


def phases_table(measures: Measures, what: str) -> Table:
    """Table of a layer's or a chain's phases, with the port that is longest in service."""
    columns = [
        Column("phase"),
        Column("start", "us", ",.1f"),
        Column("end", "us", ",.1f"),
        word_column("busy", "us", ",.1f", word="busy of a phase"),
        Column("busiest port", rank=1),
        word_column("payload", "MB", ",.2f", 2, "payload of a port"),
        Column("port busy", "us", ",.1f", 2),
    ]
    rows: list[tuple[Cell, ...]] = []
    for phase, times in measures.phases.items():
        port = measures.busiest_port.get(phase)
        cells = (f"{port.direction} {port.gpu}", port.payload_bytes / MB, port.busy_us) if port else (None, None, None)
        rows.append((phase, times.start_us, times.end_us, times.busy_us, *cells))
    return Table("phases", f"Phases of {what}", columns, rows)


def path_table(measures: Measures, what: str) -> Table:
    """Table of the critical path of a layer or a chain, each cause in a line that explains it."""
    whole = max(measures.makespan_us, 1e-12)
    return table(
        "critical-path",
        f"Critical path of {what}",
        measures.critical_path.by_cause_us.items(),
        (word_column("time spent on", word="critical path"), lambda one: one[0]),
        (Column("time", "us", ",.1f"), lambda one: one[1]),
        (Column("share", "", ".1%"), lambda one: one[1] / whole),
        (Column("meaning", rank=1), lambda one: says(one[0])),
    )
