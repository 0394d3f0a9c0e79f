"""``moereplay train``: training steps under several schemes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from replay.cli.exports import parse_exports
from replay.cli.options import JsonOption, entries_of, options_of, takes_settings
from replay.cli.screen import progress, show
from replay.errors import UserError
from replay.experiments.train.spec import TrainSpec
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from replay.engine import Timeline


@takes_settings(spec=TrainSpec, leave_out=("scheme", "options"))
@delivers
def train(
    given: Mapping[str, Any],
    scheme: Annotated[
        list[str] | None,
        typer.Option(
            "--scheme",
            help="A name of `moereplay schemes`, or FILE.py:NAME, which executes the file. "
            "Repeatable [all that can train].",
        ),
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option("--baseline", help="Speed-ups are over this scheme [deepep, or the first]."),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="Option of one scheme: SCHEME.K=V, repeatable."),
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also causes by stage, and memory.")
    ] = False,
    trace_events: Annotated[
        Path | None,
        file_option(
            "--trace-events",
            help="Write the step of the one scheme for Perfetto to this file (.gz too).",
        ),
    ] = None,
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Replay a step of training a whole model under several schemes, the fastest first."""
    from replay.experiments.train import compare
    from replay.experiments.train.scene import scene
    from replay.report.pages import page
    from replay.report.training import comparison_tables, ranking
    from replay.schemes.registry import COMPARED, find

    settings = dict(given)
    if "overrides" in settings:
        settings["overrides"] = entries_of(settings["overrides"])
    spec = TrainSpec(**settings)
    asked = [find(one, allow_code=True).name for one in scheme or COMPARED]
    options: dict[str, dict[str, str]] = {}
    for name, key, value in options_of(option or (), asked):
        options.setdefault(name, {})[key] = value
    exports = parse_exports(trace_events, (), None, None, is_one_graph=True)
    if exports is not None and len(asked) != 1:
        message = "--trace-events holds one step: name one --scheme"
        raise UserError(message)

    def observe(timeline: Timeline) -> None:
        if exports is not None:
            exports(timeline, scene(timeline))

    with progress(len(asked), "scheme") as bar:
        compared = compare(
            spec, scheme, baseline=baseline, options=options, observe=observe,
            progress=bar.update,
        )  # fmt: skip
    for line in exports.report if exports else []:
        print(line, file=sys.stderr)
    if json_ is not None:
        compared.save(json_)
    deliver(lambda: page(compared))
    show(comparison_tables(compared) if details else ranking(compared))
