"""Catalogue of model shapes: one TOML file per model, every value with its source."""

import functools
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tracegen import regular
from tracegen.errors import UserError, unknown
from tracegen.models.schema import ModelShape

__all__ = ["ModelShape", "aliases", "load", "names", "parse"]

_PROSE = ("name", "title", "model_id", "notes", "aliases")


@functools.cache
def _catalogue() -> dict[str, str]:
    """Text of every shipped file by model name."""
    folder = resources.files(__name__)
    files = (entry for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in files}


@functools.cache
def _aliases() -> dict[str, str]:
    """Alias to model name."""
    return {
        alias: name
        for name, text in _catalogue().items()
        for alias in tomllib.loads(text).get("aliases", [])
    }


def names() -> tuple[str, ...]:
    """Names of the shipped models, sorted, without aliases."""
    return tuple(sorted(_catalogue()))


def aliases() -> dict[str, str]:
    """Other names that :func:`load` understands, each with the model it stands for."""
    return dict(_aliases())


def load(name: str | Path) -> ModelShape:
    """Shape of a model from the catalogue or from a file of the same form.

    Parameters
    ----------
    name
        A name or alias of the catalogue, or the path of a TOML file.

    Returns
    -------
    The shape, validated.

    Raises
    ------
    UserError
        If the name is unknown, the file cannot be read, or a value is unknown,
        of the wrong type or inconsistent.

    Examples
    --------
    >>> shape = load("deepseek-v3")
    >>> shape.num_experts, shape.topk, shape.num_moe_layers
    (256, 8, 58)
    """
    text = str(name)
    if text.endswith(".toml") or isinstance(name, Path):
        try:
            return parse(regular.read_text(text), where=text)
        except (OSError, UnicodeDecodeError) as error:
            msg = f"cannot read the model file {text}: {error}"
            raise UserError(msg) from error
    known = _catalogue()
    resolved = _aliases().get(text, text)
    if resolved not in known:
        raise unknown("model", text, [*known, *_aliases()])
    return _shipped(resolved)


@functools.cache
def _shipped(name: str) -> ModelShape:
    """Parse a shipped shape, once."""
    return parse(_catalogue()[name], where=f"{name}.toml")


def parse(text: str, where: str) -> ModelShape:
    """Read the text of a model file.

    Parameters
    ----------
    text
        TOML: ``name`` and optional ``title``, ``model_id``, ``notes``, ``aliases``; a table
        ``[shape]`` whose keys are fields of :class:`ModelShape`, each
        ``{ value = ..., source = "..." }``.
    where
        Name of the file in errors.

    Returns
    -------
    The shape, validated.

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
    for key in document:
        if key not in _PROSE:
            msg = f"{where}: {unknown('key', key, [*_PROSE, '[shape]'])}"
            raise UserError(msg)
    document.pop("aliases", None)
    values, sources = _split_sources(shape, where)
    try:
        return ModelShape(**document, **values, sources=sources)
    except ValidationError as error:
        msg = f"{where}: {_first_problem(error)}"
        raise UserError(msg) from error


def _split_sources(shape: dict[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and their sources of a ``[shape]`` table."""
    fields = set(ModelShape.model_fields) - {*_PROSE, "sources"}
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
        # TOML has no tuples, and the schema takes nothing but the exact type.
        values[key] = tuple(value) if isinstance(value, list) else value
        sources[key] = source
    return values, sources


def _first_problem(error: ValidationError) -> str:
    """First line of a pydantic report, as one sentence."""
    problem = error.errors()[0]
    place = ".".join(str(part) for part in problem["loc"])
    given = f" (given {problem['input']!r})" if place else ""
    message = problem["msg"].removeprefix("Value error, ")
    return f"{place}: {message}{given}" if place else message
