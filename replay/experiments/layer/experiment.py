"""Layers of a trace under schemes of expert parallelism as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base.experiment import SchemeExperiment
from replay.experiments.layer.first_schema import result_of_first
from replay.experiments.layer.result import Comparison, Result
from replay.experiments.layer.spec import RunSpec

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress, Report
    from replay.experiments.layer.setup import Setup
    from replay.model.work.batch import Batch
    from replay.schemes.outside import AllowCode
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class TracedSetup:
    """A replay that was set up, its trace, and the batch of its first step."""

    setup: Setup
    trace: RoutingTrace
    first: Batch

    @property
    def run_id(self) -> str:
        """Identity of the result."""
        return self.setup.run_id


class Layer(SchemeExperiment[RunSpec, TracedSetup, Result]):
    """Layers of a trace: each by itself, or chained."""

    name = "layer"
    command = "run"
    title = "layers of a trace"
    spec = RunSpec
    result = Result
    comparison = Comparison
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-result/1": result_of_first
    }

    BASELINES: ClassVar[Mapping[str, Sequence[str]]] = {
        "prefill": ("deepep", "nccl-alltoall"),
        "decode": ("deepep-ll", "deepep", "nccl-alltoall"),
    }
    """Names of baselines by the phase of the batch, by preference."""

    def baseline(self, results: Sequence[Result]) -> str:
        """That of the phase."""
        ran = [one.scheme.name for one in results]
        preferred = self.BASELINES[results[0].batch.phase]
        return next((name for name in preferred if name in ran), ran[0])

    def usual_schemes(self, shared: RunSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All that the system supports."""
        import hwmodel
        from replay.schemes import supported

        system = given.get("system")
        return supported(system or hwmodel.load(shared.system, dict(shared.overrides)))

    def under(
        self, shared: RunSpec, reference: str, options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, RunSpec]:
        """The scheme alone is another."""
        from replay.schemes import find

        name = find(reference, allow_code=True).name
        return name, shared.changed(scheme=reference, options=dict(options.get(name, {})))

    def setup(
        self,
        spec: RunSpec,
        given: Mapping[str, Any],
        *,
        like: TracedSetup | None = None,
        allow_code: AllowCode = False,
    ) -> TracedSetup:
        """A trace, a system and a scheme may be given as objects."""
        from replay.experiments.layer.replay import check_all
        from replay.experiments.layer.setup import Setup, check_needs, load_trace, set_up

        ready = set_up(spec, {}, given.get("system"), given.get("scheme"), allow_code=allow_code)
        check_needs(ready.scheme, ready.system)
        trace = given.get("trace") if like is None else like.trace
        loaded, made = load_trace(trace, ready.spec)
        identity = {"content_id": loaded.content_id}
        complete = Setup(made, identity, ready.system, ready.scheme)
        return TracedSetup(complete, loaded, check_all(complete, loaded))

    def check_fit(
        self, setups: Sequence[TracedSetup], max_memory: float, report: Report | None = None
    ) -> None:
        """Found out from a layer of some of the tokens, where it does not surely fit."""
        from replay.experiments.base.estimate import LONG_SECONDS
        from replay.experiments.layer.fit import check_fit

        for one in setups:
            found = check_fit(one.setup, one.trace, one.first, max_memory, tells=report is not None)
            if report and found and found.seconds >= LONG_SECONDS:
                report(found.text())

    def replay(
        self,
        setup: TracedSetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> Result:
        """An observer is called with each `Replayed`."""
        from replay.experiments.layer.replay import carry_out

        return carry_out(
            setup.setup, setup.trace, progress=progress, observe=observe, max_memory=float("inf")
        )


EXPERIMENT = Layer()
