"""Finding, completing and checking descriptions of machines.

A description is a TOML file of tables of ``key = { value, source, confidence }``.
It may say ``base = "another-preset"`` and then give only what differs. Overrides
(``link.links_per_gpu=8``) go on top.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from hwmodel import nodes
from hwmodel.errors import UserError, check_kind, unknown
from hwmodel.specs import SystemSpec, keys, sections, words
from hwmodel.system import System
from tracegen.shared import regular

_TEXT_KEYS = ("name", "summary", "base")
_LINKS_PER_GPU = "link.links_per_gpu"
_LINKS_PER_PLANE = "fabric.links_per_plane"

FORMER_KEYS = frozenset({"ai_core.row_read_efficiency"})
"""Keys that older files and overrides have, which are read and have no effect."""

Flat = dict[str, dict[str, Any]]


def names() -> list[str]:
    """Names of the machines that come with the package, sorted.

    Any number of nodes of one of them is a machine too: ``hgx-h800-x16``.
    """
    return sorted({*_files(), *nodes.LISTED})


@cache
def _files() -> frozenset[str]:
    """Names of the presets that are files."""
    folder = resources.files("hwmodel.presets")
    found = (entry.name for entry in folder.iterdir())
    return frozenset(name.removesuffix(".toml") for name in found if name.endswith(".toml"))


def load(
    name_or_path: str | Path,
    overrides: Mapping[str, Any] | None = None,
    num_gpus: int | None = None,
) -> System:
    """Load a machine.

    Parameters
    ----------
    name_or_path
        A preset (see :func:`names`), several nodes of one (``dgx-h100-x4``), or a TOML file.
    overrides
        Values by dotted key, such as ``{"link.links_per_gpu": 8}``. Text is read
        as a TOML value, so that ``"8"`` is eight and ``"true"`` is true.
    num_gpus
        Use only the first so many GPUs; all of them by default.

    Returns
    -------
    The machine, checked.

    Raises
    ------
    UserError
        If there is no such machine, or the file, a key, a value or the number of
        GPUs does not fit.

    Examples
    --------
    >>> load("dgx-h100", {"link.links_per_gpu": 8}, num_gpus=4).num_gpus
    4
    """
    if not overrides and str(name_or_path) in _files():
        return _preset_system(str(name_or_path), num_gpus)
    return _system(load_spec(name_or_path, overrides), num_gpus)


@cache
def _preset_system(name: str, num_gpus: int | None) -> System:
    """Load a preset as it is; commands ask for the same few again and again."""
    return _system(load_spec(name), num_gpus)


def _system(spec: SystemSpec, num_gpus: int | None) -> System:
    """Build the first so many GPUs of a description, or all."""
    total = spec.fabric.num_gpus.value * spec.fabric.num_domains.value
    if num_gpus is not None and not 1 <= num_gpus <= total:
        message = f"{spec.name} has {total} GPUs; {num_gpus} were asked for"
        raise UserError(message + _larger_presets(num_gpus))
    return System.from_spec(spec, total if num_gpus is None else num_gpus)


def load_spec(name_or_path: str | Path, overrides: Mapping[str, Any] | None = None) -> SystemSpec:
    """Load a description: every value with its source. Parameters as for :func:`load`."""
    check_kind("system", name_or_path, (str, Path), "the name of a preset, or a TOML file")
    where, document = _read(name_or_path)
    return _spec(document, where, overrides or {})


def spec_of_text(text: str, where: str) -> SystemSpec:
    """Read a description that is not in a file yet.

    Parameters
    ----------
    text
        As a TOML file has it.
    where
        What messages call it.

    Raises
    ------
    UserError
        If a file of this text could not be loaded.
    """
    try:
        document = regular.parse_toml(text)
    except ValueError as error:
        message = f"{where} is not a TOML file: {error}"
        raise UserError(message) from None
    return _spec(document, where, {})


def check_base(name: str) -> None:
    """Refuse what a file cannot take as its base, such as another file.

    Parameters
    ----------
    name
        What the file would give as ``base``.

    Raises
    ------
    UserError
        If the catalogue has no such machine.
    """
    if name not in _files() and not nodes.base_of(name, _files()):
        raise unknown("base", name, names())


def _spec(document: dict[str, Any], where: str, overrides: Mapping[str, Any]) -> SystemSpec:
    flat, texts = _complete(document, where, ())
    for key, value in overrides.items():
        if key in FORMER_KEYS:
            continue
        _check_key(key, "override")
        flat[key] = {
            "value": _parse(key, value),
            "source": "set by hand",
            "confidence": "user",
            "spread": "exact",
        }
    _follow_links(flat, set(overrides), "override")
    nested: dict[str, Any] = {"name": texts.get("name", ""), "summary": texts.get("summary", "")}
    for key, entry in flat.items():
        section, _, leaf = key.partition(".")
        nested.setdefault(section, {})[leaf] = entry
    try:
        return SystemSpec.model_validate(nested)
    except ValidationError as error:
        raise UserError(_first_problem(error, where)) from None


def _larger_presets(num_gpus: int) -> str:
    sizes = {}
    for name in names():
        fabric = load_spec(name).fabric
        sizes[name] = fabric.num_gpus.value * fabric.num_domains.value
    enough = [f"{name} has {size}" for name, size in sizes.items() if size >= num_gpus > 0]
    hint = "; ".join(enough) if enough else f"the largest preset has {max(sizes.values())}"
    return f"\n{hint}; or set fabric.num_gpus for a machine that does not exist"


def _read(name_or_path: str | Path) -> tuple[str, dict[str, Any]]:
    """Find a preset or a file; return what to call it in messages, and its content."""
    given = str(name_or_path)
    if given in _files():
        return given, _preset(given)
    if base := nodes.base_of(given, _files()):
        fabric = load_spec(base).fabric
        size = fabric.num_gpus.value
        return given, nodes.document(given, base, fabric.num_domains.value, size)
    path = Path(given)
    looks_like_path = isinstance(name_or_path, Path) or path.suffix == ".toml" or "/" in given
    if not looks_like_path:
        message = f"{unknown('system', given, names())}; or the path of a .toml file"
        raise UserError(message)
    try:
        return given, regular.parse_toml(regular.read_text(path))
    except OSError as error:
        message = f"cannot read the system file {given}: {error.strerror}"
        raise UserError(message) from None
    except ValueError as error:  # not UTF-8, not TOML, or not even a possible path
        message = f"{given} is not a TOML file: {error}"
        raise UserError(message) from None


@cache
def _preset(name: str) -> dict[str, Any]:
    """Content of a preset, which nobody changes."""
    text = (resources.files("hwmodel.presets") / f"{name}.toml").read_text("utf-8")
    return tomllib.loads(text)


def _complete(document: dict[str, Any], where: str, seen: tuple[str, ...]) -> tuple[Flat, dict[str, str]]:
    """Flatten a file's tables over those of its base."""
    flat: Flat = {}
    texts: dict[str, str] = {}
    own = {key: document[key] for key in _TEXT_KEYS if key in document}
    for key, text in own.items():
        if not isinstance(text, str):
            message = f"{where}: {key} must be text; got {text!r}"
            raise UserError(message)
    base = own.get("base")
    if base is not None:
        try:
            check_base(base)
        except UserError as error:
            message = f"{where}: {error}"
            raise UserError(message) from None
        if base in seen:
            message = f"{where}: base {base!r} leads back to itself"
            raise UserError(message)
        flat, texts = _complete(_read(base)[1], base, (*seen, base))
    given: Flat = {}
    for section, table in document.items():
        if section in own:
            continue
        if section not in sections() or not isinstance(table, dict):
            possible = [*_TEXT_KEYS, *sections()]
            message = f"{where}: {unknown('table or key', section, possible)}"
            raise UserError(message)
        for leaf, entry in table.items():
            key = f"{section}.{leaf}"
            if key in FORMER_KEYS:
                continue
            _check_key(key, where)
            if not isinstance(entry, dict):
                message = (
                    f"{where}: {key} = {entry!r} has no source; write "
                    f'{leaf} = {{ value = {json.dumps(entry, default=str)}, source = "...", '
                    f'confidence = "low" }}'
                )
                raise UserError(message)
            given[key] = entry
    flat |= given
    _follow_links(flat, set(given), where)
    return flat, texts | own


