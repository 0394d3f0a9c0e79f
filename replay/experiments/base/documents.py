"""JSON documents: their text, and reading them back, with older schemas and damage in a line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from replay.errors import UserError, check_kind, value_text
from replay.files import parse_json, read_text

MOST = 1e30  # of any number: floating-point operations of a year on all machines that there are
MAX_RESULT_BYTES = 2**30  # a chain of thousands of layers has a tenth of it

DIFFERENCES = ("change_us", "difference_us")  # names of times that may be below zero

One = TypeVar("One", bound=BaseModel)
Converter = Callable[[Mapping[str, Any]], dict[str, Any]]


def json_text(document: Mapping[str, Any]) -> str:
    """Write a document: sorted keys, a line for each value, the same bytes for the same values."""
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"


class DocumentKind:
    """A kind of document: its class, its present format, and what older ones become.

    Parameters
    ----------
    made
        The class that writes it.
    older
        How results of older schemas become present ones, by their formats.
    """

    def __init__(self, made: type[BaseModel], older: Mapping[str, Converter]) -> None:
        field = made.model_fields.get("format") or made.model_fields["schema_"]
        self.made = made
        self.format = str(get_args(field.annotation)[0])
        self.name = self.format.partition("/")[0]
        self._older: dict[str, Converter] = {}
        if "results" in made.model_fields:  # a comparison's schema is raised with its results'
            for one, converter in older.items():
                version = one.rpartition("/")[2]
                self._older[f"{self.name}/{version}"] = partial(self._comparison, converter)
        self._older |= {one: older[one] for one in older if one.startswith(f"{self.name}/")}

    def _comparison(self, converter: Converter, document: Mapping[str, Any]) -> dict[str, Any]:
        results = [converter(one) for one in document["results"]]
        return {**document, "format": self.format, "results": results}

    @property
    def readable(self) -> list[str]:
        """Formats that are read, the newest last."""
        return [*self._older, self.format]

    def present(self, document: dict[str, Any], given: str) -> dict[str, Any]:
        """Make a document of a format that is readable one of the present format."""
        return self._older[given](document) if given in self._older else document


def read_one_of(kinds: Sequence[DocumentKind], path: str | Path) -> Any:
    """Read a document of one of some kinds; errors as those of `replay.load_result`."""
    where, document = read_document(path)
    given = format_of(document)
    name = given.partition("/")[0]
    kind = next((one for one in kinds if one.name == name), None)
    if kind is None:
        said = document.get("format") if isinstance(document, dict) else None
        is_ours = re.fullmatch("moereplay-[a-z-]{1,40}", name)
        what = f"a {name} document" if is_ours else f"no result of a replay: its format is {said!r}"
        message = f"{where} is {what}; this takes: {', '.join(one.name for one in kinds)}"
        raise UserError(message)
    if given not in kind.readable:
        message = f"{where} has the format {given!r}; this version reads {', '.join(kind.readable)}"
        raise UserError(message)
    return present_document(kind, document, where)[1]


def present_document(kind: DocumentKind, document: Any, where: str | Path) -> tuple[dict[str, Any], Any]:
    """Give a document of a readable format in the present one, and the object that it is of.

    Raises
    ------
    UserError
        If it is damaged, saying where.
    """
    given = format_of(document)
    try:
        present = kind.present(document, given)
        return present, validate(kind.made, present, where)
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        message = f"{where} is damaged: {given} has another shape ({type(error).__name__}: {error})"
    raise UserError(message)


def format_of(document: Any) -> str:
    """Format that a document states, or that one of an older version must have; empty for none."""
    if not isinstance(document, dict):
        return ""
    found = document.get("format", document.get("schema"))
    if found is None and {"slot_expert", "windows"} <= document.keys():
        return "moereplay-placing/1"  # which once did not say so
    return found if isinstance(found, str) else ""


def written_format(found: object) -> str | None:
    """Format that an object is written with; None for one that is no document."""
    given = getattr(found, "format", getattr(found, "schema_", None))  # as validations call it
    return given if isinstance(given, str) else None


def read_document(path: str | Path) -> tuple[Path, Any]:
    """Read the JSON of a result.

    Raises
    ------
    UserError
        If the file cannot be read or is no JSON.
    """
    check_kind("path", path, (str, Path), "a JSON file that `save` or --json wrote")
    where = Path(path)
    try:
        return where, parse_json(read_text(where, MAX_RESULT_BYTES))
    except OSError as error:
        message = f"cannot read {where}: {error.strerror}"
        raise UserError(message) from None
    except ValueError as error:
        reason = error if type(error) is ValueError else "it is not JSON"  # others say where
        message = f"{where} is no result of a replay, or is cut short: {reason}"
        raise UserError(message) from None


def check_numbers(document: Any, place: str = "") -> None:
    """Refuse times and sizes that nothing has, wherever they stand in the JSON of a result.

    Parameters
    ----------
    document
        Of a result, or part of it.
    place
        Of the part: names joined by dots. What a name that ends in ``_us`` or ``bytes`` has in it
        is a time in microseconds, or a number of bytes; `DIFFERENCES` are below zero, too.

    Raises
    ------
    UserError
        Saying where.
    """
    if isinstance(document, dict):
        for name, value in document.items():
            check_numbers(value, f"{place}.{name}" if place else str(name))
    elif isinstance(document, list):
        for value in document:
            check_numbers(value, place)
    elif isinstance(document, float | int) and not isinstance(document, bool):
        if not abs(document) <= MOST:
            message = f"{place} = {value_text(document)}: no such number is in a result, at most {MOST:g}"
            raise UserError(message)
        names = place.split(".")
        sizes = any(name.endswith(("_us", "bytes")) for name in names)
        if document < 0 and sizes and names[-1] not in DIFFERENCES:
            message = f"{place} = {document}: less than nothing, expected 0 or more"
            raise UserError(message)


def validate(kind: type[One], document: Any, where: str | Path) -> One:
    """Make a result of a document.

    Raises
    ------
    UserError
        If it is damaged, saying where.
    """
    try:
        check_numbers(document)
        return kind.model_validate(document)
    except ValidationError as error:
        message = f"{where} is damaged: {_first(error)}"
        raise UserError(message) from None
    except UserError as error:  # its spec has a setting that is not possible
        message = f"{where} is damaged: {error}"
        raise UserError(message) from None


def _first(error: ValidationError) -> str:
    """First place where a document differs from what it should be."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
