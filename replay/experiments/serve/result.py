"""Results of serving: schemas ``moereplay-infer/1`` and its comparison.

Times are microseconds, bytes are whole numbers. The same input gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from replay.experiments.base.names import check_baseline
from replay.experiments.base.rows import result_row
from replay.experiments.layer.result import SystemDescription
from replay.experiments.serve.spec import PREFILL_SCHEMES, InferSpec
from replay.files import write_text
from tracegen.shared.display.shown import Shown
from tracegen.shared.strict import Strict


def named(prompts: str, decoding: str) -> str:
    """Name the scheme of decoding, behind that of prompts where it is not the one it stands for."""
    is_usual = prompts == PREFILL_SCHEMES.get(decoding, decoding)
    return decoding if is_usual else f"{prompts}+{decoding}"


class Memory(Strict):
    """Bytes of the fullest GPU of one phase.

    Attributes
    ----------
    weight_bytes
        Share of the model.
    iteration_bytes
        Buffers of the scheme, rows and activations of an MoE layer.
    position_bytes
        Of a position of a request in the cache, all layers.
    cache_positions
        Positions that the requests of a GPU have in the end.
    positions_fit
        Positions for which there is room.
    """

    capacity_bytes: int
    weight_bytes: int
    iteration_bytes: int
    position_bytes: int
    cache_positions: int
    positions_fit: int


class Replayed(Strict):
    """How MoE layers were replayed.

    Attributes
    ----------
    moe_layers
        Layers of a chain, in place of all of the model's.
    chains
        Chains that were replayed, of different numbers of tokens.
    largest_error
        Largest known error of a line between two exact times, as a share.
    """

    launch: Literal["eager", "graph"]
    moe_layers: int
    chains: int
    largest_error: float


class PhaseResult(Strict):
    """One phase of a batch.

    Attributes
    ----------
    scheme
        The scheme, its source and all its options by value.
    time_us
        All iterations.
    tokens
        Of prompts, or made.
    tokens_per_s_per_gpu
        Over the time of the phase.
    spent_us
        Time of all iterations, by what it was spent on.
    """

    scheme: dict[str, JsonValue]
    system: SystemDescription
    gpus: int
    workers: int
    iterations: int
    time_us: float
    tokens: int
    tokens_per_s_per_gpu: float
    spent_us: dict[str, float]
    memory: Memory
    replayed: Replayed


class FirstToken(Strict):
    """When requests have their first token, from the beginning of the batch."""

    first_us: float
    mean_us: float
    last_us: float


class PerToken(Strict):
    """Time per token and request while it is decoded.

    Attributes
    ----------
    start_us, end_us
        In the first iteration, and in the last.
    mean_us
        Mean over the requests of their own time per token.
    tokens_per_step
        Tokens that an iteration adds to a request, mean.
    """

    start_us: float
    mean_us: float
    end_us: float
    tokens_per_step: float


class Handover(Strict):
    """Caches on their way to GPUs that decode.

    Attributes
    ----------
    bytes_per_gpu
        Sent by each GPU that prefills.
    exposed_us
        From the end of prefill until the last byte has arrived.
    """

    bytes_per_gpu: int
    exposed_us: float


class InferResult(Strict, Shown):
    """One batch of requests, prefilled and decoded.

    Attributes
    ----------
    run_id
        SHA-256 of everything that decides the result.
    time_us
        Until the last request has its last token.
    """

    format: Literal["moereplay-infer/1"] = "moereplay-infer/1"
    run_id: str
    version: str
    spec: InferSpec
    model: dict[str, JsonValue]
    requests: int
    time_us: float
    ttft: FirstToken
    tpot: PerToken
    prefill: PhaseResult
    handover: Handover | None = None
    decode: PhaseResult
    left_out: list[str]

    @property
    def name(self) -> str:
        """Name in comparisons, see `named`."""
        return named(str(self.prefill.scheme["name"]), str(self.decode.scheme["name"]))

    def _rows(self) -> list[dict[str, Any]]:
        """One."""
        return [result_row(self.name, self)]

    def to_json(self) -> str:
        """The whole result."""
        return _json(self)

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        write_text(path, self.to_json())


class InferComparison(Strict, Shown):
    """Several schemes serving one batch.

    Attributes
    ----------
    baseline
        Name of the result that speed-ups are given over.
    left_out
        By name, why a scheme was not replayed.
    """

    format: Literal["moereplay-infer-comparison/1"] = "moereplay-infer-comparison/1"
    baseline: str
    results: list[InferResult]
    left_out: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_its_baseline(self) -> InferComparison:
        check_baseline(self.baseline, [one.name for one in self.results])
        return self

    def __getitem__(self, name: str) -> InferResult:
        """Result by the name of its schemes."""
        for result in self.results:
            if result.name == name:
                return result
        raise KeyError(name)

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
