"""Training steps as an experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base import compare as base
from replay.experiments.base.experiment import SchemeExperiment
from replay.experiments.base.load import load_of
from replay.experiments.train.result import TrainComparison, TrainResult, result_of_old
from replay.experiments.train.spec import TrainSpec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.base.experiment import Observer, Progress
    from replay.experiments.train.setup import Setup
    from replay.schemes import Scheme
    from replay.schemes.outside import AllowCode


@dataclass(frozen=True)
class SchemedStep:
    """A step that was set up, and the scheme with its options."""

    step: Setup
    scheme: Scheme

    @property
    def run_id(self) -> str:
        """Identity of the result."""
        return self.step.run_id(self.scheme)


class Train(SchemeExperiment[TrainSpec, SchemedStep, TrainResult]):
    """One step of training a whole model under a parallel plan."""

    name = "train"
    command = "train"
    title = "training step"
    spec = TrainSpec
    result = TrainResult
    objects = ("model",)
    headline = "step_us"
    comparison = TrainComparison
    baselines = ("deepep",)
    usual = "all that can train"
    details = "causes by stage, and memory"
    lacking: ClassVar[Mapping[str, str]] = {
        "dry-run": "a step is composed of replays of its parts, and none says what all take",
    }
    code = ("steps", "experiments/train")
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-train/1": result_of_old
    }

    def usual_schemes(self, shared: TrainSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All that the system supports."""
        from replay.experiments.train.setup import Setup
        from replay.schemes.registry import supported

        return supported(Setup.of(shared, given.get("model")).system)

    def under(
        self, shared: TrainSpec, reference: str, options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, TrainSpec]:
        """The scheme alone is another."""
        from replay.schemes.registry import find

        scheme = find(reference, allow_code=False)
        own = dict(options.get(scheme.name, {}))
        scheme.with_options(own)  # what is not possible is refused before anything is set up
        return scheme.name, shared.changed(scheme=reference, options=own)

    def setup(
        self,
        spec: TrainSpec,
        given: Mapping[str, Any],
        *,
        like: SchemedStep | None = None,
        allow_code: AllowCode = False,
    ) -> SchemedStep:
        """A shape may be given as ``model``; steps share what schemes do not decide."""
        from replay.experiments.train.setup import Setup
        from replay.schemes.registry import find

        scheme = find(spec.scheme, allow_code=allow_code).with_options(spec.options)
        if like is None:
            return SchemedStep(Setup.of(spec, given.get("model")), scheme)
        return SchemedStep(dataclasses.replace(like.step, spec=spec), scheme)

    def machine(self, setup: SchemedStep) -> System:
        """As many GPUs as the plan has."""
        return setup.step.system

    def replay(
        self,
        setup: SchemedStep,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> TrainResult:
        """An observer is called with the schedule of the step."""
        from replay.experiments.train.replay import carry_out

        result = carry_out(setup.step, setup.scheme, observe)
        if progress is not None:
            progress()
        return result


EXPERIMENT = Train()


def run(spec: TrainSpec | None = None, **settings: Any) -> TrainResult:
    """Replay a training step under one scheme; parameters are those of `base.compare.run`."""
    result: TrainResult = base.run(EXPERIMENT, spec, **settings)
    return result


def compare(
    spec: TrainSpec | None = None, schemes: str | Sequence[str] | None = None, **settings: Any
) -> TrainComparison:
    """Replay a training step under several schemes; parameters are those of `base`'s `compare`."""
    found: TrainComparison = base.compare(EXPERIMENT, spec, schemes, **settings)
    return found


def load_result(path: str | Path) -> TrainResult | TrainComparison:
    """Read a result or a comparison of this kind; errors are those of `replay.load_result`."""
    found: TrainResult | TrainComparison = load_of(EXPERIMENT, path)
    return found
