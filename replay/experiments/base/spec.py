"""The base of every spec: everything that decides one result, as one frozen object.

An experiment's spec is its fields and nothing else. The options of its command, their help texts
and checks, the settings of a study, the file that describes a replay and the identity of a replay
are all made from these fields: a new setting is one more field, and the line that heeds it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    ValidationError,
    field_validator,
    model_validator,
)

from replay.errors import UserError, unknown, value_text
from replay.files import parse_toml

DEFAULT_SYSTEM = "dgx-h100"

STACK = (
    "Software whose host launches the kernels, and takes time for each call: a name of `moereplay "
    "stacks`, with any options, such as automodel:library_us=20. bare: none, so that launches cost "
    "what one in C++ does. Schemes with an option stack may name it there instead"
)
"""What a stack is, for all questions that take one."""

MOST = 2**31
"""Of ranks, tokens and steps: sums of them fit 64 bits, and no machine replays as many."""


FORMER_WORDS = {"dispatch_rows": "dispatch_type", "combine_rows": "combine_type"}
"""Names of settings by those that older files, commands and calls have for them, which are read."""


def present_words(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give settings their present names; where both names are given, the old one stays and is refused."""
    present = {name: FORMER_WORDS.get(name, name) for name in settings}
    return {name if present[name] in settings else present[name]: value for name, value in settings.items()}


PLACES = ("trace", "space")
"""Settings that are arguments of a command, without an option before them."""


@dataclass(frozen=True)
class Flag:
    """Spelling of a setting on the command line, where that is not its name.

    Attributes
    ----------
    name
        Such as ``"--set"``.
    form
        How one entry of a table is written, such as ``"KEY=VALUE"``.
    """

    name: str
    form: str


Count = Annotated[int, Field(ge=1, le=MOST)]
"""Of ranks, tokens and steps."""


def _as_list(given: Any) -> Any:
    if isinstance(given, str):
        return [given]
    if isinstance(given, list):
        return [str(one) if isinstance(one, PurePath) else one for one in given]
    return given


Several = Annotated[list[str], BeforeValidator(_as_list)]
"""Texts, of which one may stand alone."""

Options = Annotated[dict[str, JsonValue], Flag("--option", "K=V")]
OPTIONS: Any = Field({}, description="Option of the scheme: K=V, repeatable.")
Overrides = Annotated[dict[str, JsonValue], Flag("--set", "KEY=VALUE")]
OVERRIDES: Any = Field({}, description="Change a hardware value: KEY=VALUE, repeatable.")
SYSTEM: Any = Field(DEFAULT_SYSTEM, description="A name of `moereplay hardware list`, or a TOML file.")

TRACE: Any = Field(None, description="Recorded routing: a file, a URL, or a name of `moereplay trace list`.")
ROUTING: Any = Field(
    "uniform",
    description="Drawn routing where there is no trace: a kind of `moereplay trace generate`, with "
    "parameters, zipf:skew=0.6, or its skew, zipf:0.6.",
)
PRECISION: Any = Field(
    None,
    description="Number type of GEMMs and rows, bf16, fp8 (with bf16 rows back) or fp32 [the model's own].",
)
SAMPLE_NODES: Any = Field(
    None,
    description="Replay so many of the nodes in full, the busiest first; of the others only what they "
    "exchange with these.",
)


