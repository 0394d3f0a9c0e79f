"""The one identity of a replay.

An identity is the SHA-256 of canonical JSON that holds every number that enters: the content of the
trace or what it is generated from, the scheme with all its options, every value of the hardware,
the batch, the placement (of a file, a hash of what it says), the precision, and the source code
that computes. Equal identities have equal results, byte for byte. It does not hold names of files,
wording, versions of libraries, or code that no number passes through, such as reports.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from replay.chains.jitter import OFF
from replay.model.work.placement import identify

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pydantic import BaseModel

    from hwmodel import System
    from replay.experiments.base.spec import Spec
    from replay.experiments.layer.spec import RunSpec
    from replay.schemes import Scheme
    from replay.schemes.base import AnyScheme

CODE: dict[str, tuple[str, ...]] = {
    "hwmodel": (),
    "replay": (
        "engine",
        "model",
        "schemes",
        "measure",
        "chains",
        "experiments/base",
        "experiments/layer",
    ),
    "tracegen": ("trace", "generate", "models", "shared/least.py"),
}
"""Rooms of each package that decide results: all of it, or the folders and files named."""

APART = (
    "hwmodel/cli.py",
    "hwmodel/presets/",
    "replay/engine/export/",
    "replay/schemes/contract/",
    "replay/experiments/base/crews/",
    "replay/experiments/base/estimate.py",
    "replay/experiments/layer/fit.py",
    "replay/experiments/base/host_memory.py",
    "replay/experiments/base/pace.py",
)
"""What lies in those rooms and decides nothing, or enters by value."""

WORDING = re.compile(r"replay/experiments/.+/(page|tables)(/.+)?\.py")
"""Tables and pages of each experiment, which say what others computed."""

SUFFIXES = (".py", ".toml")
"""Sources of code, and sizes of models."""

BY_VALUE = frozenset({"trace", "content_id", "model", "scheme", "options", "system", "overrides", "placement"})
"""Settings that refer to something; of these, what they refer to enters, and not the reference."""


def identity(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a document: sorted keys, no spaces."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def identity_of(
    rooms: Sequence[str],
    spec: Spec,
    entered: Mapping[str, Any],
    *,
    left_out: Collection[str] = (),
    **settings: Any,
) -> str:
    """Identity of a result of an experiment: of everything that decides it.

    Parameters
    ----------
    rooms
        Rooms whose code decides it beside those of every replay, as `code_of` takes them.
    spec
        Its settings, of which those of `BY_VALUE` do not enter, nor what `entered` has.
    entered
        What they refer to, by value.
    left_out
        Further settings that do not enter.
    settings
        Settings whose value follows from others, or is no reference, in place of the spec's.
    """
    apart = {*BY_VALUE, *entered, *left_out}
    own = spec.model_dump(mode="json", by_alias=True, exclude=apart)
    return identity(
        {
            "code": [code_identity(), code_of(tuple(rooms))],
            **entered,
            "settings": {**own, **settings},
        }
    )


def scheme_by_value(scheme: AnyScheme) -> dict[str, Any]:
    """A scheme by its name, its options and the code of its file, where it is from outside."""
    return {
        "name": scheme.name,
        "options": dataclasses.asdict(scheme.options),
        "code": scheme.code,
    }


def model_by_value(shape: BaseModel) -> dict[str, Any]:
    """All sizes of a model by name, without prose."""
    return shape.model_dump(mode="json", exclude={"title", "notes", "sources"})


def describe(spec: RunSpec, trace: Mapping[str, Any], system: System, scheme: Scheme) -> dict[str, Any]:
    """Everything that decides a result, as JSON objects; its `identity` is that of the replay.

    Parameters
    ----------
    spec
        The settings.
    trace
        What makes two traces the same: the content id, which holds the shape of the model that
        the trace carries, or all arguments of the generator.
    system, scheme
        What the spec's references lead to.

    Raises
    ------
    UserError
        If a placement file cannot be read.
    """
    settings = spec.model_dump(mode="json", by_alias=True, exclude=set(BY_VALUE))
    if spec.expert_tp == 1:  # whole experts are what they were before they could be sliced
        del settings["expert_tp"]
    if spec.jitter == OFF:  # as it was before there was any
        del settings["jitter"], settings["jitter_seed"]
    described: dict[str, Any] = {
        "name": scheme.name,
        "options": dataclasses.asdict(scheme.options),
        "code": scheme.code or _foreign_code(type(scheme)),
    }
    if scheme.is_tuned(spec.tune):
        described["candidates"] = {name: list(tried) for name, tried in scheme.candidates.items()}
    return {
        "code": code_identity(),
        "trace": dict(trace),
        "system": system.describe(),
        "scheme": described,
        "settings": {**settings, "placement": identify(spec.placement)},
    }


@functools.cache
def code_identity() -> str:
    """SHA-256 of the source code that decides results.

    A version number does not change while somebody works on a scheme; results of the code before
    the edit would pass for results of the code after it.
    """
    digest = hashlib.sha256()
    for name, entry in code_files():
        digest.update(name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()


def sources(package: str, room: str) -> list[tuple[str, Traversable]]:
    """Files of one room of a package by name, sorted, for identities of what only it decides."""
    found = _files(f"{package}/{room}", resources.files(package) / room)
    return sorted(found.items(), key=lambda entry: entry[0])


@functools.cache
def code_of(rooms: tuple[str, ...]) -> str:
    """SHA-256 of the code of rooms of this package, such as ``("experiments/train",)``.

    What else lies in them, such as presets, enters identities by value.
    """
    digest = hashlib.sha256()
    for room in rooms:
        for name, entry in sources("replay", room):
            if name.endswith(".py"):
                digest.update(name.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()


def code_files() -> list[tuple[str, Traversable]]:
    """Files that `code_identity` is made of, by name, sorted."""
    found: dict[str, Traversable] = {}
    for package, rooms in CODE.items():
        root = resources.files(package)
        if not rooms:
            found |= _files(package, root)
        for room in rooms:
            found |= _files(f"{package}/{room}", root / room)
    return sorted(found.items(), key=lambda entry: entry[0])


def _files(name: str, entry: Traversable) -> dict[str, Traversable]:
    """Every source below a file or folder."""
    if not entry.is_dir():
        decides = name.endswith(SUFFIXES) and not name.startswith(APART)
        return {name: entry} if decides and not WORDING.fullmatch(name) else {}
    found: dict[str, Traversable] = {}
    for below in entry.iterdir():
        found |= _files(f"{name}/{below.name}", below)
    return found


@functools.cache
def _foreign_code(kind: type[Scheme]) -> str | None:
    """SHA-256 of a scheme's source, or of what it was compiled to, if it is not ours."""
    if kind.__module__.startswith("replay.schemes."):
        return None
    digest, sources = hashlib.sha256(), list(_sources(kind))
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    if not sources:
        # Typed at a prompt. Without a source all such schemes would have one identity.
        own = [one for one in kind.__mro__ if not one.__module__.startswith(("replay.", "builtins"))]
        digest.update("\0".join(line for one in own for line in _compiled_class(one)).encode())
    return digest.hexdigest()


