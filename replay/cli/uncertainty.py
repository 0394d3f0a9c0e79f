"""``moereplay uncertainty``: bands of a saved result, from random draws of its inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replay.cli.options import AllowCodeOption, JsonOption, MaxMemoryOption
from replay.cli.screen import progress, show, tell
from tracegen.cli.delivery import Delivery, delivers

DRAWS = 20


@delivers
def uncertainty(
    result: Annotated[
        Path,
        typer.Argument(
            help="JSON file of a result or a comparison that has times.",
            show_default=False,
        ),
    ],
    draws: Annotated[
        int,
        typer.Option("--draws", help="Draws; each replays everything in the file once."),
    ] = DRAWS,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            help="Inputs to draw, with commas: hardware; of `run` and `compare` also software, model, routing [all].",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the draws.")] = 0,
    jobs: Annotated[int, typer.Option("--jobs", help="Processes that share the schemes of a draw.")] = 1,
    max_memory: MaxMemoryOption = None,
    allow_code: AllowCodeOption = False,
    json_: JsonOption = None,
    *,
    deliver: Delivery,
) -> None:
    """Replay a result with its uncertain values drawn at random.

    Printed are bands of the times, and the share of draws in which each order of schemes holds.
    """
    from replay.experiments.base.host_memory import parse_size
    from replay.experiments.base.load import load_result
    from replay.report.command import command_words
    from replay.studies.uncertainty.any_experiment import sureness
    from replay.studies.uncertainty.page import notes, page, table

    given = load_result(result)
    with progress(draws * len(getattr(given, "results", [given])), "replay") as bar:
        found = sureness(
            given,
            draws=draws,
            seed=seed,
            of=None if of is None else [name.strip() for name in of.split(",")],
            jobs=jobs,
            max_memory=None if max_memory is None else parse_size(max_memory),
            progress=bar.update,
            report=tell,
            allow_code=allow_code,
        )
    if json_ is not None:
        found.save(json_)
    words = ["moereplay", "uncertainty", str(result), "--draws", str(draws), "--seed", str(seed)]
    words += [] if of is None else ["--of", of]
    deliver(lambda: page(found, command_words(words)))
    for race in found.races:
        show(table(found, race), "", *notes(found, race))
