"""Training steps as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base.experiment import NOTHING, Given, Older, Watch, Words
from replay.experiments.base.schemed import SchemeExperiment
from replay.experiments.train.result import TrainComparison, TrainResult, result_of_old
from replay.experiments.train.spec import CODE, TrainSpec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.train.setup import SchemedStep


class Train(SchemeExperiment[TrainSpec, "SchemedStep", TrainResult, TrainComparison]):
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
    details = "Also causes by stage, and memory"
    code = CODE
    lacking: ClassVar[Words] = dict.fromkeys(
        ("dry-run", "max-memory"),
        "a step is composed of replays of its parts, and none says what all take",
    )
    older: ClassVar[Older] = {"moereplay-train/1": result_of_old}

    def usual_schemes(self, shared: TrainSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All that the system supports."""
        from replay.experiments.train.setup import Setup
        from replay.schemes.registry import supported

        return supported(Setup.of(shared, given.get("model")).system)

    def setup(self, spec: TrainSpec, given: Given[SchemedStep] = NOTHING) -> SchemedStep:
        """A shape may be given as ``model``; steps share what schemes do not decide."""
        from replay.experiments.train.setup import SchemedStep

        return SchemedStep.of(spec, given)

    def machine(self, setup: SchemedStep) -> System:
        """As many GPUs as the plan has."""
        return setup.step.system

    def replay(self, setup: SchemedStep, watch: Watch) -> TrainResult:
        """An observer is called with the schedule of the step."""
        from replay.experiments.train.replay import carry_out

        return carry_out(setup, watch)


EXPERIMENT = Train()
run, compare, load_result = EXPERIMENT.run, EXPERIMENT.compare, EXPERIMENT.load_result