def _check_key(key: str, where: str) -> None:
    if key in keys():
        return
    leaf = key.rpartition(".")[2]
    same_leaf = [known for known in keys() if known.rpartition(".")[2] == leaf]
    section = key.partition(".")[0]
    if same_leaf:
        problem = str(unknown("key", key, keys(), near=same_leaf))
    elif section in sections():
        in_section = [known for known in keys() if known.startswith(f"{section}.")]
        problem = str(unknown("key", key, in_section))
    else:
        problem = f"{unknown('key', key, keys())}; tables: {', '.join(sections())}"
    message = f"{where}: {problem}"
    raise UserError(message)


def _parse(key: str, value: Any) -> Any:
    """Read text as a TOML value, or as the text that it is; other things are values already."""
    if not isinstance(value, str) or value in words(key):
        return value
    try:
        return regular.parse_toml(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        possible = [*words(key), "a number, true, false, a [list]"]
        message = f"override: {key}={value} is not {', '.join(possible)} or a {{ table }}"
        raise UserError(message) from None
    except ValueError as error:
        raise UserError(f"override: {key}: {error}") from None


def _follow_links(flat: Flat, given: set[str], where: str) -> None:
    """Keep the links per plane and per GPU consistent where only one of them is given.

    Links without a stated placement are spread evenly, the first planes taking
    one more; planes left without any disappear.
    """
    if _LINKS_PER_GPU in given and _LINKS_PER_PLANE not in given and _LINKS_PER_PLANE in flat:
        links = flat[_LINKS_PER_GPU].get("value")
        planes = flat[_LINKS_PER_PLANE].get("value")
        if not isinstance(links, int) or not isinstance(planes, list) or links < 1:
            return  # the type check that follows explains it better
        if planes and isinstance(planes[0], list):
            planes = planes[0]
        each, more = divmod(links, len(planes))
        spread = [each + (plane < more) for plane in range(len(planes))]
        flat[_LINKS_PER_PLANE] = {
            "value": [count for count in spread if count],
            "source": f"spread evenly, from {_LINKS_PER_GPU} ({where})",
            "confidence": "user" if where == "override" else "low",
            "spread": "held",
        }
    elif _LINKS_PER_PLANE in given and _LINKS_PER_GPU not in given:
        planes = flat[_LINKS_PER_PLANE].get("value")
        first = planes[0] if isinstance(planes, list) and planes else None
        row = first if isinstance(first, list) else planes
        if isinstance(row, list) and all(isinstance(count, int) for count in row):
            flat[_LINKS_PER_GPU] = {
                "value": sum(row),
                "source": f"sum of {_LINKS_PER_PLANE} ({where})",
                "confidence": "user" if where == "override" else "low",
                "spread": "held",
            }


def _first_problem(error: ValidationError, where: str) -> str:
    """Say in one line what pydantic found first, and how much else."""
    problems = error.errors(include_url=False)
    first = problems[0]
    parts = [str(part) for part in first["loc"]]
    key, rest = ".".join(parts[:2]), [part for part in parts[2:] if part != "value"]
    if not parts:  # values that do not fit together, of which the whole machine is the input
        return f"{where}: {first['msg'].removeprefix('Value error, ')}"
    if first["type"] == "missing":
        what = f"{rest[-1]} is missing" if rest else "is missing"
    else:
        what = f"{first['msg'].lower()}; got {first['input']!r}"
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return f"{where}: {key}: {what}{more}"
