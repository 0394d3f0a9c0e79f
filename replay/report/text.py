"""Results as tables of text.

Tables are built as rich tables and rendered without a terminal, so that the same text goes to a
screen, a file and a test. Units stand in the headings.
"""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import RenderableType

    from replay.result import Comparison, LayerResult, Result

WIDTH = 132


def render(content: RenderableType) -> str:
    """Plain text of anything rich can draw."""
    out = StringIO()
    Console(file=out, width=WIDTH, color_system=None).print(content, highlight=False)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def comparison(compared: Comparison) -> str:
    """Text of `comparison_tables`."""
    return render(comparison_tables(compared))


def summary(result: Result) -> str:
    """Text of `summary_tables`."""
    return render(summary_tables(result))


def comparison_tables(compared: Comparison) -> Group:
    """Two tables: where the time goes, and what the wire carries."""
    results = compared.results
    base = compared[compared.baseline].totals.mean_layer_us
    times = _table(
        f"Time of a layer{_averaged(results[0])}; speed-up over {compared.baseline}",
        ("scheme", "layer us", "speed-up", "exposed comm us", "bound us", "bound / layer",
         "busiest resource", "utilisation"),
    )  # fmt: skip
    for result in results:
        layer_us = result.totals.mean_layer_us
        bound = _mean(result, lambda layer: layer.bounds_us.largest_us)
        busiest = max(result.layers, key=lambda layer: layer.busiest_resource.utilisation)
        times.add_row(
            result.scheme["name"],
            f"{layer_us:,.1f}",
            f"{base / layer_us:.2f}" if layer_us else "-",
            f"{_mean(result, lambda layer: layer.exposed_communication_us):,.1f}",
            f"{bound:,.1f}",
            f"{bound / layer_us:.1%}" if layer_us else "-",
            busiest.busiest_resource.name,
            f"{busiest.busiest_resource.utilisation:.1%}",
        )
    wire = _table(
        "Payload over each GPU's port (MB), and the busiest port (MB, us)",
        ("scheme", "up mean", "up max", "down mean", "down max", "dispatch", "combine", "both",
         "wire bound us", "phases"),
    )  # fmt: skip
    for result in results:
        wire.add_row(result.scheme["name"], *_wire_cells(result))
    notes = [
        "dispatch, combine, both: payload of the port that is busiest in that phase, or in both.",
        "wire bound: dispatch + combine where a barrier separates them (apart), else the busiest",
        "port of both together (shared).",
    ]
    return Group(Text(_heading(results[0])), times, wire, Text("\n".join(notes)))


def summary_tables(result: Result) -> Group:
    """One run: its layers, its phases, its critical path."""
    layers = _table(
        f"{result.scheme['name']}: layers",
        ("layer", "layer us", "exposed comm us", "bound us", "bound / layer", "busiest resource",
         "utilisation", "tasks"),
    )  # fmt: skip
    for layer in result.layers:
        bound = layer.bounds_us.largest_us
        layers.add_row(
            f"{layer.decoder_layer}",
            f"{layer.makespan_us:,.1f}",
            f"{layer.exposed_communication_us:,.1f}",
            f"{bound:,.1f}",
            f"{bound / layer.makespan_us:.1%}" if layer.makespan_us else "-",
            layer.busiest_resource.name,
            f"{layer.busiest_resource.utilisation:.1%}",
            f"{layer.num_tasks:,}",
        )
    slowest = max(result.layers, key=lambda layer: layer.makespan_us)
    phases = _table(
        f"Phases of layer {slowest.decoder_layer}",
        ("phase", "start us", "end us", "busy us", "busiest port", "payload MB", "port busy us"),
    )
    for name, times in slowest.phases.items():
        port = slowest.busiest_port.get(name)
        phases.add_row(
            name,
            f"{times.start_us:,.1f}",
            f"{times.end_us:,.1f}",
            f"{times.busy_us:,.1f}",
            *((f"{port.direction} {port.gpu}", _mb(port.payload_bytes), f"{port.busy_us:,.1f}")
              if port else ("", "", "")),
        )  # fmt: skip
    path = _table(
        f"Critical path of layer {slowest.decoder_layer}", ("time spent on", "us", "share")
    )
    for what, time_us in slowest.critical_path.by_cause_us.items():
        path.add_row(what, f"{time_us:,.1f}", f"{time_us / max(slowest.makespan_us, 1e-12):.1%}")
    return Group(Text(_heading(result)), layers, phases, path)


def _heading(result: Result) -> str:
    trace, batch, routing = result.trace, result.batch, result.layers[0].routing
    title = trace["title"] or trace["content_id"][:12]
    first = " (first layer)" if len(result.layers) > 1 else ""
    lines = [
        (
            f"{trace['model']}, {trace['num_experts']} experts, top-{trace['topk']}, "
            f"hidden {trace['hidden']}, {result.precision}: {title}"
        ),
        (
            f"{result.system['name']}, {batch['num_ranks']} ranks, {batch['phase']} step "
            f"{batch['step']}, {int(routing['num_tokens']):,} tokens ({batch['batching']}), "
            f"{result.placement} placement"
        ),
        (
            f"{routing['mean_distinct_remote_ranks']:.2f} distinct remote GPUs a token, busiest "
            f"rank {routing['rank_imbalance']:.2f} x the mean{first}"
        ),
    ]
    shared = batch.get("num_slots_sharing_a_request", 0)
    if shared:
        lines.append(
            f"note: {batch['num_requests']} requests fill {shared + batch['num_requests']} slots; "
            f"{shared} slots run a request that another slot runs too, at another position"
        )
    return "\n".join(lines)


def _averaged(result: Result) -> str:
    count = len(result.layers)
    return f" (mean of {count})" if count > 1 else f" (layer {result.layers[0].decoder_layer})"


def _wire_cells(result: Result) -> list[str]:
    count = len(result.layers)
    up = [value / count for value in result.totals.uplink_payload_bytes]
    down = [value / count for value in result.totals.downlink_payload_bytes]
    busiest = [
        _mb(_mean(result, lambda layer, phase=phase: layer.busiest_port[phase].payload_bytes))  # type: ignore[misc]  # the default binds the loop's phase
        for phase in ("dispatch", "combine", "both")
    ]
    apart = result.layers[0].bounds_us.phases_us is not None
    bound = _mean(result, lambda layer: layer.bounds_us.phases_us or layer.bounds_us.port_us)
    return [
        _mb(sum(up) / len(up)),
        _mb(max(up)),
        _mb(sum(down) / len(down)),
        _mb(max(down)),
        *busiest,
        f"{bound:,.1f}",
        "apart" if apart else "shared",
    ]


def _mean(result: Result, of: Callable[[LayerResult], float]) -> float:
    return sum(of(layer) for layer in result.layers) / len(result.layers)


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.2f}"


def _table(title: str, columns: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", no_wrap=True)
    return table
