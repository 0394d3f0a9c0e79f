"""One run as tables: its layers, the phases of the slowest, and its critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.measure.result import LayerResult
from replay.report.tables import MB, table, told
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.experiments.layer.result import Result
    from replay.measure.result import ChainResult, Measures
    from tracegen.shared.display.content import Cell

MOST_CHAINED_ROWS = 24


def slowest_part(result: Result) -> LayerResult | ChainResult:
    """The layer, or the chain, that took longest."""
    return max(result.parts, key=lambda part: part.measures.makespan_us)


def part_name(part: LayerResult | ChainResult) -> str:
    """Name a layer or a chain for a heading."""
    if isinstance(part, LayerResult):
        return f"layer {part.decoder_layer}"
    return f"{part.num_steps} step(s) of {part.num_layers} layers"


def layers_table(result: Result) -> Table:
    """Times of all layers, isolated or in a chain."""
    return _isolated(result) if result.chain is None else _chained(result.chain)


def _isolated(result: Result) -> Table:
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
        (told("exposed", "us", ",.1f"), lambda one: one.measures.exposed_communication_us),
        (told("bound", "us", ",.1f", 1), lambda one: one.measures.bounds_us.largest_us),
        (told("bound/time", "", ".1%", 2), bound_over_time),
        (told("binds", rank=1), lambda one: one.measures.busiest_resource.name),
        (Column("in use", "", ".1%", 2), lambda one: one.measures.busiest_resource.utilisation),
        (Column("tasks", "", ",d", 3), lambda one: one.measures.num_tasks),
    )


def _chained(chain: ChainResult) -> Table:
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
        (told("mean", "us", ",.1f", word="mean of a chained layer"), lambda one: one.mean_us),
        notes=[hidden] if num_hidden > 0 else [],
    )


def phases_table(measures: Measures, what: str) -> Table:
    """When the phases of a layer or a chain run, and the port that is longest in service."""
    columns = [
        Column("phase"),
        Column("start", "us", ",.1f"),
        Column("end", "us", ",.1f"),
        told("busy", "us", ",.1f", word="busy of a phase"),
        Column("busiest port", rank=1),
        told("payload", "MB", ",.2f", 2, "payload of a port"),
        Column("port busy", "us", ",.1f", 2),
    ]
    rows: list[tuple[Cell, ...]] = []
    for phase, times in measures.phases.items():
        port = measures.busiest_port.get(phase)
        cells = (
            (f"{port.direction} {port.gpu}", port.payload_bytes / MB, port.busy_us)
            if port
            else (None, None, None)
        )
        rows.append((phase, times.start_us, times.end_us, times.busy_us, *cells))
    return Table("phases", f"Phases of {what}", columns, rows)


def path_table(measures: Measures, what: str) -> Table:
    """What the time of a layer or a chain went by with, each cause in a line that explains it."""
    whole = max(measures.makespan_us, 1e-12)
    return table(
        "critical-path",
        f"Critical path of {what}",
        measures.critical_path.by_cause_us.items(),
        (told("time spent on", word="critical path"), lambda one: one[0]),
        (Column("time", "us", ",.1f"), lambda one: one[1]),
        (Column("share", "", ".1%"), lambda one: one[1] / whole),
        (Column("which is", rank=1), lambda one: says(one[0])),
    )
