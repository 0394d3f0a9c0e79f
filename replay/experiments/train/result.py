"""Results of training steps: schemas ``moereplay-train/3`` and its comparison.

Times are microseconds (exact multiples of a picosecond). The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue

from replay.experiments.base.result import (
    ComparisonBase,
    SchemeDescription,
    SystemDescription,
    TimedResult,
    scheme_of_old,
)
from replay.experiments.base.rows import result_row
from replay.experiments.train.spec import TrainSpec
from tracegen.shared.strict import Strict


class Efficiency(Strict):
    """Throughput of a step.

    Attributes
    ----------
    tokens_per_s, tokens_per_s_per_gpu
        Of all GPUs, and of each.
    flop_per_token
        Operations of the model for one token, forward and backward, as Megatron-LM counts them:
        two for each multiplied weight, twice that on the way back, and of attention the pairs that
        a causal mask leaves. What is done again to save memory does not count.
    tflop_per_s_per_gpu
        These, for all tokens of a step, in TFLOP/s.
    peak, peak_tflop_per_s
        Number type of the GEMMs, and what the data sheet of the GPU says of it, without sparsity.
    mfu
        Model FLOP utilisation: the ratio of both.
    """

    tokens_per_s: float
    tokens_per_s_per_gpu: float
    flop_per_token: int
    tflop_per_s_per_gpu: float
    peak: str
    peak_tflop_per_s: float
    mfu: float


class HeldClock(Strict):
    """Clock of the GPUs, and what they draw.

    Attributes
    ----------
    GHz
        Of the SMs.
    W
        Mean power of a GPU, waits for other stages aside.
    limit_W
        What it may draw.
    """

    GHz: float
    W: float
    limit_W: float


class TrainResult(TimedResult):
    """One training step.

    Attributes
    ----------
    plan
        Sizes of the parallel plan.
    is_paired
        Whether layers were made forward beside others backward; if not, a schedule that does so
        made one after the other, since there is no joint replay under the scheme.
    num_gpus, peers
        GPUs of the plan; those of a stage that wait for each other. Other groups of a stage do
        alike.
    sequence, tokens_per_step
        Tokens of a sequence, and of the whole plan.
    step_us
        From the start of a step until all GPUs may begin the next.
    spent_us
        By cause, for each stage and each of its peers; on every GPU they add up to the step.
    activity_us
        By stage and peer as `spent_us`, time in which kernels run (`active`), those that compute
        (`computing`), that communicate (`communicating`), and both (`both`); TRAINING.md says what
        counts as one. Nothing in older files.
    moe_share
        Share of the step, mean over GPUs, that goes by with experts, exchange, and waiting for
        peers.
    bubble_share
        Likewise, with waiting for another stage.
    clock
        Of the GPUs under their power limit; None where that is not known, or not asked for.
    recipe, memory
        Types of the numbers that are kept; bytes of a GPU of each stage, by what they hold, with
        even routing and without a scheme's buffers.
    replayed
        What level one replayed, and what it left out.
    """

    ENTERED = frozenset(
        {
            "model",
            "plan",
            "schedule",
            "precision",
            "recipe",
            "is_paired",
            "num_gpus",
            "peers",
            "sequence",
            "tokens_per_step",
        }
    )

    format: Literal["moereplay-train/3"] = "moereplay-train/3"
    spec: TrainSpec
    model: dict[str, JsonValue]
    system: SystemDescription
    scheme: SchemeDescription
    plan: dict[str, JsonValue]
    schedule: dict[str, JsonValue]
    precision: str
    recipe: str
    is_paired: bool
    num_gpus: int
    peers: int
    sequence: int
    tokens_per_step: int
    step_us: float
    spent_us: dict[str, list[list[float]]]
    activity_us: dict[str, list[list[float]]] = Field(default_factory=dict)
    efficiency: Efficiency
    moe_share: float
    bubble_share: float
    clock: HeldClock | None = Field(None, exclude_if=lambda clock: clock is None)
    memory: list[dict[str, int]]
    replayed: dict[str, JsonValue]

    def mean_us(self, cause: str) -> float:
        """Mean over all GPUs of what one cause takes of the step."""
        return _mean(self.spent_us.get(cause, [[0.0]]))

    @property
    def kernels_us(self) -> dict[str, float]:
        """Means over all GPUs of `activity_us`, and of the rest of the step as `idle`."""
        means = {name: _mean(stages) for name, stages in self.activity_us.items()}
        return means | {"idle": self.step_us - means["active"]} if means else {}

    @property
    def hidden_share(self) -> float:
        """Share of communicating that goes by while kernels compute; 0 where nothing does."""
        means = self.kernels_us
        return means["both"] / means["communicating"] if means.get("communicating") else 0.0

    def _rows(self) -> list[dict[str, Any]]:
        """One, with the mean over GPUs of what each cause takes of the step."""
        spent = {f"spent_us.{cause}": self.mean_us(cause) for cause in self.spent_us}
        kernels = {f"activity_us.{name}": time for name, time in self.kernels_us.items()}
        return [result_row(self.name, self) | spent | kernels]

    @property
    def headline_us(self) -> float:
        """Time of the step."""
        return self.step_us

    @property
    def composed_us(self) -> dict[tuple[str, str], float]:
        """Causes, mean over all GPUs."""
        return {("the step", cause): self.mean_us(cause) for cause in self.spent_us}


def _mean(stages: list[list[float]]) -> float:
    return sum(map(sum, stages)) / (len(stages) * len(stages[0]))


class TrainComparison(ComparisonBase[TrainResult]):
    """One step under several schemes."""

    format: Literal["moereplay-train-comparison/3"] = "moereplay-train-comparison/3"


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-train/1`` one of the present schema."""
    scheme = scheme_of_old(document["scheme"])
    return {**result_of_second(document), "scheme": scheme}


def result_of_second(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-train/2`` one of the present schema: its spec reads former names."""
    return {**document, "format": "moereplay-train/3"}
