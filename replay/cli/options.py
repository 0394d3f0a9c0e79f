"""Options made from the fields of a spec, and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

import typer

from replay.errors import UserError, unknown
from replay.experiments.base.spec import FORMER_WORDS, PLACES, Flag
from replay.experiments.layer.spec import RunSpec
from tracegen.cli.common import tell_assumed
from tracegen.cli.delivery import with_parameters
from tracegen.cli.outputs import file_option

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

MOST_DIGITS = 18  # of the number of a layer, which Python reads
JsonOption = Annotated[Path | None, file_option("--json", help="Write the whole result to this file.")]

MaxMemoryOption = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        help="Refuse a replay that needs more memory, such as 8GB [what this machine has left].",
    ),
]
DryRunOption = Annotated[
    bool,
    typer.Option("--dry-run", help="Estimate tasks, memory and time, and replay nothing."),
]
ExplainWordsOption = Annotated[
    bool,
    typer.Option("--explain-words", help="Explain the headings of the tables, as `moereplay words` does."),
]
AllowCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Execute the Python files of schemes, FILE.py:NAME, that an input file names; refused without.",
    ),
]


def takes_settings(
    *,
    spec: type[BaseModel] = RunSpec,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command one option for each field of a spec.

    The command's first parameter receives the values that were given, as texts and numbers by name
    of the field; `settings_of` reads them.

    Parameters
    ----------
    spec
        `RunSpec`, or another of its form.
    leave_out
        Fields that get no option.
    defaults
        Values that the command takes in place of a field's default, for the help text.
    """
    fields = {name: one for name, one in spec.model_fields.items() if name not in leave_out}
    made = [_parameter(name, one, (defaults or {}).get(name)) for name, one in fields.items()]
    former = {old: name for old, name in FORMER_WORDS.items() if name in fields}
    made += [_hidden(old) for old in former]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for one in inspect.signature(command, eval_str=True).parameters.values()
        ][1:]

        @functools.wraps(command)
        def wrapper(**values: Any) -> None:
            given = {name: values.pop(name) for name in fields}
            for old, name in former.items():
                before = values.pop(old)
                given[name] = before if given[name] is None else given[name]
            tell_assumed(given.get("model"))
            command({k: value for k, value in given.items() if value is not None}, **values)

        return with_parameters(wrapper, [*made, *own])

    return decorate


def _hidden(name: str) -> inspect.Parameter:
    """Option of a former name, which the help does not list."""
    info = typer.Option(f"--{name.replace('_', '-')}", hidden=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=None, annotation=Annotated[str | None, info])


def _parameter(name: str, field: FieldInfo, default: Any) -> inspect.Parameter:
    """One option, None unless it is given."""
    flags = [entry for entry in field.metadata if isinstance(entry, Flag)]
    word = (field.alias or name).replace("_", "-")
    shown = field.default if default is None else default
    text = str(field.description)
    is_several = get_origin(field.annotation) is list
    if is_several:
        shown = ", ".join(map(str, shown or ()))
    if shown is True:
        text = f"{text.removesuffix('.')} [yes]."
    elif (
        (shown or shown == 0) and not isinstance(shown, bool | dict) and not text.endswith("].")
    ):  # which says it itself
        text = f"{text.removesuffix('.')} [{shown}]."
    info: Any = typer.Option(flags[0].name if flags else f"--{word}", help=text)
    kinds = {
        getattr(one, "__origin__", one)  # an int of certain bounds is one
        for one in get_args(field.annotation) or (field.annotation,)
    } - {type(None)}
    kind: Any = str
    if is_several or get_origin(field.annotation) is dict:
        kind = list[str]
    elif kinds == {bool}:
        kind, info = bool, typer.Option(f"--{word}/--no-{word}", help=text)
    elif kinds in ({int}, {float}):
        (kind,) = kinds
    elif name in PLACES and not flags:
        info = typer.Argument(help=text, show_default=False)
    annotation = Annotated[kind | None, info]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def settings_of(given: Mapping[str, Any], *, scheme: str | None = None) -> dict[str, Any]:
    """Settings of a command line, as a spec takes them.

    Parameters
    ----------
    scheme
        Whose options are given where they name none.

    Raises
    ------
    UserError
        If an entry of a table is malformed.
    """
    settings = dict(given)
    if "layer" in settings:
        parts = settings["layer"].split(",")
        if all(part.strip().isdecimal() and len(part) <= MOST_DIGITS for part in parts):
            settings["layer"] = [int(part) for part in parts]
    if "overrides" in settings:
        settings["overrides"] = entries_of(settings["overrides"])
    if "options" in settings:
        settings["options"] = _options_of_one(settings["options"], settings.get("scheme", scheme))
    return settings


def _options_of_one(given: Sequence[str], scheme: str | None) -> dict[str, str]:
    """Options of the one scheme of a run; it is None where a spec names it."""
    from replay.schemes import find

    own = "" if scheme is None else find(scheme, None, allow_code=True).name
    found = options_of(given, [own])
    for name in found:
        if own and name != own:
            raise unknown("scheme with options", name, [own])
    return {key: value for options in found.values() for key, value in options.items()}


def entries_of(given: Sequence[str]) -> dict[str, str]:
    """Hardware values of the form ``KEY=VALUE``."""
    entries: dict[str, str] = {}
    for change in given:
        key, equals, value = change.partition("=")
        if not equals:
            message = f"--set {change}: expected KEY=VALUE, such as link.links_per_gpu=8"
            raise UserError(message)
        _put(entries, key, value, f"--set {change}")
    return entries


def options_of(given: Sequence[str], schemes: Sequence[str]) -> dict[str, dict[str, str]]:
    """Options by scheme, of ``SCHEME.K=V``, or of ``K=V`` where there is only one scheme.

    Raises
    ------
    UserError
        If an option has neither form.
    """
    found: dict[str, dict[str, str]] = {}
    for text in given:
        name, equals, value = text.partition("=")
        scheme, dot, key = name.rpartition(".")
        if not equals or (not dot and len(schemes) != 1):
            form = "K=V" if len(schemes) == 1 else "SCHEME.K=V, such as deepep.num_sms=20"
            message = f"--option {text}: expected {form}"
            raise UserError(message)
        _put(found.setdefault(scheme if dot else schemes[0], {}), key, value, f"--option {text}")
    return found


def _put(entries: dict[str, str], key: str, value: str, given: str) -> None:
    """Add a value, refusing a second one; the option as it was given is for the error."""
    if key in entries:
        raise UserError(f"{given}: {key}={entries[key]} was given before it; give one of them")
    entries[key] = value
