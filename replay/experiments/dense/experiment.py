"""Layers under tensor parallelism as an experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base import compare as base
from replay.experiments.base.experiment import SchemeExperiment
from replay.experiments.base.load import load_of
from replay.experiments.dense.result import TensorComparison, TensorResult, result_of_old
from replay.experiments.dense.spec import TensorSpec

if TYPE_CHECKING:
    from replay.experiments.base.experiment import Observer, Progress, Report
    from replay.experiments.dense.setup import Setup
    from replay.schemes.outside import AllowCode


class Dense(SchemeExperiment[TensorSpec, "Setup", TensorResult]):
    """One layer, or several alike, sliced over GPUs."""

    name = "dense"
    command = "tensor"
    title = "layer under tensor parallelism"
    spec = TensorSpec
    result = TensorResult
    headline = "time_us"
    comparison = TensorComparison
    baselines = ("sp-nvls",)
    scheme_help = "A name of `moereplay tensor schemes`, or FILE.py:NAME, which executes the file."
    usual = "all that can run the layer"
    details = "bytes, critical path, SMs, skew, tables, and links over time"
    code = ("experiments/dense",)
    phases: ClassVar[Mapping[str, str]] = {"dispatch": "gather", "combine": "reduce"}
    older: ClassVar[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
        "moereplay-tensor/1": result_of_old
    }

    def usual_schemes(self, shared: TensorSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All of tensor parallelism."""
        from replay.schemes.registry import TENSOR_SCHEMES

        return list(TENSOR_SCHEMES)

    def under(
        self, shared: TensorSpec, reference: str, options: Mapping[str, Mapping[str, Any]]
    ) -> tuple[str, TensorSpec]:
        """The scheme alone is another."""
        from replay.schemes.registry import find

        name = find(reference, "tp", allow_code=False).name
        return name, shared.changed(scheme=reference, options=dict(options.get(name, {})))

    def setup(
        self,
        spec: TensorSpec,
        given: Mapping[str, Any],
        *,
        like: Setup | None = None,
        allow_code: AllowCode = False,
    ) -> Setup:
        """Nothing is given beside the spec."""
        from replay.experiments.dense.setup import Setup

        return Setup.of(spec, allow_code=allow_code)

    def check_fit(
        self,
        setups: Sequence[Setup],
        max_memory: float,
        report: Report | None = None,
        jobs: int = 1,
    ) -> None:
        """Found out from one replay of some of the tokens."""
        from replay.experiments.dense.fit import check_fit
        from replay.experiments.dense.replay import replayed

        check_fit(setups, lambda setup: replayed(setup, setup.scheme)[2], max_memory / jobs, report)

    def replay(
        self, setup: Setup, *, progress: Progress | None = None, observe: Observer | None = None
    ) -> TensorResult:
        """An observer is called with the schedule and its machine."""
        from replay.experiments.dense.replay import carry_out

        result = carry_out(setup, observe=observe)
        if progress is not None:
            progress()
        return result

    def estimate(self, setup: Setup) -> tuple[str, str, str]:
        """By a replay of some of its tokens."""
        from replay.experiments.dense.fit import in_words
        from replay.experiments.dense.replay import replayed

        return in_words(setup, lambda one: replayed(one, one.scheme)[2])


EXPERIMENT = Dense()


def run(spec: TensorSpec | None = None, **settings: Any) -> TensorResult:
    """Replay a layer under one scheme; parameters and errors are those of `base.compare.run`."""
    result: TensorResult = base.run(EXPERIMENT, spec, **settings)
    return result


def compare(
    spec: TensorSpec | None = None, schemes: str | Sequence[str] | None = None, **settings: Any
) -> TensorComparison:
    """Replay a layer under several schemes; parameters are those of `base.compare.compare`."""
    found: TensorComparison = base.compare(EXPERIMENT, spec, schemes, **settings)
    return found


def load_result(path: str | Path) -> TensorResult | TensorComparison:
    """Read a result or a comparison of this kind; errors are those of `replay.load_result`."""
    found: TensorResult | TensorComparison = load_of(EXPERIMENT, path)
    return found
