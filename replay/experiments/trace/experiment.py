"""Whole traces as an experiment: many steps, each by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from replay.errors import check_jobs
from replay.experiments.base.estimate import Need, RepeatedReplays
from replay.experiments.base.experiment import NOTHING, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.base.outcomes import Outcome, ResultRequest, set_up_all
from replay.experiments.layer.experiment import EXPERIMENT as LAYER
from replay.experiments.layer.experiment import TraceExperiment
from replay.experiments.trace.result import TraceComparison, TraceResult, result_of_first
from replay.experiments.trace.spec import CODE, TraceSpec

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress, Report
    from replay.experiments.trace.replay import Found
    from replay.experiments.trace.setup import TraceSetup
    from replay.schemes.outside import AllowCode

ONE_STEP = "its steps are replays of their own: --step N asks for one of them"


class Trace(TraceExperiment[TraceSpec, "TraceSetup", TraceResult, TraceComparison]):
    """Steps of a trace, each by itself."""

    name = "trace"
    command = "run"
    title = "steps of a whole trace"
    spec = TraceSpec
    result = TraceResult
    headline = "time.mean_us"
    comparison = TraceComparison
    usual_jobs = "of whole traces the cores, else 2 if there is much to do"
    details = LAYER.details
    code = CODE
    older: ClassVar[Older] = {"moereplay-trace/1": result_of_first}
    lacking: ClassVar[Words] = dict.fromkeys(("explain", "uncertainty"), ONE_STEP)

    def setup(self, spec: TraceSpec, given: SpecInputs[TraceSetup] = NOTHING) -> TraceSetup:
        """Follow the references; a trace, a system and a scheme may be given as objects."""
        from replay.experiments.trace.setup import TraceSetup

        return TraceSetup.of(spec, given)

    def steps(self, setup: TraceSetup) -> int:
        """Count the steps of the trace that are replayed."""
        return len(setup.steps)

    def fits_surely(self, setup: TraceSetup, room: float, *, told: float, is_observed: bool) -> bool:
        """Tell whether a step surely fits: one is there at a time; progress says what others take."""
        return LAYER.fits_surely(setup.first, room, told=0, is_observed=False)

    def estimate(self, setup: TraceSetup, *, is_observed: bool = False) -> Need:
        """Find out the need by replaying a layer of some of the first step's tokens."""
        return RepeatedReplays(LAYER.estimate(setup.first), len(setup.steps), "steps")

    def replay(self, setup: TraceSetup, watch: ReplayWatcher) -> TraceResult:
        """Replay in this process, with a temporary folder; nothing is observed."""
        return self._keep(setup, progress=watch.progress)

    def carry_out(
        self,
        setup: TraceSetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
        max_memory: float | None = None,
        report: Report | None = None,
        jobs: int = 1,
        folder: str | Path | None = None,
        found: Found | None = None,
    ) -> TraceResult:
        """Replay under one scheme.

        Parameters
        ----------
        progress, observe, max_memory, report
            As of `run`; nothing is observed.
        jobs, folder, found
            As of `replay.experiments.trace.replay.carry_out`.

        Raises
        ------
        RefusedError
            If the scheme refuses a step.
        """
        del observe
        check_jobs(jobs)
        self.check_fit({"": setup}, max_memory, report, jobs=jobs)
        return self._keep(setup, folder=folder, jobs=jobs, progress=progress, found=found, report=report)

    def _keep(self, setup: TraceSetup, **how: Any) -> TraceResult:
        from replay.experiments.trace.replay import carry_out

        (found,) = carry_out({0: setup}, **how).values()
        if not isinstance(found, TraceResult):
            raise found
        return found

    def outcomes(
        self,
        asked: Sequence[ResultRequest],
        given: Mapping[str, Any],
        *,
        jobs: int = 1,
        progress: Progress | None = None,
        max_memory: float | None = None,
        report: Report | None = None,
        allow_code: AllowCode = False,
        folder: str | Path | None = None,
        found: Found | None = None,
        **_: Any,
    ) -> Sequence[Outcome]:
        """Replay under several schemes, whose steps one crew shares."""
        from replay.experiments.trace.replay import carry_out

        setups, refused = set_up_all(self, asked, given, allow_code=allow_code)
        schemes = {asked[at].scheme: setup for at, setup in setups.items()}
        self.check_fit(schemes, max_memory, report, jobs=jobs)
        how: dict[str, Any] = {
            "jobs": jobs,
            "progress": progress,
            "found": found,
            "report": report,
        }
        outcomes = {**refused, **carry_out(setups, folder, **how)}
        return [outcomes[at] for at in range(len(asked))]


EXPERIMENT = Trace()
