"""The command line that makes a result again, from what was asked for: only what differs.

>>> from replay.experiments.layer.spec import RunSpec
>>> command(["moereplay", "run"], RunSpec(trace="v3.h5", scheme="deepep", layer=12))
'moereplay run v3.h5 --scheme deepep --layer 12'
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from replay.experiments.base.spec import PLACES, Flag, toml_of

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

FOUND_BY_READING = frozenset({"content_id"})
"""Settings that reading the trace fills in."""


def command(
    words: Sequence[str],
    spec: BaseModel,
    *,
    leave_out: Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
    more: Sequence[str] = (),
) -> str:
    """Write the command line that asks for a spec.

    Parameters
    ----------
    words
        The command, such as ``["moereplay", "run"]``.
    spec
        `RunSpec`, or another whose fields are the options of a command.
    leave_out
        Fields that are no options of the command, or that `more` gives.
    defaults
        Values that the command takes in place of a field's default.
    more
        Words at the end.

    Returns
    -------
    One line that a shell reads as these words, whatever is in them.
    """
    named: list[str] = []
    places: list[str] = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        usual = (defaults or {}).get(name, field.default)
        if name in leave_out or name in FOUND_BY_READING or value == usual or value is None:
            continue
        (places if _is_place(name, field) else named).extend(_words(name, field, value))
    # What begins with a dash is no option only behind two of them.
    behind = any(one.startswith("-") for one in places)
    found = [*named, *more, "--", *places] if behind else [*places, *named, *more]
    return shlex.join([*words, *found])


def command_words(words: Sequence[str]) -> str:
    """Put words together as a shell reads them."""
    return shlex.join(words)


def _flags(field: FieldInfo) -> list[Flag]:
    return [one for one in field.metadata if isinstance(one, Flag)]


def _is_place(name: str, field: FieldInfo) -> bool:
    """Tell whether it is an argument, which has no option before it."""
    return name in PLACES and not _flags(field)


def _words(name: str, field: FieldInfo, value: Any) -> Iterator[str]:
    """A value as `replay.cli.options.takes_settings` reads it."""
    flags, word = _flags(field), (field.alias or name).replace("_", "-")
    option = flags[0].name if flags else f"--{word}"
    if _is_place(name, field):
        yield str(value)
    elif isinstance(value, bool):
        yield option if value else f"--no-{word}"
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield option
            yield f"{key}={value_text(one)}"
    elif isinstance(value, list):  # an option that may stand several times
        for one in value:
            yield from (option, str(one))
    else:
        yield option
        several = isinstance(value, Sequence) and not isinstance(value, str)
        yield ",".join(map(str, value)) if several else str(value)


def value_text(value: Any) -> str:
    """A value of a table as the command line takes it, such as ``true``, ``8``, ``[5, 4]``."""
    return value if isinstance(value, str) else _toml(value)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_of(key)} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return toml_of(value)


def repeat_option(option: str, values: Iterable[str]) -> list[str]:
    """Words of an option that is given once for each value."""
    return [word for value in values for word in (option, value)]
