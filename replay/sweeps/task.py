"""One replay of a sweep: everything that decides it, its identity, and carrying it out.

An identity is the SHA-256 of a description that holds every number that enters: the scheme with
all its options, every value of the hardware, what the trace is generated from or the content it
has, batch, placement, precision, and the source code that computes. So a result is taken from an
earlier sweep only where computing it anew would give the same bytes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata, resources
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

import hwmodel
import tracegen
from replay.errors import UserError, unknown
from replay.measure.result import run_id
from replay.run.replayer import DIRECTIONS, run
from replay.schemes import SCHEMES, Scheme
from replay.sweeps.points import PREFIXES, TRACE_SETTINGS, Point
from replay.work.batch import DEFAULT_TOKENS_PER_RANK, PHASES
from replay.work.layer import PRECISIONS
from replay.work.placement import identify, place
from tracegen.library import open_trace
from tracegen.models import ModelShape

if TYPE_CHECKING:
    from hwmodel import System
    from replay.measure.result import Result
    from replay.sweeps.study import Scalar
    from tracegen import RoutingTrace

DEFAULT_SYSTEM = "dgx-h100"
DEFAULT_KIND = "uniform"

# Code that no number of a result passes through.
_BYSTANDERS = (
    "replay/cli", "replay/cli/exports.py", "replay/imitation", "replay/report/", "replay/studies/",
    "replay/sweeps/", "replay/validate/", "replay/contract/", "replay/graph/export/",
    "hwmodel/cli.py",
    "tracegen/capture/", "tracegen/importers/", "tracegen/library",
    "tracegen/cli/", "tracegen/stats/",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Where a task's trace is from.

    Attributes
    ----------
    identity
        What makes two traces the same.
    file
        Name or path of a recorded trace.
    generator
        Arguments of `tracegen.generate.generate`, if there is no file.
    """

    identity: Mapping[str, Any]
    file: str | None
    generator: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Equal for equal traces."""
        return run_id(dict(self.identity))

    def load(self) -> RoutingTrace:
        """Read or make the trace.

        Raises
        ------
        UserError
            Of `tracegen`, if that is not possible.
        """
        if self.file is not None:
            return tracegen.load(self.file)
        from tracegen.generate import generate

        return generate(**self.generator)


@dataclass(frozen=True)
class Task:
    """One replay.

    Attributes
    ----------
    description
        Everything that decides the result, as JSON.
    id
        SHA-256 of the description.
    """

    source: Source
    system: System
    scheme: Scheme
    settings: Mapping[str, Any]
    description: Mapping[str, Any]
    id: str

    def run(self, trace: RoutingTrace) -> Result:
        """Replay.

        Raises
        ------
        UserError
            If scheme, system and trace do not fit together.
        """
        return run(trace, self.system, self.scheme, **self.settings)


def make_task(point: Point) -> Task:
    """Everything that a point asks for, found and checked as far as it can be before it runs.

    Raises
    ------
    UserError
        If something named does not exist, or a value is not possible for it.
    """
    given = dict(point.settings)
    groups: dict[str, dict[str, Scalar]] = {name: {} for name in (*PREFIXES, *SCHEMES)}
    settings: dict[str, Any] = {}
    for key, value in given.items():
        group, dot, name = key.partition(".")
        if dot:
            groups[group][name] = value
        else:
            settings[key] = value
    scheme = _scheme(settings.pop("scheme", None), groups)
    system = _system(
        settings.pop("system", DEFAULT_SYSTEM), tuple(sorted(groups["system"].items()))
    )
    settings["direction"] = settings.pop("pass", "forward")
    _check_names(settings)
    if "total_tokens" in settings:
        _share_tokens(settings, system)
    source = (
        _recorded(groups["trace"], groups["shape"])
        if "file" in groups["trace"]
        else _generated(groups["trace"], groups["shape"], settings, system)
    )
    placement = settings.get("placement", "contiguous")
    description = {
        "code": code_identity(),
        "version": _version(),
        "trace": dict(source.identity),
        "system": system.describe(),
        "scheme": scheme.describe(),
        "settings": {**settings, "placement": identify(placement)},
    }
    if settings.get("tune"):
        description["candidates"] = {k: list(v) for k, v in scheme.candidates.items()}
    return Task(source, system, scheme, settings, description, run_id(description))


def _scheme(name: Any, groups: Mapping[str, Mapping[str, Scalar]]) -> Scheme:
    if name is None:
        message = f"no scheme is given; known: {', '.join(SCHEMES)}"
        raise UserError(message)
    if name not in SCHEMES:
        raise unknown("scheme", name, SCHEMES)
    made = {}
    for other, kind in SCHEMES.items():  # mistakes in the options of others are mistakes too
        # As text, like on the command line: a whole number will do for an option with a fraction.
        options = {key: str(value) for key, value in groups[other].items()}
        if options or other == name:
            made[other] = kind.with_options(options)
    return made[name]


def _check_names(settings: Mapping[str, Any]) -> None:
    """Names that a run would refuse point by point."""
    for name, what, known in (
        ("phase", "phase", PHASES),
        ("direction", "pass", DIRECTIONS),
        ("precision", "precision", PRECISIONS),
        ("layer", "layer", ("all",)),
    ):
        value = settings.get(name)
        if isinstance(value, str) and value not in known:
            raise unknown(what, value, known)
    placement = settings.get("placement", "contiguous")
    if not placement.startswith("file:"):
        place(placement, 1, 1)


@functools.lru_cache(maxsize=64)
def _system(name: str, overrides: tuple[tuple[str, Scalar], ...]) -> System:
    return hwmodel.load(name, dict(overrides))


def _share_tokens(settings: dict[str, Any], system: System) -> None:
    total = settings.pop("total_tokens")
    if "tokens_per_rank" in settings:
        message = "total_tokens and tokens_per_rank say the same thing: give one"
        raise UserError(message)
    ranks = settings.setdefault("ranks", system.num_gpus)
    if total % max(ranks, 1) or total < 0:
        message = f"total_tokens = {total} cannot be shared equally by {ranks} ranks"
        raise UserError(message)
    settings["tokens_per_rank"] = total // ranks


def _recorded(given: Mapping[str, Scalar], shape: Mapping[str, Scalar]) -> Source:
    other = sorted(
        [f"trace.{key}" for key in given if key != "file"] + [f"shape.{k}" for k in shape]
    )
    if other:
        message = f"trace.file and {other[0]} exclude each other: a recorded trace is as it is"
        raise UserError(message)
    name = str(given["file"])
    return Source({"content_id": _content_id(name)}, name, {})


@functools.lru_cache(maxsize=256)
def _content_id(name: str) -> str:
    with open_trace(name) as file:
        return str(file.content_id)


def _generated(
    given: Mapping[str, Scalar],
    shape: Mapping[str, Scalar],
    settings: dict[str, Any],
    system: System,
) -> Source:
    kind = str(given.get("kind", DEFAULT_KIND))
    if kind not in tracegen.GENERATORS:
        raise unknown("generator (trace.kind)", kind, tracegen.GENERATORS)
    if "model" not in given:
        message = (
            "there is no trace: give trace.file, or trace.model and trace.kind to generate one; "
            f"models: {', '.join(tracegen.models.names())}"
        )
        raise UserError(message)
    parameters = {key: value for key, value in given.items() if key not in TRACE_SETTINGS}
    fields = tracegen.GENERATORS[kind].model_fields
    for name in parameters:
        if name not in fields:
            allowed = [*TRACE_SETTINGS, *fields]
            raise unknown(f"setting of trace (kind {kind!r})", name, allowed)
    try:
        complete: BaseModel = tracegen.GENERATORS[kind](**parameters)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"trace.{where}: {first['msg'].removeprefix('Value error, ').lower()}"
        raise UserError(message) from None
    phase = settings.get("phase") or "prefill"
    ranks = settings.setdefault("ranks", system.num_gpus)
    tokens = settings.setdefault("tokens_per_rank", DEFAULT_TOKENS_PER_RANK[phase])
    arguments = {
        "kind": kind,
        "ranks": ranks,
        "tokens_per_rank": tokens,
        "layers": given.get("layers", 1),
        "seed": given.get("seed", 0),
        "steps": settings.get("step", 0) + settings.get("steps", 1),
        "phase": phase,
        "group_limited": given.get("group_limited", False),
    }
    sizes = _shape(str(given["model"]), shape)
    identity = {
        "generator": {**arguments, "parameters": complete.model_dump(mode="json")},
        "shape": sizes.sizes(),
    }
    return Source(identity, None, {**arguments, **parameters, "model": sizes})


def _shape(model: str, changes: Mapping[str, Scalar]) -> ModelShape:
    shape = tracegen.models.load(model)
    if not changes:
        return shape
    sizes = {name for name in ModelShape.model_fields if name not in ("sources", "notes")}
    for name in changes:
        if name not in sizes:
            raise unknown("size (shape)", name, sizes)
    sources = shape.sources | dict.fromkeys(changes, "set by the study")
    try:
        return ModelShape(**{**shape.model_dump(), **changes, "sources": sources})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(("shape", *map(str, first["loc"])))
        message = f"{where} of model {model!r}: {first['msg'].removeprefix('Value error, ')}"
        raise UserError(message) from None


def _version() -> str:
    try:
        return metadata.version("moereplay")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "unknown"


@functools.cache
def code_identity() -> str:
    """SHA-256 of the source code that decides results.

    A version number does not change while somebody works on a scheme; results of the code before
    the edit would pass for results of the code after it.
    """
    digest = hashlib.sha256()
    for package in ("hwmodel", "replay", "tracegen"):
        root = resources.files(package)
        files = {}
        folders = [(package, root)]
        while folders:
            name, folder = folders.pop()
            for entry in folder.iterdir():
                path = f"{name}/{entry.name}"
                if entry.is_dir():
                    folders.append((path, entry))
                elif path.endswith(".py") and not path.startswith(_BYSTANDERS):
                    files[path] = entry
        for path, entry in sorted(files.items()):
            digest.update(path.encode() + b"\0" + entry.read_bytes() + b"\0")
    return digest.hexdigest()
