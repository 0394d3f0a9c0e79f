"""``moereplay report``: saved results as pages, figures and tables."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracegen.cli.delivery import Delivery, delivers


@delivers
def report(
    results: Annotated[
        list[Path],
        typer.Argument(
            help="JSON files that commands wrote with --json, of any version of moereplay; or the folder of a study.",
            show_default=False,
        ),
    ],
    *,
    deliver: Delivery,
) -> None:
    """Write saved results as an HTML page, as figures or as tables.

    Two results of one kind stand side by side, with every difference of inputs and measures marked.
    Three or more of the same work make a comparison; all others follow one another.
    """
    from replay.errors import UserError
    from replay.experiments.base.load import load_result as load
    from replay.experiments.layer.page.several import page_of_several
    from replay.report.command import command_words

    if deliver == Delivery():
        message = "where to? Give --html FILE, --plots FOLDER or --tables FOLDER"
        raise UserError(message)
    loaded = dict(zip(_names(results), map(load, results), strict=True))
    targets = {"--html": deliver.html, "--plots": deliver.plots, "--tables": deliver.tables}
    words = ["moereplay", "report", *map(str, results)]
    for option, target in targets.items():
        words += [] if target is None else [option, str(target)]
    deliver(lambda: page_of_several(loaded, command_words(words)))
    for target in targets.values():
        if target is not None:
            typer.echo(f"written: {target}")


def _names(paths: list[Path]) -> list[str]:
    """Name of each file; with its folder, or a number, where several have one name."""
    names = [path.name for path in paths]
    if len(set(names)) < len(names):
        names = [str(path) for path in paths]
    seen: dict[str, int] = {}
    for place, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        names[place] = name if seen[name] == 1 else f"{name} ({seen[name]})"
    return names
