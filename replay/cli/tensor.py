"""``moereplay tensor``: layers under tensor parallelism."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.experiments import ComparisonCall, compares
from replay.cli.exports import claim_exports
from replay.cli.options import JsonOption, entries_of, options_of, takes_settings
from replay.cli.schemes import explain, indented, list_tensor
from replay.cli.screen import progress, show, tell
from replay.errors import unknown
from replay.experiments.dense.spec import TensorSpec
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option

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
@takes_settings(spec=TensorSpec)
@delivers
def run(
    given: Mapping[str, Any],
    json_: JsonOption = None,
    trace_events: Annotated[
        Path | None,
        file_option(
            "--trace-events", help="Write the schedule for Perfetto to this file (.gz too)."
        ),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(
            "--export",
            help="FORMAT:FILE, repeatable; formats are chrome, chakra, goal, networkx.",
            callback=claim_exports,
        ),
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--window", help="START:END in us that chrome and networkx show."),
    ] = None,
    max_events: Annotated[
        int | None,
        typer.Option("--max-events", help="Above so many tasks, chrome gets none [1000000]."),
    ] = None,
    *,
    deliver: Delivery,
) -> None:
    """Replay a layer under one scheme."""
    from replay.cli.exports import parse_exports
    from replay.experiments.dense.experiment import run as run_
    from replay.experiments.dense.tables import tables
    from replay.measure.replayed import Replayed
    from replay.report.pages import page
    from replay.schemes.registry import find

    exports = parse_exports(trace_events, export or [], window, max_events, is_one_graph=True)
    settings = _settings(given)
    if "scheme" in settings:
        find(settings["scheme"], "tp", allow_code=True)  # the command line names it
    if "options" in settings:
        name = find(settings.get("scheme", TensorSpec().scheme), "tp", allow_code=True).name
        settings["options"] = _options(settings["options"], [name]).get(name, {})

    def observe(timeline: Timeline, machine: Machine) -> None:
        if exports is not None:
            exports(Replayed.of(timeline, machine))

    with progress(1, "scheme"):
        result = run_(TensorSpec(**settings), observe=observe, report=tell)
    for line in exports.report if exports else []:
        print(line, file=sys.stderr)
    if json_ is not None:
        result.save(json_)
    deliver(lambda: page(result))
    show(tables(result, details=True))


@app.command()
@compares("dense")
def compare(call: ComparisonCall) -> None:
    """Replay a layer under several schemes and compare them, the fastest first."""
    call.carry_out()


def _settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a command line as `TensorSpec` takes them, but for options."""
    settings = dict(given)
    if "overrides" in settings:
        settings["overrides"] = entries_of(settings["overrides"])
    return settings


def _options(given: Sequence[str], schemes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options by scheme; `replay.experiments.dense.replay.compare` refuses unknown ones."""
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(given, schemes):
        if name not in schemes:
            raise unknown("scheme with options", name, schemes)
        options.setdefault(name, {})[key] = value
    return options


# ---- schemes -------------------------------------------------------------------------------------


@app.command()
def schemes(
    scheme: Annotated[
        str | None, typer.Argument(metavar="[SCHEME]", help="A name, or FILE.py:NAME.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """List the schemes of tensor parallelism; explain SCHEME."""
    from replay.schemes.registry import find

    if scheme is None:
        list_tensor(as_json)
    else:
        explain(find(scheme, "tp", allow_code=True), as_json)


# ---- models --------------------------------------------------------------------------------------


@app.command()
def models(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="A name, a TOML file, or a config.json.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """List the models whose layers can be replayed; show MODEL with its sources."""
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
    print(indented(f"Other names: {also}.", "", ""))
    print("moereplay tensor models MODEL shows one with its sources.")


def _list_models(title: str, names: Sequence[str]) -> None:
    from replay.model.work.transformer_shape import load
    from tracegen.shared.display.content import Column, Table

    words = ("layers", "hidden", "inner", "heads", "kv heads", "sequence")
    columns = [Column("model"), *(Column(word, form="d", rank=1) for word in words)]
    rows = [
        (
            shape.name, shape.num_layers, shape.hidden, shape.intermediate, shape.num_heads,
            shape.num_kv_heads, shape.sequence_length or None,
        )
        for shape in map(load, names)
    ]  # fmt: skip
    show(Table("models", title, columns, rows))


def _show_model(name: str, as_json: bool) -> None:
    from replay.model.work.transformer_shape import load

    shape = load(name)
    if as_json:
        print(json.dumps(shape.model_dump(mode="json"), indent=1))
        return
    print(f"{shape.name}: {shape.title}\n")
    if shape.notes:
        print(indented(shape.notes, "  ", "  ") + "\n")
    values = shape.model_dump(exclude={"name", "title", "notes", "sources"})
    for key, value in values.items():
        if value in (0, None) and key not in shape.sources:
            continue  # no experts
        print(indented(f"{key} = {str(value).lower()}", "  ", "  "))
        if source := shape.sources.get(key):
            print(indented(source, " " * 6, " " * 6))
