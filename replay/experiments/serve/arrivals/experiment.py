"""Serving requests as they arrive as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base import compare as base
from replay.experiments.serve.arrivals.result import (
    ArrivalComparison,
    ArrivalResult,
    comparison_of_old,
    result_of_old,
)
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.experiment import Serving

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress
    from replay.experiments.serve.arrivals.replay import ArrivalSetup
    from replay.schemes.outside import AllowCode

NO_TIME = "it has no one time: limits are kept up to a rate, or at none"


class Arrivals(Serving[ArrivalSpec, "ArrivalSetup", ArrivalResult]):
    """Requests that arrive, which an engine batches and a whole model serves."""

    name = "arrivals"
    command = "infer"
    title = "requests that arrive"
    spec = ArrivalSpec
    result = ArrivalResult
    comparison = ArrivalComparison
    lacking: ClassVar[Mapping[str, str]] = {
        **Serving.lacking,
        "diff": NO_TIME,
        "explain": NO_TIME,
        "uncertainty": NO_TIME,
    }
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-arrivals/1": result_of_old,
        "moereplay-arrivals-comparison/1": comparison_of_old,
    }

    def setup(
        self,
        spec: ArrivalSpec,
        given: Mapping[str, Any],
        *,
        like: ArrivalSetup | None = None,
        allow_code: AllowCode = False,
    ) -> ArrivalSetup:
        """Nothing is given beside the spec; the requests are the same under all schemes."""
        from replay.experiments.serve.arrivals.replay import ArrivalSetup

        return ArrivalSetup.of(spec, None if like is None else like.requests, allow_code=allow_code)

    def replay(
        self,
        setup: ArrivalSetup,
        *,
        progress: Progress | None = None,
        observe: Observer | None = None,
    ) -> ArrivalResult:
        """Nothing is observed: iterations have no schedule of their own."""
        from replay.experiments.serve.arrivals.replay import carry_out

        result = carry_out(setup)
        if progress is not None:
            progress()
        return result


EXPERIMENT = Arrivals()


def run(spec: ArrivalSpec | None = None, **settings: Any) -> ArrivalResult:
    """Serve what arrives under one scheme of prompts and decoding; see `base.compare.run`."""
    result: ArrivalResult = base.run(EXPERIMENT, spec, **settings)
    return result


def compare(
    spec: ArrivalSpec | None = None, schemes: str | Sequence[str] | None = None, **settings: Any
) -> ArrivalComparison:
    """Serve the same requests under several schemes; see `base.compare.compare`."""
    found: ArrivalComparison = base.compare(EXPERIMENT, spec, schemes, **settings)
    return found
