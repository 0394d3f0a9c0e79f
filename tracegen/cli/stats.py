"""``moereplay trace stats``: measure a trace, and draw it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracegen.cli.common import AsJson, user_errors
from tracegen.cli.outputs import folder_option
from tracegen.errors import UserError
from tracegen.screen import show

if TYPE_CHECKING:
    from tracegen.display.content import Table
    from tracegen.stats.statistics import TraceStatistics


def stats(
    trace: Annotated[str, typer.Argument(help="A name of `list`, or a file.")],
    plots: Annotated[
        Path | None, folder_option("--plots", help="Draw PNG files into this folder.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the samples and batches drawn.")] = 0,
    per_layer: Annotated[
        bool, typer.Option("--per-layer", help="Add a column for the range over layers.")
    ] = False,
    gpus: Annotated[
        int | None,
        typer.Option(
            "--gpus", min=1, help="Show distinct nodes per token instead, for so many GPUs."
        ),
    ] = None,
    gpus_per_node: Annotated[
        int, typer.Option("--gpus-per-node", min=1, help="With --gpus: GPUs that NVLink joins.")
    ] = 8,
    placement: Annotated[
        str,
        typer.Option(help="With --gpus: contiguous or round-robin; others: `moereplay place`."),
    ] = "contiguous",
    as_json: AsJson = False,
) -> None:
    """Measure skew, locality, co-activation and imbalance, with 95 % confidence over requests."""
    with user_errors():
        from tracegen.library import load
        from tracegen.stats.statistics import TraceStatistics, statistics

        loaded = load(trace)
        if gpus is not None:
            from tracegen.stats.nodes import node_statistics

            if plots is not None:
                msg = "--plots draws what is shown without --gpus"
                raise UserError(msg)
            nodes = node_statistics(loaded, gpus, gpus_per_node, placement, seed=seed)
            _print(TraceStatistics(nodes), per_layer, as_json)
            return
        found = statistics(loaded, seed=seed)
        drawn = []
        if plots is not None:
            from tracegen.stats.plots import draw_all

            drawn = draw_all(found, plots, loaded.info.title or trace)
    _print(found, per_layer, as_json)
    for path in () if as_json else drawn:
        typer.echo(path)


def _print(found: TraceStatistics, per_layer: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_json(), indent=1))
    else:
        _show(found, per_layer)


def _show(found: TraceStatistics, per_layer: bool) -> None:
    """Print a table."""
    from tracegen.display.content import Column, Table

    columns = [
        Column("statistic"),
        Column("all layers", form=".3f"),
        Column("+- 95 %", form=".3f"),
        Column("least layer", form=".3f", rank=1),
        Column("largest layer", form=".3f", rank=1),
    ]
    rows = [
        (s.label, s.summary, 1.96 * s.summary_error, float(s.value.min()), float(s.value.max()))
        for s in found.by_name.values()
    ]
    show(Table("statistics", "Statistics", columns, rows))
    if per_layer:
        show(_by_layer(found))


def _by_layer(found: TraceStatistics) -> Table:
    """Values and their confidence in each layer, those of a statistic in one cell."""
    from tracegen.display.content import Column, Table

    rows = []
    for s in found.by_name.values():
        pairs = zip(s.value.tolist(), (1.96 * s.error).tolist(), strict=True)
        rows.append((s.label, " ".join(f"{value:.2f}+-{error:.2f}" for value, error in pairs)))
    columns = [Column("statistic"), Column("layer by layer")]
    return Table("layers", "Layer by layer", columns, rows)
