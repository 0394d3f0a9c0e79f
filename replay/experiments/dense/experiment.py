"""Layers under tensor parallelism as an experiment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from replay.experiments.base.experiment import NOTHING, Older, ReplayWatcher, SpecInputs, Words
from replay.experiments.base.scheme_experiment import SchemeExperiment
from replay.experiments.dense.result import TensorComparison, TensorResult, result_of_old
from replay.experiments.dense.spec import CODE, TensorSpec

if TYPE_CHECKING:
    from replay.experiments.base.estimate import Need
    from replay.experiments.dense.setup import DenseSetup


class Dense(SchemeExperiment[TensorSpec, "DenseSetup", TensorResult, TensorComparison]):
    """One layer, or several alike, sliced over GPUs."""

    name = "dense"
    command = "tensor"
    title = "layer under tensor parallelism"
    spec = TensorSpec
    result = TensorResult
    headline = "time_us"
    comparison = TensorComparison
    kind_of_scheme = "tp"
    baselines = ("sp-nvls",)
    scheme_help = "A name of `moereplay tensor schemes`, or FILE.py:NAME, which executes the file."
    usual = "all that can run the layer"
    details = "Show also bytes, the critical path, SMs, skew, switch tables, and links over time"
    code = CODE
    phases: ClassVar[Words] = {"dispatch": "gather", "combine": "reduce"}
    older: ClassVar[Older] = {"moereplay-tensor/1": result_of_old}

    def usual_schemes(self, shared: TensorSpec, given: Mapping[str, Any]) -> Sequence[str]:
        """All of tensor parallelism."""
        from replay.schemes.registry import TENSOR_SCHEMES

        return list(TENSOR_SCHEMES)

    def setup(self, spec: TensorSpec, given: SpecInputs[DenseSetup] = NOTHING) -> DenseSetup:
        """Follow the references of a spec; no objects may be given."""
        from replay.experiments.dense.setup import DenseSetup

        return DenseSetup.of(spec, given)

    def fits_surely(self, setup: DenseSetup, room: float, *, told: float, is_observed: bool) -> bool:
        """Tell whether there are few tokens, room for them, and too little time in all to be worth an estimate."""
        from replay.experiments.dense.fit import LONG_TOKENS, SURE_BYTES, SURE_TOKENS, tokens_of_all

        tokens = tokens_of_all(setup)
        return tokens <= SURE_TOKENS and room >= SURE_BYTES and told * tokens < LONG_TOKENS

    def estimate(self, setup: DenseSetup, *, is_observed: bool = False) -> Need:
        """Estimate by a replay of some of the tokens."""
        from replay.experiments.dense.fit import estimate_of

        return estimate_of(setup)

    def replay(self, setup: DenseSetup, watch: ReplayWatcher) -> TensorResult:
        """Replay what was set up; an observer is called with the schedule and its machine."""
        from replay.experiments.dense.replay import carry_out

        return carry_out(setup, watch)


EXPERIMENT = Dense()
run, compare, load_result = EXPERIMENT.run, EXPERIMENT.compare, EXPERIMENT.load_result
