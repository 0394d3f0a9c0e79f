"""Results of training steps: schemas ``moereplay-train/1`` and its comparison.

Times are microseconds (exact multiples of a picosecond). The same input gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from replay.experiments.base.names import check_baseline
from replay.experiments.base.rows import result_row
from replay.experiments.layer.result import SystemDescription
from replay.experiments.train.spec import TrainSpec
from replay.files import write_text
from tracegen.shared.display.shown import Shown
from tracegen.shared.strict import Strict


class Efficiency(Strict):
    """What a step is worth.

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


class TrainResult(Strict, Shown):
    """One training step.

    Attributes
    ----------
    run_id
        SHA-256 of everything that decides the result.
    scheme
        The scheme, its source and all its options by value.
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
        From the begin of a step until all GPUs may begin the next.
    spent_us
        By cause, for each stage and each of its peers; on every GPU they add up to the step.
    moe_share
        Share of the step, mean over GPUs, that goes by with experts, exchange, and waiting for
        peers.
    bubble_share
        Likewise, with waiting for another stage.
    recipe, memory
        Types of the numbers that are kept; bytes of a GPU of each stage, by what they hold, with
        even routing and without a scheme's buffers.
    replayed
        What level one replayed, and what it left out.
    """

    format: Literal["moereplay-train/1"] = "moereplay-train/1"
    run_id: str
    version: str
    spec: TrainSpec
    model: dict[str, JsonValue]
    system: SystemDescription
    scheme: dict[str, JsonValue]
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
    efficiency: Efficiency
    moe_share: float
    bubble_share: float
    memory: list[dict[str, int]]
    replayed: dict[str, JsonValue]

    def mean_us(self, cause: str) -> float:
        """Mean over all GPUs of what one cause takes of the step."""
        stages = self.spent_us[cause]
        return sum(map(sum, stages)) / (len(stages) * len(stages[0]))

    def _rows(self) -> list[dict[str, Any]]:
        """One, with the mean over GPUs of what each cause takes of the step."""
        spent = {f"spent_us.{cause}": self.mean_us(cause) for cause in self.spent_us}
        return [result_row(str(self.scheme["name"]), self) | spent]

    def to_json(self) -> str:
        """The whole result."""
        return _json(self)

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        write_text(path, self.to_json())


class TrainComparison(Strict, Shown):
    """One step under several schemes.

    Attributes
    ----------
    baseline
        Scheme that speed-ups are given over.
    left_out
        By name, why a scheme was not replayed.
    """

    format: Literal["moereplay-train-comparison/1"] = "moereplay-train-comparison/1"
    baseline: str
    results: list[TrainResult]
    left_out: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_its_baseline(self) -> TrainComparison:
        check_baseline(self.baseline, [str(one.scheme["name"]) for one in self.results])
        return self

    def __getitem__(self, scheme: str) -> TrainResult:
        """Result of a scheme by name."""
        for result in self.results:
            if result.scheme["name"] == scheme:
                return result
        raise KeyError(scheme)

    def speed_up(self, scheme: str) -> float:
        """How many steps a scheme makes while the baseline makes one."""
        return self[self.baseline].step_us / self[scheme].step_us

    def _rows(self) -> list[dict[str, Any]]:
        """One for each result."""
        return [row for one in self.results for row in one._rows()]

    def to_json(self) -> str:
        """The whole comparison."""
        return _json(self)

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        write_text(path, self.to_json())


def _json(model: Strict) -> str:
    document: dict[str, Any] = model.model_dump(mode="json", by_alias=True)
    return json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n"
