"""``moereplay tensor``: layers under tensor parallelism."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from replay.cli.experiments import ComparisonCall, compares
from replay.cli.exports import (
    ExportOption,
    MaxEventsOption,
    TraceEventsOption,
    WindowOption,
    parse_exports,
)
from replay.cli.results import ResultCall, asks
from replay.cli.schemes import explain, indent, list_tensor
from replay.cli.screen import show

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.machine.machine import Machine

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay transformer layers under tensor parallelism.",
)
AsJsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
@asks("dense")
def run(
    call: ResultCall,
    trace_events: TraceEventsOption = None,
    export: ExportOption = None,
    window: WindowOption = None,
    max_events: MaxEventsOption = None,
) -> None:
    """Replay a layer under one scheme."""
    from replay.experiments.dense.tables import tables
    from replay.measure.schedule import ReplayedSchedule

    exports = parse_exports(trace_events, export or [], window, max_events, is_one_graph=True)
    setup = call.setup()
    if call.is_dry(setup):
        return

    def export_all(timeline: Timeline, machine: Machine) -> None:
        assert exports is not None
        exports(ReplayedSchedule.of(timeline, machine))

    observe = None if exports is None else export_all
    result = call.carry_out(setup, observe=observe, unit="scheme")
    for line in exports.report if exports else []:
        print(line, file=sys.stderr)
    show(tables(result, details=True))
    call.tell_difference(result)


@app.command()
@compares("dense")
def compare(call: ComparisonCall) -> None:
    """Replay a layer under several schemes, the fastest first."""
    call.carry_out()


# ---- schemes -------------------------------------------------------------------------------------


@app.command()
def schemes(
    scheme: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCHEME]", help="Scheme to describe: a name, or FILE.py:NAME, which executes the file."
        ),
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """List the schemes of tensor parallelism, or describe one."""
    from replay.schemes.registry import find

    if scheme is None:
        list_tensor(as_json)
    else:
        explain(find(scheme, "tp", allow_code=True), as_json)


# ---- models --------------------------------------------------------------------------------------


@app.command()
def models(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Model to show: a name, a TOML file, or a config.json.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """List the models of `tensor`, or show one with its sources."""
    from replay.model.work.transformer_shape import aliases, load, names, names_of_experts

    if model is not None:
        _show_model(model, as_json)
        return
    if as_json:
        print(
            json.dumps(
                [load(name).model_dump(mode="json") for name in (*names(), *names_of_experts())],
                indent=1,
            )
        )
        return
    _list_models("Models of dense layers", names())
    _list_models("Models of layers with experts, inner width of one", names_of_experts())
    show()
    also = ", ".join(f"{other} ({name})" for other, name in aliases().items())
    print(indent(f"Other names: {also}.", "", ""))
    print("moereplay tensor models MODEL shows one with its sources.")


def _list_models(title: str, names: Sequence[str]) -> None:
    from replay.model.work.transformer_shape import load
    from tracegen.shared.display.content import Column, Table

    words = ("layers", "hidden", "inner", "heads", "kv heads", "sequence")
    columns = [Column("model"), *(Column(word, form="d", rank=1) for word in words)]
    rows = [
        (
            shape.name,
            shape.num_layers,
            shape.hidden,
            shape.intermediate,
            shape.num_heads,
            shape.num_kv_heads,
            shape.sequence_length or None,
        )
        for shape in map(load, names)
    ]
    show(Table("models", title, columns, rows))


def _show_model(name: str, as_json: bool) -> None:
    from replay.model.work.transformer_shape import load

    shape = load(name)
    if as_json:
        print(json.dumps(shape.model_dump(mode="json"), indent=1))
        return
    print(f"{shape.name}: {shape.title}\n")
    if shape.notes:
        print(indent(shape.notes, "  ", "  ") + "\n")
    values = shape.model_dump(exclude={"name", "title", "notes", "sources"})
    for key, value in values.items():
        if value in (0, None) and key not in shape.sources:
            continue  # no experts
        print(indent(f"{key} = {str(value).lower()}", "  ", "  "))
        if source := shape.sources.get(key):
            print(indent(source, " " * 6, " " * 6))
