"""Shapes from TOML files, each value with its source: the shipped ones of a folder, or a user's."""

from __future__ import annotations

import functools
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tracegen.shared import regular
from tracegen.shared.errors import UserError, unknown

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Shape = TypeVar("Shape", bound=BaseModel)


class ModelCatalogue(Generic[Shape]):
    """TOML files of one schema in one folder of a package, each named as its model.

    A file has ``name``, a table ``[shape]`` whose keys are fields of the schema, each
    ``{ value = ..., source = "..." }``, and optionally ``aliases`` and the schema's other prose.

    Parameters
    ----------
    folder
        Where the files lie.
    schema
        Validates a file; has a field ``sources`` beside its prose and its values.
    prose
        Fields of the schema that are given beside ``[shape]`` and need no source.
    """

    def __init__(self, folder: Traversable, schema: type[Shape], prose: tuple[str, ...]) -> None:
        self._folder = folder
        self._schema = schema
        self._prose = prose

    @functools.cached_property
    def _texts(self) -> dict[str, str]:
        """Text of every shipped file by model name."""
        files = (entry for entry in self._folder.iterdir() if entry.name.endswith(".toml"))
        return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in files}

    @functools.cached_property
    def aliases(self) -> dict[str, str]:
        """Alias to model name."""
        return {alias: name for name, text in self._texts.items() for alias in tomllib.loads(text).get("aliases", [])}

    @functools.cached_property
    def _shapes(self) -> dict[str, Shape]:
        """Shipped shapes that were asked for, each parsed once."""
        return {}

    def names(self) -> tuple[str, ...]:
        """Names of the shipped models, sorted, without aliases."""
        return tuple(sorted(self._texts))

    def find(self, name: str) -> Shape | None:
        """Shape of a shipped model by its name or an alias; None if there is none."""
        resolved = self.aliases.get(name, name)
        if resolved not in self._texts:
            return None
        if resolved not in self._shapes:
            where = f"{resolved}.toml"
            self._shapes[resolved] = self.parse(self._texts[resolved], where)
        return self._shapes[resolved]

    def read(self, path: str | Path) -> Shape:
        """Shape of a user's file.

        Raises
        ------
        UserError
            If the file cannot be read, or a value is unknown, of the wrong type or inconsistent.
        """
        return self.parse(regular.read_input(path, "the model file"), where=str(path))

    def parse(self, text: str, where: str) -> Shape:
        """Read the text of a file, which errors call `where`.

        Raises
        ------
        UserError
            If the text is not TOML, or a key or value is not what is expected.
        """
        try:
            document = regular.parse_toml(text)
        except ValueError as error:
            msg = f"{where}: not valid TOML: {error}"
            raise UserError(msg) from error
        shape = document.pop("shape", None)
        if not isinstance(shape, dict):
            msg = f"{where}: the table [shape] is missing"
            raise UserError(msg)
        prose = ("name", *self._prose, "aliases")
        for key in document:
            if key not in prose:
                msg = f"{where}: {unknown('key', key, [*prose, '[shape]'])}"
                raise UserError(msg)
        document.pop("aliases", None)
        values, sources = self._split_sources(shape, where)
        try:
            return self._schema(**document, **values, sources=sources)
        except ValidationError as error:
            msg = f"{where}: {first_problem(error)}"
            raise UserError(msg) from error

    def _split_sources(self, shape: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
        """Values and their sources of a ``[shape]`` table."""
        fields = set(self._schema.model_fields) - {"name", *self._prose, "sources"}
        values: dict[str, Any] = {}
        sources: dict[str, str] = {}
        for key, entry in shape.items():
            if key not in fields:
                msg = f"{where}: [shape] {unknown('key', key, fields)}"
                raise UserError(msg)
            if not isinstance(entry, dict) or set(entry) != {"value", "source"}:
                msg = f'{where}: [shape] {key} must be {{ value = ..., source = "..." }}'
                raise UserError(msg)
            value, source = entry["value"], entry["source"]
            if not isinstance(source, str) or not source.strip():
                msg = f"{where}: [shape] {key} needs a source, a line of text"
                raise UserError(msg)
            # TOML has no tuples, and the schemas take nothing but the exact type.
            values[key] = tuple(value) if isinstance(value, list) else value
            sources[key] = source
        return values, sources


def first_problem(error: ValidationError) -> str:
    """Give the first line of a pydantic report, as one sentence."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "missing":
        return f"{place} is missing"
    given = f" (given {problem['input']!r})" if place else ""
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message}{given}" if place else message
