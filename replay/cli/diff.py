"""``moereplay diff``: inputs and times in which two results differ."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from replay.cli.screen import show
from tracegen.cli.delivery import Delivery, delivers
from tracegen.cli.outputs import file_option


@delivers
def diff(
    before: Annotated[
        str,
        typer.Argument(
            help="JSON file of a result or a comparison; or, of COMPARED, the name of a row as its table prints it.",
            show_default=False,
        ),
    ],
    after: Annotated[
        str, typer.Argument(help="File or row to set beside it, of any version of moereplay.", show_default=False)
    ],
    compared: Annotated[
        Path | None,
        typer.Argument(help="With two rows: JSON file of the comparison that has both.", show_default=False),
    ] = None,
    json_: Annotated[Path | None, file_option("--json", help="Write the whole difference to this file.")] = None,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="End with exit code 1 if anything is different.")
    ] = False,
    *,
    deliver: Delivery,
) -> None:
    """Compare two results: inputs that differ, effects by cause.

    A changed time is split by cause, along the critical path.
    """
    import replay
    from replay.studies.differences.explanation import results_of_file
    from replay.studies.differences.page import difference_tables, page

    both = (before, after) if compared is None else results_of_file(compared, before, after)
    found = replay.diff(*both)
    if json_ is not None:
        found.save(json_)
    words = [before, after, *([] if compared is None else [str(compared)])]
    deliver(lambda: page(found, *words))
    show(difference_tables(found))
    if exit_code and not found.is_same:
        raise typer.Exit(1)
