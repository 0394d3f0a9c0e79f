"""Reading results back, those of older schemas included."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from replay.errors import UserError, check_kind, shown
from replay.experiments.layer.first_schema import comparison_of_first, result_of_first
from replay.experiments.layer.result import COMPARISON_FORMAT, RESULT_FORMAT, Comparison, Result
from replay.files import parse_json, read_text

MOST = 1e30  # of any number: floating-point operations of a year on all machines that there are
DIFFERENCES = ("change_us", "difference_us")  # names of times that may be below zero
MAX_RESULT_BYTES = 2**30  # a chain of thousands of layers has a tenth of it

One = TypeVar("One", bound=BaseModel)
Several = TypeVar("Several", bound=BaseModel)

CONVERTERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    RESULT_FORMAT: dict,
    COMPARISON_FORMAT: dict,
    "moereplay-result/1": result_of_first,
    "moereplay-comparison/1": comparison_of_first,
}
"""How a document of each schema becomes one of the present schema."""


def load_result(path: str | Path) -> Result | Comparison:
    """Read a result or a comparison.

    Parameters
    ----------
    path
        A JSON file that this or an older version wrote.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged, is of a newer version or is something else.
    """
    where, document = read_document(path, "Result")
    name = document.get("format") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in CONVERTERS:
        raise UserError(_refusal(where, name))
    kind: type[Result] | type[Comparison] = (
        Result if name.startswith("moereplay-result/") else Comparison
    )
    try:
        return validated(kind, CONVERTERS[name](document), where)
    except UserError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        message = f"{where} is damaged: {name} has another shape ({type(error).__name__}: {error})"
    raise UserError(message)


def load_one(path: str | Path) -> Result:
    """Read the result of one replay; errors as those of `load_result`.

    Raises
    ------
    UserError
        Also if the file holds a comparison.
    """
    loaded = load_result(path)
    if isinstance(loaded, Comparison):
        message = f"{path} holds a comparison of {len(loaded.results)} results, not one result"
        raise UserError(message)
    return loaded


def _refusal(where: Path, name: object) -> str:
    """Why a document is not read."""
    if not isinstance(name, str) or not name.startswith(("moereplay-result/", "moereplay-comp")):
        return f"{where} is no result of a replay: its format is {name!r}"
    readable = ", ".join(sorted(CONVERTERS))
    return f"{where} has the format {name!r}; this version reads {readable}"


def read_document(path: str | Path, kind: str) -> tuple[Path, Any]:
    """Read the JSON of a result.

    Parameters
    ----------
    kind
        The class that writes it, for the error.

    Raises
    ------
    UserError
        If the file cannot be read or is no JSON.
    """
    check_kind("path", path, (str, Path), f"a JSON file that `{kind}.save` or --json wrote")
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


def read_one_of(path: str | Path, result: type[One], comparison: type[Several]) -> One | Several:
    """Read a result or a comparison of one room, which its ``format`` tells apart.

    Parameters
    ----------
    result, comparison
        What the document may be.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged or is something else.
    """
    where, document = read_document(path, result.__name__)
    formats: dict[str, type[One | Several]] = {
        kind.model_fields["format"].default: kind for kind in (result, comparison)
    }
    name = document.get("format") if isinstance(document, dict) else None
    if not isinstance(name, str) or name not in formats:
        message = f"{where} has the format {name!r}; expected {' or '.join(formats)}"
        raise UserError(message)
    return validated(formats[name], document, where)


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
            message = f"{place} = {shown(document)}: no such number is in a result"
            raise UserError(message)
        names = place.split(".")
        sizes = any(name.endswith(("_us", "bytes")) for name in names)
        if document < 0 and sizes and names[-1] not in DIFFERENCES:
            message = f"{place} = {document}: less than nothing"
            raise UserError(message)


def validated(kind: type[One], document: Any, where: str | Path) -> One:
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
    """Where a document differs first from what it should be."""
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].lower()}"
