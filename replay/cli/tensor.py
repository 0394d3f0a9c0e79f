"""``moereplay tensor``: layers under tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.options import JsonOption, entries_of, options_of
from replay.cli.screen import progress, show
from replay.tensor.spec import TensorSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Replay transformer layers under tensor parallelism.",
)


def _help(field: str) -> str:
    return str(TensorSpec.model_fields[field].description)


@app.command()
def compare(
    model: Annotated[str | None, typer.Option("--model", help=_help("model"))] = None,
    scheme: Annotated[
        list[str] | None,
        typer.Option("--scheme", help=f"{_help('scheme')} Repeatable [all supported]."),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Speed-ups are over this scheme [sp-nvls]."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of one scheme: SCHEME.K=V, repeatable."),
    ] = None,
    system: Annotated[str | None, typer.Option("--system", help=_help("system"))] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help=_help("overrides"))] = None,
    tp: Annotated[int | None, typer.Option("--tp", help=_help("tp"))] = None,
    tokens: Annotated[int | None, typer.Option("--tokens", help=_help("tokens"))] = None,
    sequence: Annotated[int | None, typer.Option("--sequence", help=_help("sequence"))] = None,
    phase: Annotated[str | None, typer.Option("--phase", help=_help("phase"))] = None,
    pass_: Annotated[str | None, typer.Option("--pass", help=_help("direction"))] = None,
    part: Annotated[str | None, typer.Option("--part", help=_help("part"))] = None,
    layers: Annotated[int | None, typer.Option("--layers", help=_help("layers"))] = None,
    launch: Annotated[str | None, typer.Option("--launch", help=_help("launch"))] = None,
    json_: JsonOption = None,
) -> None:
    """Replay a layer under several schemes and compare them, the fastest first."""
    from replay.report.tensor import tables
    from replay.tensor.registry import SCHEMES, find
    from replay.tensor.replays import compare as compare_

    given: dict[str, Any] = {
        "model": model, "system": system, "tp": tp, "tokens": tokens, "sequence": sequence,
        "phase": phase, "direction": pass_, "part": part, "layers": layers, "launch": launch,
    }  # fmt: skip
    settings = {name: value for name, value in given.items() if value is not None}
    if overrides:
        settings["overrides"] = entries_of(overrides)
    spec = TensorSpec(**settings)
    schemes = [find(name).name for name in scheme or ()]
    options = _options(option or (), schemes or list(SCHEMES))
    with progress(len(schemes or SCHEMES), "scheme") as bar:
        compared = compare_(
            spec, schemes or None, baseline=baseline, options=options, progress=bar.update
        )
    if json_ is not None:
        compared.save(json_)
    for table in tables(compared):
        show(table)


def _options(given: Sequence[str], schemes: Sequence[str]) -> dict[str, dict[str, str]]:
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(given, schemes):
        options.setdefault(name, {})[key] = value
    return options


@app.command()
def schemes() -> None:
    """List the schemes of tensor parallelism."""
    from replay.report.tables import text_table
    from replay.tensor.registry import SCHEMES

    table = text_table("Schemes of tensor parallelism", ("name", "what it does"))
    for name, scheme in SCHEMES.items():
        table.add_row(name + ("*" if scheme.proposes else ""), scheme.summary)
    show(table)


@app.command()
def models() -> None:
    """List the models whose layers can be replayed."""
    from replay.report.tables import text_table
    from replay.tensor.shape import load, names

    columns = ("name", "model", "layers", "hidden", "inner width", "heads")
    table = text_table("Models", columns)
    for name in names():
        shape = load(name)
        table.add_row(
            name, shape.title, str(shape.num_layers), str(shape.hidden), str(shape.intermediate),
            f"{shape.num_heads}/{shape.num_kv_heads}",
        )  # fmt: skip
    show(table)
