"""The options by which every command that has a result shows it elsewhere than on the screen.

A command takes a parameter ``deliver: Delivery`` and is decorated with `delivers`. It gets the
options, and calls ``deliver(make)`` with what makes its page; the page is made only where it is
asked for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tracegen.cli.outputs import file_option, folder_option
from tracegen.shared.output import write_text

if TYPE_CHECKING:
    from tracegen.shared.display.content import Page

OPTIONS: dict[str, Any] = {
    "html": Annotated[
        Path | None,
        file_option("--html", help="Write a report, one HTML page, to this file."),
    ],
    "plots": Annotated[
        Path | None,
        folder_option("--plots", help="Draw every chart, as SVG, PDF and PNG, into this folder."),
    ],
    "tables": Annotated[
        Path | None,
        folder_option("--tables", help="Write every table, as CSV, Markdown, LaTeX and Parquet, into this folder."),
    ],
}
"""Annotation of each option, by the field of `Delivery` that has what was given."""


@dataclass(frozen=True)
class Delivery:
    """Outputs that the user asked for besides the screen.

    Attributes
    ----------
    html
        File for the report; None where there is to be none.
    plots, tables
        Folders for figures and for tables; None where there are to be none.
    """

    html: Path | None = None
    plots: Path | None = None
    tables: Path | None = None

    def __call__(self, make: Callable[[], Page]) -> None:
        """Make the page and write all that was asked for.

        Parameters
        ----------
        make
            Gives the page; not called where nothing was asked for.

        Raises
        ------
        UserError
            If a file cannot be written, or figures are asked for without matplotlib.
        """
        if self == Delivery():
            return
        page = make()
        if self.html is not None:
            from tracegen.shared.display.html import document

            write_text(self.html, document(page))
        if self.plots is not None:
            from tracegen.shared.display import plots

            if not plots.write(page, self.plots):
                typer.echo("There is nothing to draw.", err=True)
        if self.tables is not None:
            from tracegen.shared.display import files

            written = files.write(page, self.tables)
            if written.left_out:
                typer.echo(written.left_out, err=True)


def delivers(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options, in the place of its parameter ``deliver``."""
    given = inspect.signature(command, eval_str=True).parameters
    parameters: list[inspect.Parameter] = []
    for one in given.values():
        if one.name != "deliver":
            parameters.append(one)
            continue
        parameters += [
            # A command may have a parameter of its own that is called `tables`.
            inspect.Parameter(f"deliver_{name}", one.kind, default=None, annotation=annotation)
            for name, annotation in OPTIONS.items()
        ]

    @functools.wraps(command)
    def wrapper(*arguments: Any, **values: Any) -> None:
        taken = {name: values.pop(f"deliver_{name}") for name in OPTIONS}
        if taken["plots"] is not None:
            from tracegen.shared.display.plots import check

            check()  # before the work, which may take long
        command(*arguments, deliver=Delivery(**taken), **values)

    return with_parameters(wrapper, parameters)


def with_parameters(command: Callable[..., None], parameters: Sequence[inspect.Parameter]) -> Callable[..., None]:
    """Let typer read a command's options off these parameters, in place of its own.

    Parameters
    ----------
    command
        Takes the values of the parameters by their names.
    """
    vars(command).pop("__wrapped__", None)  # whose signature typer would read
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # read by typer
    command.__annotations__ = {one.name: one.annotation for one in parameters}
    return command
