"""Everything that decides how requests are served as they arrive, as one frozen object."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from replay.experiments.serve.rules import Policy, Router
from replay.experiments.serve.spec import InferSpec

if TYPE_CHECKING:
    from replay.experiments.serve.measures import Limits

MOST_MS = 1e12
"""Of a limit: decades."""

MOST_BURSTINESS = 1e12
"""Above it, gaps are even to a millionth; below its inverse, all that are drawn are zero."""


def _drawable(shape: float) -> float:
    if not (1 / MOST_BURSTINESS <= shape <= MOST_BURSTINESS or shape == math.inf):
        possible = f"from {1 / MOST_BURSTINESS:g} to {MOST_BURSTINESS:g}, or inf"
        message = f"burstiness must be {possible}, not {shape:g}"
        raise ValueError(message)
    return shape


Burstiness = Annotated[
    float,
    Field(gt=0),
    BeforeValidator(lambda given: math.inf if given == "inf" else given),
    AfterValidator(_drawable),
    PlainSerializer(lambda number: "inf" if number == math.inf else number, when_used="json"),
]
"""A shape that gaps can be drawn with, or infinity, which is text in JSON."""


class ArrivalSpec(InferSpec):
    """Requests that arrive, the engine's rules of batching, and the schemes that serve a batch.

    A worker has at most ``requests`` per GPU at a time, and prefills at most ``chunk`` tokens per
    GPU in an iteration. ``prompt`` and ``output`` are lengths of requests that are drawn and have
    no distribution of their own.

    Raises
    ------
    UserError
        If a setting does not exist or is not possible.
    """

    arrivals: str = Field("1", description="Requests per second, `once` for all at once, or a file of requests.")
    count: int = Field(1000, ge=1, le=5_000_000, description="Requests: drawn, or taken of a file.")
    burstiness: Burstiness = Field(
        1.0,
        description="Shape of the gaps' gamma distribution: 1 is a Poisson process, inf is even.",
    )
    prompts: str | None = Field(
        None, description="Lengths of drawn prompts: N, uniform:LEAST:MOST, lognormal:MEDIAN:SIGMA."
    )
    outputs: str | None = Field(None, description="Lengths of drawn outputs, as --prompts.")
    arrival_seed: int = Field(0, ge=0, le=2**32, description="Seed of gaps, lengths and drafts.")
    policy: Policy = Field(
        "mixed", description="Rule by which iterations are made: mixed, prefill-first or whole-prompts."
    )
    router: Router = Field(
        "round-robin", description="Worker of an arriving request: round-robin, least-requests, least-waiting."
    )
    block: int = Field(64, ge=1, description="Positions of a block of the cache.")
    memory: float = Field(0.9, gt=0, le=1, description="Share of a GPU's memory for weights, buffers and caches.")
    reserve: float = Field(0.0, ge=0, le=1, description="Share of the outputs to come that the cache keeps room for.")
    ttft_ms: float | None = Field(None, gt=0, le=MOST_MS, description="Limit of the time to the first token.")
    tpot_ms: float | None = Field(None, gt=0, le=MOST_MS, description="Limit of the time per token behind it.")
    percentile: int = Field(99, ge=0, le=100, description="Percent of requests that must keep the limits.")
    search: bool = Field(False, description="Search the largest rate of arrivals at which the limits are kept.")
    rate_tolerance: float = Field(0.05, ge=0.001, le=1, description="Share of the rate that --search may be off.")

    @property
    def limits(self) -> Limits | None:
        """Latencies that are promised, if any."""
        from replay.experiments.serve.measures import Limits

        if self.ttft_ms is None and self.tpot_ms is None:
            return None
        ttft_us, tpot_us = (one and one * 1000 for one in (self.ttft_ms, self.tpot_ms))
        return Limits(ttft_us=ttft_us, tpot_us=tpot_us, percentile=self.percentile)

    def of_batch(self, prompt: int, output: int) -> InferSpec:
        """Make the spec of a batch by the same iterations, whose requests have one length each."""
        own = {name: getattr(self, name) for name in InferSpec.model_fields if name in self.model_fields_set}
        return InferSpec(**{**own, "lengths": "even", "prompt": prompt, "output": output})


OF_ARRIVALS = tuple(name for name in ArrivalSpec.model_fields if name not in InferSpec.model_fields)
"""Settings that a batch does not have."""
