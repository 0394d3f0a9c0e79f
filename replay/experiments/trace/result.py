"""Results of whole traces: schemas ``moereplay-trace/2`` and its comparison.

Times are microseconds, exact multiples of a picosecond where they are no means. The same input
gives the same bytes, whoever replayed which step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from hwmodel.units import PS_PER_US
from replay.experiments.base.names import UNREAL, row_names
from replay.experiments.layer.result import TracedComparison, TracedResult, with_present_types
from replay.experiments.serve.measures import Percentiles
from replay.experiments.trace.spec import TraceSpec
from tracegen.shared.strict import Strict

MOST_US = 2**63 / PS_PER_US
"""No schedule is as long: its picoseconds are 64-bit integers."""

ROUNDED = 1e-9
"""Share by which a mean in floating point may be too large."""

Time = Annotated[float, Field(ge=0, lt=MOST_US)]
Balance = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class StepResult(Strict):
    """Times of one step.

    Attributes
    ----------
    step
        Its place in the trace.
    makespan_us
        Of all its layers.
    layers_us
        Of each layer and pass, in order: mean over the GPUs of the time from its beginning to its
        end, waiting for others included; of a layer by itself, its makespan.
    imbalance
        Of each: rows of the busiest GPU over the mean.
    """

    step: int = Field(ge=0)
    makespan_us: Time
    layers_us: list[Time] = Field(min_length=1)
    imbalance: list[Balance] = Field(min_length=1)

    @model_validator(mode="after")
    def _is_possible(self) -> StepResult:
        if len(self.layers_us) != len(self.imbalance):
            message = f"{len(self.layers_us)} layers have times, {len(self.imbalance)} an imbalance"
            raise ValueError(message)
        if self.makespan_us < max(self.layers_us) * (1 - ROUNDED):
            message = f"its layers take {max(self.layers_us)} us, and all of it {self.makespan_us}"
            raise ValueError(message)
        return self

    @property
    def mean_imbalance(self) -> float:
        """Mean over the layers."""
        return sum(self.imbalance) / len(self.imbalance)


class StepImbalance(Strict):
    """Mean and maximum over the steps of a step's imbalance, itself a mean over its layers."""

    mean: float
    max: float


class SampledMean(Strict):
    """Mean time of all steps, estimated from some of them.

    Attributes
    ----------
    mean_us
        Of all steps.
    low_us, high_us, confidence
        Where it lies, with this probability. `replay.chains.layer_sampling` says how: stretches of
        the trace are its groups.
    """

    mean_us: float
    low_us: float
    high_us: float
    confidence: float


class StepLayer(Strict):
    """Layer of every step.

    Attributes
    ----------
    layer_index
        Its place among the MoE layers.
    is_backward
        Whether it is the backward pass.
    """

    layer_index: int = Field(ge=0)
    is_backward: bool


class TraceResult(TracedResult):
    """Steps of a trace under one scheme, each replayed by itself.

    Attributes
    ----------
    layers
        Layers and passes of each step, in the order of its lists.
    num_steps
        Steps of the trace.
    steps
        Those that were replayed, in order.
    time
        Their times.
    imbalance
        Of their routing.
    estimate
        Of all steps, where a sample was replayed.
    """

    format: Literal["moereplay-trace/2"] = "moereplay-trace/2"
    spec: TraceSpec
    num_steps: int
    layers: list[StepLayer] = Field(min_length=1)
    steps: list[StepResult] = Field(min_length=1)
    time: Percentiles
    imbalance: StepImbalance
    estimate: SampledMean | None = None

    @model_validator(mode="after")
    def _of_the_same_layers(self) -> TraceResult:
        for one in self.steps:
            if len(one.layers_us) != len(self.layers):
                message = f"step {one.step} has {len(one.layers_us)} layers, not {len(self.layers)}"
                raise ValueError(message)
        return self

    @property
    def headline_us(self) -> float:
        """Mean time of a step: of all, where they are estimated."""
        return self.time.mean_us if self.estimate is None else self.estimate.mean_us

    def _rows(self) -> list[dict[str, Any]]:
        """One for each step."""
        same = {
            "scheme": self.scheme.name,
            "system": self.system.name,
            "placement": self.placement,
        }
        return [
            {
                **same,
                "step": one.step,
                "makespan_us": one.makespan_us,
                "imbalance": one.mean_imbalance,
            }
            for one in self.steps
        ]


def result_of_first(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-trace/1`` one of the present schema."""
    return {**with_present_types(document), "format": "moereplay-trace/2"}


class TraceComparison(TracedComparison[TraceResult]):
    """Steps of a trace under several schemes, or with several placements."""

    format: Literal["moereplay-trace-comparison/2"] = "moereplay-trace-comparison/2"

    @model_validator(mode="after")
    def _of_the_same_steps(self) -> TraceComparison:
        if len({tuple(step.step for step in one.steps) for one in self.results}) > 1:
            message = "results: they are not of the same steps"
            raise ValueError(message)
        if any(one.layers != self.results[0].layers for one in self.results):
            message = "results: they are not of the same layers"
            raise ValueError(message)
        return self

    def wins(self, *, is_built: bool = False) -> dict[str, list[int]]:
        """Give the steps that each result is the fastest in, by the name of its row.

        Bounds are not among them; of equal times the first in the comparison has the step.

        Parameters
        ----------
        is_built
            Whether results that need hardware which the machine lacks are left out, too.
        """
        named = zip(row_names(self.results, marked=False), self.results, strict=True)
        rivals = {
            name: one for name, one in named if one.scheme.name not in UNREAL and not (is_built and one.scheme.lacking)
        }
        found: dict[str, list[int]] = {name: [] for name in rivals}
        for at, step in enumerate(self.results[0].steps if rivals else []):
            found[min(rivals, key=lambda name: rivals[name].steps[at].makespan_us)].append(step.step)
        return found
