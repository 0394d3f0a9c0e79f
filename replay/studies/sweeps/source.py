"""The traces that a study replays: recorded, or generated for a point."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

import tracegen
from replay.errors import UnreadableError, UserError, unknown
from replay.experiments.base.identity import identity
from replay.model.work.batch import DEFAULT_TOKENS_PER_RANK
from replay.studies.sweeps.points import TRACE_SETTINGS
from tracegen.library import open_trace, verify
from tracegen.models import ModelShape
from tracegen.shared.strict import mistake_in

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.layer.spec import RunSpec
    from replay.studies.sweeps.study import Scalar
    from tracegen import RoutingTrace

DEFAULT_KIND = "uniform"


@dataclass(frozen=True)
class TraceOrigin:
    """The origin of a task's trace.

    Attributes
    ----------
    identity
        Everything that makes two traces the same.
    file
        Name or path of a recorded trace.
    generator
        Arguments of `tracegen.generate.generate`, if there is no file.
    model
        Shape of the model that a recorded trace is of, where the study gives it.
    """

    identity: Mapping[str, Any]
    file: str | None
    generator: Mapping[str, Any]
    model: str | None = None

    @property
    def key(self) -> str:
        """Key that is equal for equal traces."""
        return identity(self.identity)

    def check(self) -> None:
        """Compare the whole of a recorded trace with the content id that it is known by.

        Results of earlier sweeps are found by that id, which is read from the file's header.

        Raises
        ------
        UserError
            If the content is another, or the file cannot be read.
        """
        if self.file is not None:
            self._check_id(verify(self.file))

    def load(self) -> RoutingTrace:
        """Read or make the trace.

        Raises
        ------
        UserError
            If the generator cannot make it, or the trace is not of the model that is given.
        UnreadableError
            If a file is no longer whole, or not the one that the sweep was planned with.
        """
        if self.file is not None:
            try:
                trace = tracegen.load(self.file)
            except UserError as error:
                raise UnreadableError(str(error)) from None
            self._check_id(trace.content_id)
            if self.model is not None:
                trace = trace.with_shape(tracegen.models.load(self.model))
            return trace
        from tracegen.generate import generate

        return generate(**self.generator)

    def _check_id(self, found: str) -> None:
        if found != self.identity["content_id"]:
            message = f"{self.file} changed after this sweep began; the same command begins anew"
            raise UnreadableError(message)


def recorded_origin(given: Mapping[str, Scalar], shape: Mapping[str, Scalar]) -> TraceOrigin:
    """Describe a recorded trace; parameters as those of `generated_origin`.

    Raises
    ------
    UserError
        If there is no such trace or model, or the trace is to be changed.
    """
    made = [f"trace.{key}" for key in given if key not in ("file", "model")]
    other = sorted(made + [f"shape.{key}" for key in shape])
    if other:
        message = f"trace.file and {other[0]} exclude each other: a recorded trace is as it is"
        raise UserError(message)
    name, identity = str(given["file"]), {"content_id": _content_id(str(given["file"]))}
    if "model" not in given:
        return TraceOrigin(identity, name, {})
    model = str(given["model"])
    return TraceOrigin({**identity, "model": tracegen.models.load(model).sizes()}, name, {}, model)


@functools.lru_cache(maxsize=256)
def _content_id(name: str) -> str:
    with open_trace(name) as file:
        return str(file.content_id)


def forget_files() -> None:
    """Read what files say of themselves again, since others may lie there now."""
    _content_id.cache_clear()


def generated_origin(
    given: Mapping[str, Scalar], shape: Mapping[str, Scalar], spec: RunSpec, system: System
) -> tuple[TraceOrigin, RunSpec]:
    """Describe a trace that is generated for a replay.

    Parameters
    ----------
    given
        Settings of the group ``trace``.
    shape
        Sizes in place of the model's.
    spec
        The replay; the trace has its ranks, tokens, steps and phase.
    system
        Its GPUs are the ranks where the spec gives none.

    Returns
    -------
    The trace, and the spec with the ranks and tokens that it has.

    Raises
    ------
    UserError
        If something named does not exist, or a value is not possible for it.
    """
    kind = str(given.get("kind", DEFAULT_KIND))
    if kind not in tracegen.GENERATORS:
        raise unknown("generator (trace.kind)", kind, tracegen.GENERATORS)
    if "model" not in given:
        message = (
            "there is no trace: give trace.file, or trace.model and trace.kind to generate one; "
            f"models: {', '.join(tracegen.models.names())}"
        )
        raise UserError(message)
    complete, parameters = _parameters(kind, given)
    phase = spec.phase or "prefill"
    spec = spec.changed(
        ranks=spec.ranks or system.num_gpus,
        tokens_per_rank=spec.tokens_per_rank or DEFAULT_TOKENS_PER_RANK[phase],
    )
    arguments = {
        "kind": kind,
        "ranks": spec.ranks,
        "tokens_per_rank": spec.tokens_per_rank,
        "layers": given.get("layers", 1),
        "seed": given.get("seed", 0),
        "steps": spec.step + spec.steps,
        "phase": phase,
        "group_limited": given.get("group_limited", False),
    }
    sizes = _shape(str(given["model"]), shape)
    identity = {
        "generator": {**arguments, "parameters": complete.model_dump(mode="json")},
        "shape": sizes.sizes(),
    }
    return TraceOrigin(identity, None, {**arguments, **parameters, "model": sizes}), spec


def _parameters(kind: str, given: Mapping[str, Scalar]) -> tuple[BaseModel, dict[str, Scalar]]:
    """A kind's parameters, complete and as they were given."""
    parameters = {key: value for key, value in given.items() if key not in TRACE_SETTINGS}
    fields = tracegen.GENERATORS[kind].model_fields
    for name in parameters:
        if name not in fields:
            allowed = [*TRACE_SETTINGS, *fields]
            raise unknown(f"setting of trace (kind {kind!r})", name, allowed)
    try:
        complete: BaseModel = tracegen.GENERATORS[kind](**parameters)
    except ValidationError as error:
        where, problem = mistake_in(error, "trace")
        message = f"{where}: {problem.lower()}"
        raise UserError(message) from None
    return complete, parameters


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
        where, problem = mistake_in(error, "shape")
        message = f"{where} of model {model!r}: {problem}"
        raise UserError(message) from None
