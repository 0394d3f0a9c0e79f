"""One candidate of a search, and its step as a task that workers of a study carry out."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hwmodel
import tracegen.models
from replay.experiments.base.identity import (
    code_identity,
    code_of,
    identity,
    model_by_value,
    scheme_by_value,
)
from replay.experiments.choose.cost import Cost
from replay.experiments.choose.shapes import Sizes, resize
from replay.experiments.train.experiment import run
from replay.experiments.train.spec import CODE, TrainSpec
from replay.schemes.registry import find

if TYPE_CHECKING:
    from replay.schemes.outside import AllowCode
    from tracegen.models import ModelShape


@dataclass(frozen=True)
class Candidate:
    """A model, a plan and a system.

    Attributes
    ----------
    spec
        Of its step, but for the sizes of the model.
    sizes
        What the model has otherwise than the one of the spec.
    """

    spec: TrainSpec
    sizes: Sizes

    @property
    def settings(self) -> Mapping[str, Any]:
        """All of it, as plain values."""
        return {**self.spec.settings(), "sizes": dict(self.sizes)}

    @property
    def label(self) -> str:
        """Sizes in a line."""
        return ", ".join(f"{name} {value}" for name, value in self.sizes) or str(self.spec.model)

    def with_overrides(self, overrides: Mapping[str, float]) -> Candidate:
        """Make the same candidate on another machine."""
        return dataclasses.replace(self, spec=self.spec.changed(overrides=dict(overrides)))

    def shape(self) -> ModelShape:
        """Make its model."""
        return resize(tracegen.models.load(str(self.spec.model)), self.sizes)


def simulate(candidate: Candidate) -> Cost:
    """Simulate the step: layers by replay, composed on the engine.

    Raises
    ------
    UserError
        If model, plan, system and scheme do not fit together.
    """
    return Cost.of(run(candidate.spec, given={"model": candidate.shape()}))


class NoTrace:
    """Input of a task that needs no trace."""

    key = ""

    def load(self) -> None:
        """Read nothing."""


@dataclass(frozen=True)
class CandidateStepTask:
    """A step to simulate, for workers of `replay.studies.sweeps`."""

    candidate: Candidate

    source = NoTrace()

    @functools.cached_property
    def description(self) -> Mapping[str, Any]:
        """Everything that decides the cost: by value where it refers to something."""
        one = self.candidate
        scheme = find(one.spec.scheme, allow_code=False)  # `make_task` executed it
        return {
            "code": [code_identity(), code_of(CODE)],
            "candidate": {**one.settings, "model": model_by_value(one.shape())},
            "system": hwmodel.load(str(one.spec.system), one.spec.overrides).describe(),
            "scheme": scheme_by_value(scheme),
        }

    @property
    def code(self) -> frozenset[str]:
        """SHA-256 of the file that the scheme is of, if it is of one."""
        code = self.description["scheme"]["code"]
        return frozenset([code] if code else [])

    @functools.cached_property
    def id(self) -> str:
        """Identity of the cost."""
        return identity(self.description)

    def run(self, _: object) -> Cost:
        """Simulate it."""
        return simulate(self.candidate)


def make_task(candidate: Candidate, allow_code: AllowCode = False) -> CandidateStepTask:
    """Make a candidate's task; workers find it by name.

    Parameters
    ----------
    candidate
        What is asked for.
    allow_code
        Whether its scheme's file may be executed, see `replay.schemes.find`.

    Raises
    ------
    UserError
        If there is no such scheme, or its file may not be executed.
    """
    find(candidate.spec.scheme, allow_code=allow_code)
    return CandidateStepTask(candidate)
