"""Options that name what a command writes, for the commands of all packages.

What could not be written is refused before the work. Where a file goes to standard output, what
is printed for people goes to standard error.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import typer

from tracegen.shared import output, regular
from tracegen.shared.errors import UserError

_CLAIMS = "tracegen.cli.outputs"
"""Where a command line keeps which option writes what."""
_FOLDERS = f"{_CLAIMS}.folders"
"""Likewise, which option fills what."""


def file_option(*names: str, help: str) -> Any:
    """An option that names a file to write.

    Parameters
    ----------
    names
        As the user writes it, such as ``--json``; by default the parameter's.
    help
        Its line in the help.
    """
    return typer.Option(*names, help=help, metavar="FILE", parser=str, callback=_file)


def folder_option(*names: str, help: str) -> Any:
    """An option that names a folder to fill; parameters as those of `file_option`."""
    return typer.Option(*names, help=help, metavar="FOLDER", parser=str, callback=_folder)


def file_argument(help: str) -> Any:
    """An argument that names a file to write; parameter as that of `file_option`."""
    return typer.Argument(help=help, metavar="OUT", parser=str, callback=_file)


def folder_argument(help: str) -> Any:
    """An argument that names a folder to fill; parameter as that of `file_option`."""
    return typer.Argument(help=help, metavar="FOLDER", parser=str, callback=_folder)


def claim(ctx: typer.Context, option: str, path: str | Path, *, is_folder: bool = False) -> None:
    """Note what an option writes, and leave standard output to it if it writes there.

    Parameters
    ----------
    ctx
        Of the command.
    option
        Its name, for a message.
    path
        What it writes.
    is_folder
        Whether it fills a folder, which several options may do.

    Raises
    ------
    UserError
        If another option writes the same file, or standard output too.
    """
    if is_folder:
        filled = ctx.meta.setdefault(_FOLDERS, {})
        filled[os.path.realpath(path)] = option
        _refuse_shared(ctx, path)
        return
    is_stdout = output.is_stdout(path)
    place = output.STDOUT if is_stdout else os.path.realpath(path)
    if is_stdout or not output.is_stream(path):
        taken = ctx.meta.setdefault(_CLAIMS, {})
        if place in taken:
            name = "standard output" if is_stdout else path
            message = f"{taken[place]} and {option} both write {name}"
            raise UserError(message)
        taken[place] = option
        _refuse_shared(ctx, path)
    if is_stdout:
        ctx.with_resource(contextlib.redirect_stdout(sys.stderr))


def refuse_inputs(ctx: typer.Context) -> None:
    """Refuse to write over a file that the same command line names as one to read.

    Parameters
    ----------
    ctx
        Of a command whose line is read in full.

    Raises
    ------
    UserError
        If an option writes such a file.
    """
    taken: dict[str, str] = ctx.meta.get(_CLAIMS, {})
    for param in ctx.command.params:
        given = ctx.params.get(param.name or "")
        values = given if isinstance(given, list | tuple) else [given]
        texts = [str(one) for one in values if isinstance(one, str | Path)]
        if not texts or param.opts[0] in taken.values():
            continue
        for text in texts:
            # As placements name their map, and files of schemes stand before the scheme.
            for path in (text, text.removeprefix("file:"), text.rpartition(":")[0]):
                writes = taken.get(os.path.realpath(path)) if regular.is_file(path) else None
                if writes is not None:
                    message = f"{writes} would write over {path}, which is to be read"
                    raise UserError(message)


def refuse_unused(ctx: typer.Context) -> None:
    """Refuse options that name what to write where ``--dry-run`` has nothing to write.

    Parameters
    ----------
    ctx
        Of a command whose line is read in full.

    Raises
    ------
    UserError
        If there is such an option; the folder of a study or a search is one to continue.
    """
    if not ctx.params.get("dry_run"):
        return
    for option in {**ctx.meta.get(_FOLDERS, {}), **ctx.meta.get(_CLAIMS, {})}.values():
        if option != "-o":
            message = f"{option} has nothing to write with --dry-run"
            raise UserError(message)


def _refuse_shared(ctx: typer.Context, path: str | Path) -> None:
    """Refuse a file that is a folder for another option."""
    taken, filled = ctx.meta.get(_CLAIMS, {}), ctx.meta.get(_FOLDERS, {})
    for place in taken.keys() & filled.keys():
        message = f"{taken[place]} and {filled[place]} both write {path}: one a file, one a folder"
        raise UserError(message)


def _file(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> Path | None:
    if value is None or ctx.resilient_parsing:  # when a shell completes the line
        return None
    output.check(_label(param, value))
    claim(ctx, param.opts[0], value)
    return Path(value)


def _folder(ctx: typer.Context, param: typer.CallbackParam, value: str | None) -> Path | None:
    if value is None or ctx.resilient_parsing:
        return None
    output.check_folder(_label(param, value))
    claim(ctx, param.opts[0], value, is_folder=True)
    return Path(value)


def _label(param: typer.CallbackParam, value: str) -> str:
    if not value:
        message = f"{param.opts[0]}: the name is empty"
        raise UserError(message)
    return value