def _compiled_class(kind: type) -> Iterator[str]:
    """Lines of a class, as far as it is the same in every process."""
    for name, value in sorted(vars(kind).items()):
        code = getattr(getattr(value, "__func__", value), "__code__", None)
        if code is not None:
            yield from (name, *_code_lines(code))
        elif name[:2] != "__" and isinstance(value, int | float | str | tuple | frozenset):
            yield from (name, _plain(value))


def _code_lines(code: CodeType) -> Iterator[str]:
    """Lines of a function's code, without where it was typed."""
    yield from (code.co_code.hex(), repr(code.co_names), repr(code.co_varnames))
    for constant in code.co_consts:
        yield from _code_lines(constant) if isinstance(constant, CodeType) else (_plain(constant),)


def _plain(value: object) -> str:
    """A constant in words; members of a set in order, which differs between processes."""
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def _sources(kind: type[Scheme]) -> Iterator[Path]:
    """The file of a class, or of a class in a package all files of its folder."""
    module = sys.modules.get(kind.__module__)
    # Its own functions: one that it inherits is in the file of another class.
    own = [value.__code__ for value in vars(kind).values() if hasattr(value, "__code__")]
    named = getattr(module, "__file__", None) or next((code.co_filename for code in own), "")
    path = Path(named)
    if named and path.is_file():
        in_package = bool(getattr(module, "__package__", None))
        yield from sorted(path.parent.glob("*.py")) if in_package else [path]
