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
    objects = ("trace", "system", "scheme")
    headline = "totals.makespan_us"
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
        preferred = self.BASELINES.get(results[0].batch.phase, ())
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
        if like is None:
            loaded, made = load_trace(given.get("trace"), ready.spec)
        else:  # the trace is read once, and every spec refers to it
            known = like.setup.spec
            loaded = like.trace
            made = ready.spec.changed(trace=known.trace, content_id=known.content_id)
        identity = {"content_id": loaded.content_id}
        complete = Setup(made, identity, ready.system, ready.scheme)
        return TracedSetup(complete, loaded, check_all(complete, loaded))

    def estimate(self, setup: TracedSetup) -> tuple[str, str, str]:
        """By a replay of a layer of some of its tokens."""
        from replay.experiments.layer.fit import estimate_of

        _, tasks, memory, time = estimate_of(setup.setup, setup.trace, setup.first).cells()
        return tasks, memory, time

    def steps(self, setup: TracedSetup) -> int:
        """Once for each layer."""
        spec = setup.setup.spec
        layers = setup.setup.chain_settings.num_layers(setup.trace)
        return layers if spec.sample_layers is None else min(layers, spec.sample_layers)

    def check_fit(
        self,
        setups: Sequence[TracedSetup],
        max_memory: float,
        report: Report | None = None,
        jobs: int = 1,
    ) -> None:
        """Found out from a layer of some of the tokens, where it does not surely fit."""
        from replay.experiments.base.estimate import LONG_SECONDS, UnfitError, summed
        from replay.experiments.layer.fit import check_fit

        each = {one.setup.scheme.name: one for one in setups}  # of several placements one
        unfit: dict[str, UnfitError] = {}
        known = []
        for name, one in each.items():
            try:
                found = check_fit(
                    one.setup, one.trace, one.first, max_memory / jobs, tells=report is not None
                )
            except UnfitError as error:
                unfit[name] = error
                continue
            known += [] if found is None else [found]
        if unfit:
            fit = [name for name in each if name not in unfit]
            shared = f" for each of {jobs} processes" if jobs > 1 else ""
            others = f"; with --scheme, these fit: {', '.join(fit)}" if fit else ""
            message = f"{next(iter(unfit.values()))}{shared}{others}"
            raise UnfitError(message)
        of_each = len(setups) / max(len(each), 1)
        if report and of_each * sum(found.seconds for found in known) >= LONG_SECONDS * jobs:
            report(summed(known, of_each, jobs))

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
