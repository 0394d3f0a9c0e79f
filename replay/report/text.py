"""Results as tables of text.

Tables are built as rich tables and rendered without a terminal, so that the same text goes to a
screen, a file and a test. Headings give the units.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.text import Text

from replay.errors import check_kind
from replay.measure.result import LayerResult
from replay.report import tensor, training
from replay.report.bands import bands_table
from replay.report.mechanisms import mechanism_table, overhead_table
from replay.report.memory import buffers_table, memory_table, room_notes
from replay.report.network import NOTES as NETWORK_NOTES
from replay.report.network import network_table
from replay.report.notes import (
    chain_note,
    heading,
    launch_notes,
    outside_notes,
    pairs_note,
    token_note,
)
from replay.report.tables import mb, row_names, text_table
from replay.report.times import count, per, time_us, times_table
from replay.report.waiting import waiting_table
from replay.run.result import Comparison, Result
from replay.tensor.result import TensorComparison, TensorResult
from replay.training.result import TrainComparison, TrainResult
from tracegen.screen import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType
    from rich.table import Table

    from replay.measure.result import ChainResult, Measures

WIDTH = 100
MOST_CHAINED_ROWS = 24


def render(content: RenderableType) -> str:
    """Draw anything that rich can as plain text."""
    out = StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, markup=False)
    console.print(content, highlight=False)
    return "\n".join(line.rstrip() for line in plain(out.getvalue()).splitlines()) + "\n"


def summary(
    result: Result | Comparison | TensorResult | TensorComparison | TrainResult | TrainComparison,
) -> str:
    """Give a result or a comparison as tables of plain text.

    Parameters
    ----------
    result
        What `replay.run`, `replay.compare` or `replay.load_result` gave, or those of
        `replay.tensor` and `replay.training`.

    Raises
    ------
    UserError
        If it is something else.
    """
    if isinstance(result, TrainComparison):
        return render(training.comparison_tables(result))
    if isinstance(result, TrainResult):
        return render(training.result_tables(result))
    if isinstance(result, TensorComparison):
        return render(tensor.comparison_tables(result))
    if isinstance(result, TensorResult):
        return render(tensor.result_tables(result))
    check_kind("result", result, (Result, Comparison), "a Result or a Comparison")
    if isinstance(result, Comparison):
        return render(comparison_tables(result))
    return render(summary_tables(result))


def ranking(compared: Comparison) -> Group:
    """What a comparison is asked for first: times, the fastest first, and what they rest on."""
    results = sorted(compared.results, key=time_us)
    network = _network_table(results)
    times = times_table(compared, results)
    notes = [
        *times.explanations(),
        *(NETWORK_NOTES if network else ()),
        *outside_notes(compared),
        "What each scheme waits for, moves, launches and keeps in memory: --details.",
    ]
    return Group(
        Text(heading(*results)),
        times,
        *([network] if network else []),
        Text("\n".join(notes)),
        *bands_table(compared),
    )


def comparison_tables(compared: Comparison) -> Group:
    """Tables of a comparison: times, payload, bytes by purpose, memory, mechanisms; notes."""
    results = compared.results
    network = _network_table(results)
    chained = results[0].chain is not None
    times = times_table(compared, results)
    wire = text_table(
        f"Payload over the ports of a GPU (MB per {'step' if chained else 'layer'}), and over the "
        "busiest port (MB; us)",
        ("scheme", "up mean", "up max", "down mean", "down max", "dispatch", "combine", "both",
         "wire bound us", "phases"),
    )  # fmt: skip
    for name, result in zip(row_names(results), results, strict=True):
        wire.add_row(name, *_wire_cells(result))
    notes = [
        "exposed: communication and waiting that no computation hides; mean over the GPUs. By SMs:",
        "instants count with the share of SMs on which nothing computes. Wires: something of the",
        "GPU's own is under way; imbalance: only other GPUs are busy; latency: none is; unfilled:",
        "it computes on some SMs, and nothing is under way. For L2, for HBM: what tiles wait for.",
        "dispatch, combine, both: payload of the port that carries most in this phase, or in both.",
        "wire bound: the busiest port of dispatch plus that of combine where a barrier separates",
        "the phases (apart), else the busiest port of both together (shared).",
        *(NETWORK_NOTES if network else ()),
        *launch_notes(results),
        *room_notes(results),
        *outside_notes(compared),
    ]
    unit_of = "step" if chained else "layer"
    waiting = waiting_table(results, count(results[0]), unit_of)
    overheads = overhead_table(results, count(results[0]), unit_of)
    memory = memory_table(results)
    mechanisms = mechanism_table(results)
    return Group(
        Text(heading(*results)),
        times,
        *([waiting] if waiting else []),
        wire,
        *([network] if network else []),
        overheads,
        *([memory] if memory else []),
        *([mechanisms] if mechanisms else []),
        Text("\n".join(notes)),
        *bands_table(compared),
    )


def _network_table(results: Sequence[Result]) -> Table | None:
    unit = "layer" if results[0].chain is None else "step"
    return network_table(results, count(results[0]), unit)


def summary_tables(result: Result) -> Group:
    """Tables of one run: layers, phases, critical path, bytes, memory, mechanisms."""
    slowest: LayerResult | ChainResult = max(
        result.parts, key=lambda part: part.measures.makespan_us
    )
    measures = slowest.measures
    name = (
        f"layer {slowest.decoder_layer}"
        if isinstance(slowest, LayerResult)
        else f"{slowest.num_steps} step(s) of {slowest.num_layers} layers"
    )
    phases = text_table(
        f"Phases of {name}",
        ("phase", "start us", "end us", "busy us", "busiest port", "payload MB", "port busy us"),
    )
    for phase, times in measures.phases.items():
        port = measures.busiest_port.get(phase)
        cells = ("", "", "")
        if port:
            busy = f"{port.busy_us:,.1f}"
            cells = (f"{port.direction} {port.gpu}", mb(port.payload_bytes), busy)
        phases.add_row(
            phase,
            f"{times.start_us:,.1f}",
            f"{times.end_us:,.1f}",
            f"{times.busy_us:,.1f}",
            *cells,
        )
    path = text_table(f"Critical path of {name}", ("time spent on", "us", "share"))
    for what, spent_us in measures.critical_path.by_cause_us.items():
        path.add_row(what, f"{spent_us:,.1f}", f"{spent_us / max(measures.makespan_us, 1e-12):.1%}")
    layers = _layer_table(result) if result.chain is None else _chain_table(result.chain)
    unit = "layer" if result.chain is None else "step"
    overheads = overhead_table([result], count(result), unit)
    waiting = waiting_table([result], count(result), unit)
    memory = buffers_table(result)
    network = _network_table([result])
    tables = [
        layers,
        phases,
        *([network] if network else []),
        *([waiting] if waiting else []),
        path,
        overheads,
    ]
    parts: list[Text | Table] = [Text(heading(result)), *tables, *([memory] if memory else [])]
    parts.append(Text("\n".join([*launch_notes([result]), *room_notes([result])])))
    mechanisms = mechanism_table([result])
    if mechanisms:
        parts.append(mechanisms)
    if isinstance(slowest, LayerResult):
        parts.append(Text(token_note(slowest)))
    if result.chain is not None:
        parts.append(Text(chain_note(result.chain)))
        if result.chain.pairs is not None:
            parts.append(Text(pairs_note(result.chain.pairs)))
    return Group(*parts)


def _layer_table(result: Result) -> Table:
    table = text_table(
        f"{result.scheme.name}: layers",
        ("layer", "layer us", "exposed us", "bound us", "bound/time", "busiest resource",
         "in use", "tasks"),
    )  # fmt: skip
    for layer in result.layers:
        measures = layer.measures
        bound = measures.bounds_us.largest_us
        table.add_row(
            f"{layer.decoder_layer}",
            f"{measures.makespan_us:,.1f}",
            f"{measures.exposed_communication_us:,.1f}",
            f"{bound:,.1f}",
            f"{bound / measures.makespan_us:.1%}" if measures.makespan_us else "-",
            measures.busiest_resource.name,
            f"{measures.busiest_resource.utilisation:.1%}",
            f"{measures.num_tasks:,}",
        )
    return table


def _chain_table(chain: ChainResult) -> Table:
    table = text_table(
        "Layers in a chain, over all GPUs",
        ("step", "layer", "first begins us", "last begins us", "first ends us", "last ends us",
         "mean us"),
    )  # fmt: skip
    for layer in chain.layers[-MOST_CHAINED_ROWS:]:
        table.add_row(
            str(layer.step),
            str(layer.layer_index),
            *(f"{time:,.1f}" for time in (*layer.start_us, *layer.end_us, layer.mean_us)),
        )
    num_hidden = len(chain.layers) - MOST_CHAINED_ROWS
    if num_hidden > 0:
        table.caption = f"the last {MOST_CHAINED_ROWS} layers; the JSON has {num_hidden} more"
    return table


def _wire_cells(result: Result) -> list[str]:
    number = count(result)
    up = [value / number for value in result.totals.uplink_payload_bytes]
    down = [value / number for value in result.totals.downlink_payload_bytes]
    busiest = [per(result, _most("dispatch")), per(result, _most("combine"))]
    busiest.append(per(result, _most("dispatch", "combine")))
    apart = result.measured[0].bounds_us.phases_us is not None
    bound_us = per(result, lambda one: one.bounds_us.phases_us or one.bounds_us.port_us)
    sizes = (sum(up) / len(up), max(up), sum(down) / len(down), max(down), *busiest)
    return [*(mb(size) for size in sizes), f"{bound_us:,.1f}", "apart" if apart else "shared"]


def _most(*phases: str) -> Callable[[Measures], float]:
    """Payload of the port that carries most in these phases together."""

    def of(one: Measures) -> float:
        carried = [one.payload_bytes[phase] for phase in phases]
        up = map(sum, zip(*(ports.uplink for ports in carried), strict=True))
        down = map(sum, zip(*(ports.downlink for ports in carried), strict=True))
        return max((*up, *down))

    return of
