"""Results of serving: schemas ``moereplay-infer/2`` and its comparison.

Times are microseconds, bytes are whole numbers. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field, JsonValue

from replay.experiments.base.result import (
    ComparisonBase,
    SchemeDescription,
    SystemDescription,
    TimedResult,
    scheme_of_old,
)
from replay.experiments.layer.result import StackDescription
from replay.experiments.serve.spec import PREFILL_SCHEMES, InferSpec
from tracegen.shared.strict import Strict


def scheme_name(prompts: str, decoding: str) -> str:
    """Name the scheme of decoding, or ``PREFILL+DECODE`` if it does not imply that of prompts."""
    is_usual = prompts == PREFILL_SCHEMES.get(decoding, decoding)
    return decoding if is_usual else f"{prompts}+{decoding}"


def options_by_scheme(spec: InferSpec, prompts: str, decoding: str) -> dict[str, Mapping[str, Any]]:
    """Options of a spec by scheme; where one serves both phases, those of prompts override."""
    if prompts == decoding:
        return {decoding: {**spec.options, **spec.prefill_options}}
    return {prompts: spec.prefill_options, decoding: spec.options}


def asked_of_both(schemes: Sequence[SchemeDescription], spec: InferSpec) -> dict[str, Mapping[str, Any]]:
    """Options that were asked for, by scheme; `schemes` are a result's, that of prompts first."""
    prompts, decoding = (schemes[0].name, schemes[-1].name) if schemes else (spec.of_prompts, spec.scheme)
    return options_by_scheme(spec, prompts, decoding)


class PhaseMemory(Strict):
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


class LayerReplays(Strict):
    """Settings and counts of the replays of MoE layers.

    Attributes
    ----------
    moe_layers
        Layers of a chain, in place of all of the model's.
    chains
        Chains that were replayed, of different numbers of tokens.
    largest_error
        Largest known error of a line between two exact times, as a share.
    stack
        What launched them; the JSON has no such key where launches were bare.
    listed
        Whether attention and its projections had the kernels of that stack's list; no key either where not.
    """

    launch: Literal["eager", "graph"]
    moe_layers: int
    chains: int
    largest_error: float
    stack: StackDescription | None = Field(None, exclude_if=lambda stack: stack is None)
    listed: bool = Field(False, exclude_if=lambda listed: not listed)


class PhaseResult(Strict):
    """One phase of a batch.

    Attributes
    ----------
    time_us
        All iterations.
    tokens
        Of prompts, or made.
    tokens_per_s_per_gpu
        Over the time of the phase.
    spent_us
        Time of all iterations, by what it was spent on.
    """

    scheme: SchemeDescription
    system: SystemDescription
    gpus: int
    workers: int
    iterations: int
    time_us: float
    tokens: int
    tokens_per_s_per_gpu: float
    spent_us: dict[str, float]
    memory: PhaseMemory
    replayed: LayerReplays


class FirstToken(Strict):
    """Times of requests' first tokens, from the beginning of the batch."""

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


class InferResult(TimedResult):
    """One batch of requests, prefilled and decoded.

    Attributes
    ----------
    time_us
        Until the last request has its last token.
    """

    ENTERED = frozenset({"model", "requests", "left_out"})

    format: Literal["moereplay-infer/2"] = "moereplay-infer/2"
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
        """Name in comparisons, see `scheme_name`."""
        return scheme_name(self.prefill.scheme.name, self.decode.scheme.name)

    @property
    def schemes(self) -> list[SchemeDescription]:
        """Scheme of prompts and that of decoding, or the one of both."""
        return list({one.scheme.name: one.scheme for one in (self.prefill, self.decode)}.values())

    @property
    def asked_options(self) -> dict[str, Mapping[str, Any]]:
        """Options of the scheme of prompts, and of that of decoding."""
        return asked_of_both(self.schemes, self.spec)

    @property
    def headline_us(self) -> float:
        """Time until the last request has its last token."""
        return self.time_us

    @property
    def composed_us(self) -> dict[tuple[str, str], float]:
        """Causes of each phase, and the time between both."""
        wait_us = 0.0 if self.handover is None else self.handover.exposed_us
        return {
            **{("prefill", cause): time for cause, time in self.prefill.spent_us.items()},
            ("handover", "exposed"): wait_us,
            **{("decode", cause): time for cause, time in self.decode.spent_us.items()},
        }


class InferComparison(ComparisonBase[InferResult]):
    """Several schemes serving one batch."""

    format: Literal["moereplay-infer-comparison/2"] = "moereplay-infer-comparison/2"


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-infer/1`` one of the present schema."""
    phases = {
        phase: {**document[phase], "scheme": scheme_of_old(document[phase]["scheme"])}
        for phase in ("prefill", "decode")
    }
    return {**document, "format": "moereplay-infer/2", **phases}
