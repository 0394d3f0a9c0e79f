"""Training steps as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base.experiment import NOTHING, Older, ReplayWatcher, Report, SpecInputs, Words
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.experiments.train.result import TrainComparison, TrainResult, result_of_old, result_of_second
from replay.experiments.train.spec import CODE, TrainSpec

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.train.setup import SchemedStep

ROWS_AT_PACE = 1_400
"""Rows of passes over a layer, there and back, that take as long as `pace_s`, in the mean over schemes.

Eleven schemes of 8 x 4096 tokens, top-8 (`ELEVEN` of tests/bench/test_bench_schemes.py), took 33.4 s where `pace_s` was
16.2 ms, the median of looks before and after each (10.7 to 20.2, as other work let it).
"""


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
    details = "Show also causes by stage, and memory"
    code = CODE
    lacking: ClassVar[Words] = dict.fromkeys(
        ("dry-run", "max-memory"),
        "a step is composed of replays of its parts, and none says what all take",
    )
    older: ClassVar[Older] = {"moereplay-train/1": result_of_old, "moereplay-train/2": result_of_second}

    def usual_schemes(self, shared: TrainSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All schemes that the system supports."""
        from replay.experiments.train.setup import TrainingSetup
        from replay.schemes.registry import supporting_schemes

        return supporting_schemes(TrainingSetup.of(shared, given.get("model")).system)

    def setup(self, spec: TrainSpec, given: SpecInputs[SchemedStep] = NOTHING) -> SchemedStep:
        """Follow the references; a shape may be given as ``model``, and steps share what no scheme decides."""
        from replay.experiments.train.setup import SchemedStep

        return SchemedStep.of(spec, given)

    def steps(self, setup: SchemedStep) -> int:
        """Count the MoE layers that are replayed."""
        return setup.step.spec.samples * setup.step.spec.layers_sampled

    def check_fit(
        self,
        setups: Mapping[str, SchemedStep],
        max_memory: float | None = None,
        report: Report | None = None,
        *,
        jobs: int = 1,
        replays: float = 1,
        is_observed: bool = False,
    ) -> None:
        """Say what long replays take; whether a GPU's memory fits was asked before."""
        from replay.experiments.base.estimate import LONG_SECONDS, duration_text
        from replay.experiments.base.pace import pace_s
        from replay.experiments.train.clock import most_replays

        super().check_fit(setups, max_memory, report, jobs=jobs, replays=replays, is_observed=is_observed)
        if report is None:
            return
        rows = [setup.step.replays.rows for setup in setups.values()]
        seconds = pace_s() / ROWS_AT_PACE * sum(rows) * replays / jobs
        most = max((most_replays(setup.step) for setup in setups.values()), default=1)
        if seconds * most >= LONG_SECONDS:
            schemes = f"{len(rows)} scheme{'s' if len(rows) > 1 else ''}"
            again = (
                f", and up to {duration_text(seconds * most)} where steps are replayed again at "
                "the clock that their power limit leaves (not with --clock alone)"
            )
            report(
                f"{schemes}, {max(rows) / 1e6:,.0f} million rows each: about "
                f"{duration_text(seconds)}{again if most > 1 else ''}; less with fewer schemes "
                "(--scheme), layers (--layers-sampled 1), nodes (--sample-nodes 2), tokens "
                "(--sequence) or a smaller --plan"
            )

    def machine(self, setup: SchemedStep) -> System:
        """The machine, with as many GPUs as the plan has."""
        return setup.step.system

    def replay(self, setup: SchemedStep, watch: ReplayWatcher) -> TrainResult:
        """Make the step; an observer is called with its schedule."""
        from replay.experiments.train.replay import carry_out

        return carry_out(setup, watch)


EXPERIMENT = Train()
run, compare, load_result = EXPERIMENT.run, EXPERIMENT.compare, EXPERIMENT.load_result
