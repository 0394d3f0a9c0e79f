"""``moereplay trace models``: the shapes of models that come with the package, with sources."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from tracegen.cli.common import AsJson, user_errors
from tracegen.shared import screen

if TYPE_CHECKING:
    from tracegen.models import ModelShape

TEXTS = ("name", "title", "notes", "sources")


def models(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="Model to show with its sources: a name, a TOML file, or a config.json."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models to generate routing for, or show one."""
    from tracegen import models as shapes

    with user_errors():
        found = [shapes.load(model)] if model is not None else [shapes.load(name) for name in shapes.names()]
        if as_json:
            shown = [shape.model_dump(mode="json") for shape in found]
            typer.echo(json.dumps(shown if model is None else shown[0], indent=2))
        elif model is None:
            _list(found)
        else:
            _show(found[0])


def _list(found: list[ModelShape]) -> None:
    from tracegen import models as shapes
    from tracegen.shared.display.content import Column, Table

    columns = [
        Column("model"),
        Column("MoE layers", form="d", rank=1),
        Column("hidden", form="d"),
        Column("experts", form="d"),
        Column("top-k", form="d"),
        Column("inner", form="d", rank=1, says="width of one routed expert"),
        Column("shared", form="d", rank=2, says="experts that every token visits"),
    ]
    rows = [
        (
            shape.name,
            shape.num_moe_layers,
            shape.hidden,
            shape.num_experts,
            shape.topk,
            shape.moe_intermediate,
            shape.num_shared_experts,
        )
        for shape in found
    ]
    table = Table("models", "Models with experts", columns, rows)
    also = ", ".join(f"{other} ({name})" for other, name in shapes.aliases().items())
    screen.show(table)
    for line in table.explanations():
        screen.show(line, style="dim")
    screen.show(f"\nOther names: {also}.")
    screen.show("moereplay trace models MODEL shows one with its sources.")


def _show(shape: ModelShape) -> None:
    from rich.padding import Padding
    from rich.text import Text

    screen.show(Text.assemble((shape.name, "bold"), f": {shape.title}"))
    if shape.notes:
        screen.show(Padding(shape.notes, (0, 0, 0, 2)))
    for key, value in shape.model_dump(mode="json", exclude={*TEXTS}).items():
        if key not in shape.sources and not value:
            continue  # what the model has nothing of
        screen.show(f"  {key} = {json.dumps(value)}")
        if source := shape.sources.get(key):
            screen.show(Padding(source, (0, 0, 0, 6)), style="dim")
