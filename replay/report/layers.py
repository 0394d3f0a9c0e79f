"""One run as tables: its layers, the phases of the slowest, and its critical path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.measure.result import LayerResult
from replay.report.tables import MB
from replay.report.words import says
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from replay.experiments.layer.result import Result
    from replay.measure.result import ChainResult, Measures

MOST_CHAINED_ROWS = 24


def slowest_part(result: Result) -> LayerResult | ChainResult:
    """The layer, or the chain, that took longest."""
    parts: list[LayerResult | ChainResult] = list(result.parts)
    return max(parts, key=lambda part: part.measures.makespan_us)


def part_name(part: LayerResult | ChainResult) -> str:
    """Name a layer or a chain for a heading."""
    if isinstance(part, LayerResult):
        return f"layer {part.decoder_layer}"
    return f"{part.num_steps} step(s) of {part.num_layers} layers"


def layers_table(result: Result) -> Table:
    """Times of all layers, isolated or in a chain."""
    return _isolated(result) if result.chain is None else _chained(result.chain)


def _isolated(result: Result) -> Table:
    columns = [
        Column("layer", form="d"),
        Column("time", "us", ",.1f"),
        Column("exposed", "us", ",.1f", says=says("exposed")),
        Column("bound", "us", ",.1f", rank=1, says=says("bound")),
        Column("bound/time", "", ".1%", rank=2, says=says("bound/time")),
        Column("binds", rank=1, says=says("binds")),
        Column("in use", "", ".1%", rank=2),
        Column("tasks", form=",d", rank=3),
    ]
    rows = []
    for layer in result.layers:
        measures, busiest = layer.measures, layer.measures.busiest_resource
        bound_us, time_us = measures.bounds_us.largest_us, measures.makespan_us
        rows.append(
            (
                layer.decoder_layer,
                time_us,
                measures.exposed_communication_us,
                bound_us,
                bound_us / time_us if time_us else None,
                busiest.name,
                busiest.utilisation,
                measures.num_tasks,
            )
        )
    return Table("layers", f"{result.scheme.name}: layers", columns, rows)


def _chained(chain: ChainResult) -> Table:
    columns = [
        Column("step", form="d"),
        Column("layer", form="d"),
        Column("first begins", "us", ",.1f"),
        Column("last begins", "us", ",.1f", rank=1),
        Column("first ends", "us", ",.1f", rank=1),
        Column("last ends", "us", ",.1f"),
        Column("mean", "us", ",.1f", says=says("mean of a chained layer")),
    ]
    rows = [
        (layer.step, layer.layer_index, *layer.start_us, *layer.end_us, layer.mean_us)
        for layer in chain.layers[-MOST_CHAINED_ROWS:]
    ]
    num_hidden = len(chain.layers) - MOST_CHAINED_ROWS
    hidden = f"The last {MOST_CHAINED_ROWS} layers; the JSON has {num_hidden} more."
    notes = [hidden] if num_hidden > 0 else []
    return Table("layers", "Layers in a chain, over all GPUs", columns, rows, notes)


def phases_table(measures: Measures, what: str) -> Table:
    """When the phases of a layer or a chain run, and the port that is longest in service."""
    columns = [
        Column("phase"),
        Column("start", "us", ",.1f"),
        Column("end", "us", ",.1f"),
        Column("busy", "us", ",.1f", says=says("busy of a phase")),
        Column("busiest port", rank=1),
        Column("payload", "MB", ",.2f", rank=2, says=says("payload of a port")),
        Column("port busy", "us", ",.1f", rank=2),
    ]
    rows = []
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
    columns = [
        Column("time spent on", says=says("critical path")),
        Column("time", "us", ",.1f"),
        Column("share", "", ".1%"),
        Column("which is", rank=1),
    ]
    rows = [
        (cause, spent_us, spent_us / max(measures.makespan_us, 1e-12), says(cause))
        for cause, spent_us in measures.critical_path.by_cause_us.items()
    ]
    return Table("critical-path", f"Critical path of {what}", columns, rows)
