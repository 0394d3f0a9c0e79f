"""Layers of a trace under schemes of expert parallelism as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from replay.experiments.base.experiment import NOTHING, AnySetup, Older, ReplayWatcher, SpecInputs
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.experiments.layer.first_schema import result_of_first
from replay.experiments.layer.result import AnyTraced, Comparison, Result, TracedComparison, result_of_second
from replay.experiments.layer.spec import RunSpec

if TYPE_CHECKING:
    from replay.experiments.base.estimate import Need
    from replay.experiments.layer.setup import TracedSetup


AnyTracedSpec = TypeVar("AnyTracedSpec", bound=RunSpec)
AnyCompared = TypeVar("AnyCompared", bound=TracedComparison[Any])


class TraceExperiment(
    SchemeExperiment[AnyTracedSpec, AnySetup, AnyTraced, AnyCompared],
    Generic[AnyTracedSpec, AnySetup, AnyTraced, AnyCompared],
):
    """Experiment on a trace, under schemes of expert parallelism."""

    objects = ("trace", "system", "scheme")
    scheme_help = str(RunSpec.model_fields["scheme"].description)
    usual = "all supported"
    usual_baseline = "deepep-ll for decode, deepep otherwise, the first where that is not among them"

    BASELINES: ClassVar[Mapping[str, Sequence[str]]] = {
        "prefill": ("deepep", "nccl-alltoall"),
        "decode": ("deepep-ll", "deepep", "nccl-alltoall"),
    }
    """Names of baselines by the phase of the batch, by preference."""

    def baseline(self, results: Sequence[AnyTraced]) -> str:
        """Baseline of the phase."""
        ran = [one.scheme.name for one in results]
        preferred = self.BASELINES.get(results[0].batch.phase, ())
        return next((name for name in preferred if name in ran), ran[0])

    def usual_schemes(self, shared: AnyTracedSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All that the system supports."""
        import hwmodel
        from replay.schemes import supporting_schemes

        system = given.get("system")
        return supporting_schemes(system or hwmodel.load(shared.system, dict(shared.overrides)))


class Layer(TraceExperiment[RunSpec, "TracedSetup", Result, Comparison]):
    """Layers of a trace: each by itself, or chained."""

    name = "layer"
    command = "run"
    title = "layers of a trace"
    spec = RunSpec
    result = Result
    headline = "totals.makespan_us"
    comparison = Comparison
    usual_jobs = "2 if there is much to do"
    details = "Show also what each scheme waits for, reads, moves, launches and keeps in memory"
    older: ClassVar[Older] = {"moereplay-result/1": result_of_first, "moereplay-result/2": result_of_second}

    def setup(self, spec: RunSpec, given: SpecInputs[TracedSetup] = NOTHING) -> TracedSetup:
        """Follow the references of a spec; trace, system and scheme may be given as objects."""
        from replay.experiments.layer.setup import TracedSetup

        return TracedSetup.of(spec, given)

    def steps(self, setup: TracedSetup) -> int:
        """Count the layers that are replayed."""
        layers, most = setup.setup.chain_settings.num_layers(setup.trace), setup.setup.spec
        return layers if most.sample_layers is None else min(layers, most.sample_layers)

    def fits_surely(self, setup: TracedSetup, room: float, *, told: float, is_observed: bool) -> bool:
        """Tell whether counts alone show it, and the time in all is too short to be worth an estimate."""
        from replay.experiments.layer.fit import asked_of

        asked = asked_of(setup, is_observed=is_observed)
        if asked.sure_bytes <= room and not asked.is_long(told):
            return True
        asked.check_kept(room)
        return False

    def estimate(self, setup: TracedSetup, *, is_observed: bool = False) -> Need:
        """Estimate by a replay of one layer with some of the tokens."""
        from replay.experiments.layer.fit import estimate_of

        return estimate_of(setup, is_observed=is_observed)

    def replay(self, setup: TracedSetup, watch: ReplayWatcher) -> Result:
        """Replay what was set up; an observer is called with each `ReplayedSchedule`."""
        from replay.experiments.layer.replay import carry_out

        return carry_out(setup, watch)


EXPERIMENT = Layer()
