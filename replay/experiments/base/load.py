"""Reading documents back: results of every experiment and of studies, older schemas included."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from replay.errors import UserError, check_kind, shown
from replay.experiments.base.experiment import EXPERIMENTS, AnyExperiment
from replay.files import exists, is_folder, parse_json, read_text

MOST = 1e30  # of any number: floating-point operations of a year on all machines that there are
MAX_RESULT_BYTES = 2**30  # a chain of thousands of layers has a tenth of it

DIFFERENCES = ("change_us", "difference_us")  # names of times that may be below zero

One = TypeVar("One", bound=BaseModel)
Converter = Callable[[Mapping[str, Any]], dict[str, Any]]

OTHERS = (
    "replay.studies.differences.parts:Difference",
    "replay.studies.differences.explanation:Explanation",
    "replay.studies.uncertainty.sureness:Sureness",
    "replay.studies.sweeps.saved:SavedSweep",
    "replay.studies.validate.saved:SavedValidation",
)
"""Documents of those who ask about results, in rooms above this one, and of other questions."""


def load_result(path: str | Path) -> Any:
    """Read any result, comparison or study that a command wrote.

    Parameters
    ----------
    path
        Its JSON file, of this or an older version; or the folder of a study.

    Returns
    -------
    An object of the class that wrote it, or of one that holds the same.

    Raises
    ------
    UserError
        If the file cannot be read, is damaged, is of a newer version or is something else.
    """
    if isinstance(path, (str, Path)) and is_folder(path):  # of a study, by `sweep -o`
        path = Path(path) / "sweep.json"
        if not exists(path):
            message = f"{path.parent} is a folder without the sweep.json of a finished study"
            raise UserError(message)
    return _read(path, document_kinds())


def document_kinds() -> list[DocumentKind]:
    """Kinds of all documents that are read."""
    return [*_of_experiments(EXPERIMENTS.values()), *_of_others()]


def kind_of_result(document: Any) -> type[BaseModel]:
    """Give the class of the result of one replay, by the format that its JSON states.

    Raises
    ------
    UserError
        If it is of no experiment, or of another version.
    """
    given = format_of(document)
    for experiment in EXPERIMENTS.values():
        made: type[BaseModel] = experiment.result
        if DocumentKind(made, {}).format == given:
            return made
    message = f"its format is {given!r}, which no experiment of this version writes"
    raise UserError(message)


def load_of(experiment: AnyExperiment, path: str | Path) -> Any:
    """Read a result or a comparison of one experiment; parameters and errors as `load_result`."""
    return _read(path, list(_of_experiments([experiment])))


def load_one(experiment: AnyExperiment, path: str | Path) -> Any:
    """Read the result of one replay of an experiment; errors as those of `load_result`.

    Raises
    ------
    UserError
        Also if the file holds a comparison.
    """
    loaded = load_of(experiment, path)
    if hasattr(loaded, "results"):
        message = f"{path} holds a comparison of {len(loaded.results)} results, not one result"
        raise UserError(message)
    return loaded


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
        if "results" in made.model_fields:  # a comparison's schema is raised with its results'
            self._older: Mapping[str, Converter] = {
                f"{self.name}/{one.rpartition('/')[2]}": partial(self._compared, older[one])
                for one in older
            } | {one: older[one] for one in older if one.startswith(f"{self.name}/")}
        else:
            self._older = {one: older[one] for one in older if one.startswith(f"{self.name}/")}

    def _compared(self, converter: Converter, document: Mapping[str, Any]) -> dict[str, Any]:
        results = [converter(one) for one in document["results"]]
        return {**document, "format": self.format, "results": results}

    @property
    def readable(self) -> list[str]:
        """Formats that are read, the newest last."""
        return [*self._older, self.format]

    def present(self, document: dict[str, Any], given: str) -> dict[str, Any]:
        """Make a document of a format that is readable one of the present format."""
        return self._older[given](document) if given in self._older else document


def _of_experiments(experiments: Any) -> Iterator[DocumentKind]:
    for one in experiments:
        for made in one.documents():
            yield DocumentKind(made, one.older)


def _of_others() -> Iterator[DocumentKind]:
    for home in OTHERS:
        module, _, name = home.partition(":")
        yield DocumentKind(getattr(importlib.import_module(module), name), {})


def _read(path: str | Path, kinds: Sequence[DocumentKind]) -> Any:
    """Read a document of one of some kinds."""
    where, document = read_document(path)
    given = format_of(document)
    kind = next((one for one in kinds if one.name == given.partition("/")[0]), None)
    if kind is None:
        names = ", ".join(one.name.removeprefix("moereplay-") for one in kinds)
        said = document.get("format") if isinstance(document, dict) else None
        message = f"{where} is no result of a replay: its format is {said!r}; there are: {names}"
        raise UserError(message)
    if given not in kind.readable:
        message = f"{where} has the format {given!r}; this version reads {', '.join(kind.readable)}"
        raise UserError(message)
    try:
        return validated(kind.made, kind.present(document, given), where)
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