class Spec(BaseModel):
    """Settings of one result.

    Raises
    ------
    UserError
        If a setting does not exist or a value is not possible.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)

    OPTIONS_OF: ClassVar[Mapping[str, str]] = {"scheme": "options"}
    """Settings that belong to the value of another one, by the name of that."""

    def __init__(self, **settings: Any) -> None:
        try:
            super().__init__(**settings)
        except ValidationError as error:
            raise mistake(type(self), error) from None
        except UnicodeEncodeError:  # of what pydantic says about such a text
            name, value = next(one for one in settings.items() if _is_no_text(one[1]))
            words = {field: word for word, field in self.words().items()}
            message = (
                f"{words.get(name, name)} = {value_text(value)}: no Unicode text (half of a surrogate pair is in it)"
            )
            raise UserError(message) from None

    @model_validator(mode="before")
    @classmethod
    def _plain_values(cls, given: Any) -> Any:
        """Take numbers of numpy for numbers, paths for their text (placements know paths), and former names."""
        if not isinstance(given, Mapping):
            return given
        return {
            name: str(one) if isinstance(one, PurePath) and name != "placement" else plain(one)
            for name, one in present_words(given).items()
        }

    @field_validator("overrides", mode="before", check_fields=False)
    @classmethod
    def _flat(cls, given: Any) -> Any:
        """Take nested tables, as TOML writes dotted keys, for dotted keys."""
        return flatten(given) if isinstance(given, Mapping) else given

    @classmethod
    def words(cls) -> dict[str, str]:
        """Give the names of the fields by the words that files and commands use for them."""
        return {field.alias or name: name for name, field in cls.model_fields.items()}

    @classmethod
    def choices(cls, name: str) -> tuple[str, ...]:
        """Texts that a setting may be; nothing where any text will do.

        Parameters
        ----------
        name
            Of the field.
        """
        kinds = [cls.model_fields[name].annotation]
        found: list[str] = []
        for kind in kinds:
            if getattr(kind, "__origin__", None) is Literal:
                found += get_args(kind)
            else:
                kinds += get_args(kind)
        return tuple(one for one in found if isinstance(one, str))

    def changed(self, **settings: Any) -> Self:
        """Make a spec with other values of some settings, by their names or words.

        Options belong to their scheme: another scheme without options of its own takes its
        defaults.

        Raises
        ------
        UserError
            If a setting does not exist or a value is not possible.
        """
        # What nobody set is left to the machine, where a default hangs on that.
        values, names = self.model_dump(exclude_unset=True), self.words()
        given = {names.get(word, word): value for word, value in present_words(settings).items()}
        for name, options in self.OPTIONS_OF.items():
            if name in given and given[name] != getattr(self, name):
                values[options] = {}
        return type(self)(**{**values, **given})

    def settings(self) -> dict[str, Any]:
        """Give the settings that are not the defaults, as plain values by the names files use."""
        return self.model_dump(mode="json", by_alias=True, exclude_defaults=True)

    def to_toml(self) -> str:
        """Give the settings that are not the defaults, as TOML."""
        lines, tables = [], []
        for name, value in self.settings().items():
            if isinstance(value, dict):
                entries = [f"{toml_of(key)} = {toml_of(one)}" for key, one in value.items()]
                tables += ["", f"[{name}]", *entries]
            else:
                lines.append(f"{name} = {toml_of(value)}")
        return "\n".join([*lines, *tables]) + "\n"

    @classmethod
    def from_toml(cls, text: str, where: str = "the spec") -> Self:
        """Read what `to_toml` writes.

        Parameters
        ----------
        text
            TOML.
        where
            What to call it in errors.

        Raises
        ------
        UserError
            If it is not TOML, a setting does not exist or a value is not possible.
        """
        try:
            document = parse_toml(text)
        except ValueError as error:
            message = f"{where}: not valid TOML: {error}"
            raise UserError(message) from None
        try:
            return cls(**document)
        except UserError as error:
            message = f"{where}: {error}"
            raise UserError(message) from None

    @classmethod
    def check_setting(cls, word: str, value: Any) -> None:
        """Refuse a value that nothing can have.

        Parameters
        ----------
        word
            A key of `words`.
        value
            Its value.

        Raises
        ------
        UserError
            Saying what is possible.
        """
        cls(**{word: value})


_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "a table",
    "float_type": "a number",
    "int_type": "a whole number",
    "string_type": "text",
}
_BOUNDS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}


def mistake(kind: type[Spec], error: ValidationError) -> UserError:
    """Say in a line what is wrong with settings first, and what is possible.

    Parameters
    ----------
    kind
        The spec that they were given to.
    error
        What pydantic found.
    """
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return UserError(str(first["ctx"]["error"]))
    name, value = str(first["loc"][0]), first["input"]
    words = kind.words()
    word = next((word for word, field in words.items() if name in (word, field)), name)
    if first["type"] == "extra_forbidden":
        return unknown("setting", name, words)
    context = first.get("ctx", {})
    for bound, text in _BOUNDS.items():
        if bound in context:
            return UserError(f"{word} must be {text} {context[bound]}, not {value}")
    if first["type"] == "literal_error":
        return unknown(word, str(value), kind.choices(words[word]))
    expected = _EXPECTED.get(first["type"])
    where = ".".join([word, *(str(part) for part in first["loc"][1:2])])
    problem = f"expected {expected}" if expected else first["msg"].lower()
    return UserError(f"{where} = {value_text(value)}: {problem}")


def _is_no_text(value: Any) -> bool:
    """Tell whether half of a character is in a text, or in what holds texts."""
    return any("\ud800" <= one <= "\udfff" for one in str(value))


def plain(value: Any) -> Any:
    """Put Python's numbers in place of numpy's, in a value or in the values of a table."""
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return value.item() if getattr(value, "shape", None) == () else value


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Make a table without nesting, its keys dotted."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def toml_of(value: Any) -> str:
    """Write a value as TOML. JSON's text, numbers, truth and lists are TOML's, but for U+007F."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False).replace("\x7f", "\\u007f")
