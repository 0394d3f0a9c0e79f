"""Serving requests as they arrive as an experiment."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from replay.experiments.base.experiment import NOTHING, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.serve.arrivals.result import (
    ArrivalComparison,
    ArrivalResult,
    comparison_of_old,
    result_of_old,
)
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.experiment import Serving

if TYPE_CHECKING:
    from replay.experiments.serve.arrivals.replay import ArrivalSetup

NO_TIME = "it has no one time: limits are kept up to a rate, or at none"


class Arrivals(Serving[ArrivalSpec, "ArrivalSetup", ArrivalResult, ArrivalComparison]):
    """Requests that arrive, which an engine batches and a whole model serves."""

    name = "arrivals"
    command = "infer"
    title = "requests that arrive"
    spec = ArrivalSpec
    result = ArrivalResult
    comparison = ArrivalComparison
    lacking: ClassVar[Words] = {
        **Serving.lacking,
        "diff": NO_TIME,
        "explain": NO_TIME,
        "uncertainty": NO_TIME,
    }
    older: ClassVar[Older] = {
        "moereplay-arrivals/1": result_of_old,
        "moereplay-arrivals-comparison/1": comparison_of_old,
    }

    def setup(self, spec: ArrivalSpec, given: SpecInputs[ArrivalSetup] = NOTHING) -> ArrivalSetup:
        """Follow the references of a spec; no objects may be given, and requests are the same under all schemes."""
        from replay.experiments.serve.arrivals.replay import ArrivalSetup

        return ArrivalSetup.of(spec, given)

    def replay(self, setup: ArrivalSetup, watch: ReplayWatcher) -> ArrivalResult:
        """Serve the requests; their iterations have no schedule to observe."""
        from replay.experiments.serve.arrivals.replay import carry_out

        return carry_out(setup)


EXPERIMENT = Arrivals()
