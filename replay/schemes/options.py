"""Options of schemes: each is declared once, with its meaning, its source and what is possible.

An option is a field of a frozen dataclass, made with `option`. What the field carries is all there
is to know about it: `moereplay schemes NAME` shows it, and `check` and `convert` refuse values
by it. Only what relates several options to each other is a method, `Options.check`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from replay.errors import UserError, unknown

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST = 2**31 - 1
"""Upper end of every number: its products with the sizes of a layer still fit 64 bits."""

UNITS = ("blocks", "bytes", "columns", "ns", "packets", "rows", "tokens", "us", "values")
"""Last words of names that are units."""


def option(
    default: Any,
    help: str,
    source: str,
    *,
    least: float | None = None,
    most: float | None = None,
    multiple_of: int = 1,
    choices: tuple[str, ...] = (),
    unit: str = "",
) -> Any:
    """Declare an option as a field of a subclass of `Options`.

    Parameters
    ----------
    default
        Its value where the user gives none; the type is the option's type.
    help
        Meaning of the option, in full sentences.
    source
        Where the default is from.
    least, most
        Ends of what is possible, included. A whole number is at least 1, or 0 where that is its
        default, unless something else is said.
    multiple_of
        Divisor of every possible whole number.
    choices
        Possible words; an N in a word stands for any whole number from 1.
    unit
        Unit of a number, if its name does not end with it (`UNITS`).
    """
    if least is None and type(default) is int:
        least = min(default, 1)
    about = {
        "help": help,
        "source": source,
        "least": least,
        "most": most,
        "multiple_of": multiple_of,
        "choices": choices,
        **({"unit": unit} if unit else {}),
    }
    return dataclasses.field(default=default, metadata=about)


@dataclass(frozen=True)
class Options:
    """Options of a scheme; this class itself is for schemes that have none."""

    def check(self) -> None:
        """Refuse combinations of values that exclude each other.

        Raises
        ------
        UserError
            Naming the options, their values and what is possible.
        """


@dataclass(frozen=True)
class OptionFacts:
    """All there is to know about one option; the attributes are those of `option`."""

    name: str
    default: bool | int | float | str
    help: str = ""
    source: str = ""
    least: float | None = None
    most: float | None = None
    multiple_of: int = 1
    choices: tuple[str, ...] = ()
    unit: str = ""

    @property
    def values(self) -> str:
        """Text that says what is possible, such as ``"a whole number, at least 1"``."""
        if isinstance(self.default, bool):
            return "true or false"
        if self.choices:
            return " or ".join(self.choices)
        if isinstance(self.default, str):
            return "text"
        kind = "a whole number" if isinstance(self.default, int) else "a number"
        if self.multiple_of == 2:
            kind = kind.replace("a whole", "an even")
        elif self.multiple_of != 1:
            kind += f", a multiple of {self.multiple_of}"
        ends = [f"{name} {end}" for name, end in (("at least", self.least), ("at most", self.most)) if end is not None]
        return ", ".join([kind, " and ".join(ends)] if ends else [kind])

    def is_choice(self, value: str) -> bool:
        """Tell whether a text is one of the choices."""
        number = "[1-9][0-9]{0,5}"
        return any(re.fullmatch(re.escape(word).replace("N", number), value) for word in self.choices)

    @property
    def examples(self) -> tuple[str, ...]:
        """Texts that are choices, one for each."""
        return tuple(word.replace("N", "2") for word in self.choices)

    def problem(self, value: Any) -> str:
        """Text that says what is wrong with a value of the option's type; empty if nothing is."""
        if isinstance(value, bool | str):
            return ""
        if not math.isfinite(value):
            return "must be a finite number"
        if self.least is not None and value < self.least:
            return f"must be at least {self.least}"
        most = MOST if self.most is None else self.most
        if value > most:
            return f"must be at most {most}"
        if isinstance(value, int) and value % self.multiple_of:
            even = self.multiple_of == 2
            return "must be even" if even else f"must be a multiple of {self.multiple_of}"
        return ""

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        return {**dataclasses.asdict(self), "values": self.values}


GONE = {
    "weight_passes": "how often weights are read follows from the order of tiles and the L2 cache (gpu.l2_bytes)",
}
"""Options of former versions, and what has taken their place."""


def about(options: Options) -> list[OptionFacts]:
    """All options of a scheme; the values that it has at present count as its defaults."""
    found = []
    for field in dataclasses.fields(options):
        of, _, last = field.name.rpartition("_")
        known = {"unit": last if of and last in UNITS else "", **field.metadata}
        found.append(OptionFacts(field.name, getattr(options, field.name), **known))
    return found


def check(scheme: str, options: Options) -> None:
    """Refuse impossible values.

    Parameters
    ----------
    scheme
        Name of the scheme, for the error.

    Raises
    ------
    UserError
        Naming the option, its value, the scheme, and what is possible.
    """
    for one in about(options):
        value = one.default
        if one.choices and not one.is_choice(str(value)):
            raise unknown(f"{one.name} of scheme {scheme!r}", str(value), one.choices)
        if problem := one.problem(value):
            message = f"option {one.name}={value} of scheme {scheme!r}: {problem}"
            raise UserError(message)
    options.check()


def convert(scheme: str, options: Options, given: Mapping[str, Any]) -> Options:
    """Replace options by name; text is converted to the option's type.

    Raises
    ------
    UserError
        If an option is unknown or its value is not of its type.
    """
    known = {one.name: one for one in about(options)}
    values: dict[str, Any] = {}
    for name, value in given.items():
        if not known:
            message = f"scheme {scheme!r} has no options; {name!r} was given"
            raise UserError(message)
        if name in GONE:
            message = f"option {name!r} of scheme {scheme!r} is gone: {GONE[name]}"
            raise UserError(message)
        if name not in known:
            raise unknown(f"option of scheme {scheme!r}", name, known)
        values[name] = _convert(scheme, known[name], value)
    return dataclasses.replace(options, **values)


def _convert(scheme: str, one: OptionFacts, value: Any) -> Any:
    """Turn an option's text into the type of its default."""
    wanted = type(one.default)
    if not isinstance(value, str):
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            return float(value)
    elif wanted is str:
        return value
    elif wanted is bool:
        if value.lower() in ("true", "false"):
            return value.lower() == "true"
    else:
        try:
            return wanted(value)
        except ValueError:
            pass
    message = f"option {one.name}={value!r} of scheme {scheme!r}: expected {one.values}"
    raise UserError(message)
