"""Parts that the trace commands share."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from tracegen.shared import output
from tracegen.shared.errors import UserError
from tracegen.shared.screen import error_line, plain

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
"""Option of the commands that describe something."""
Force = Annotated[bool, typer.Option("--force", help="Overwrite the file.")]
"""Option of the commands that write a file."""
TraceName = Annotated[str, typer.Argument(help="A name of `moereplay trace list`, or a file.")]
"""The trace that a command reads."""


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
    """Print a user's mistake, with the notes added to it, and leave with code 2.

    Raises
    ------
    typer.Exit
        In place of a :class:`UserError`.
    """
    try:
        yield
    except UserError as error:
        for line in (str(error), *getattr(error, "__notes__", ())):
            typer.echo(error_line(line), err=True)
        raise typer.Exit(2) from None


def tell_assumed(model: str | None) -> None:
    """Say what was assumed of a model, where its shape was read from a configuration.

    Parameters
    ----------
    model
        As the user gives it, or None.

    Raises
    ------
    UserError
        If it cannot be read.
    """
    from tracegen import models
    from tracegen.models.config import is_config

    if model is not None and is_config(model):
        shape = models.load(model)
        if shape.notes:
            typer.echo(f"note: {plain(model)}: {plain(shape.notes)}", err=True)


def refuse_existing(out: Path, force: bool) -> None:
    """Refuse to overwrite a file that exists, before the work and not after it.

    Parameters
    ----------
    out
        The file to write.
    force
        Whether overwriting was asked for.

    Raises
    ------
    UserError
        If the file exists and overwriting was not asked for.
    """
    if output.replaces(out) and not force:
        msg = f"{out} exists; --force overwrites it"
        raise UserError(msg)
