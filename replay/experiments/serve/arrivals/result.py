"""Results of requests that arrived: schemas ``moereplay-arrivals/2`` and its comparison.

Times are microseconds, bytes are whole numbers. The same input gives the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, JsonValue

from replay.experiments.base.result import (
    ComparisonBase,
    SchemeDescription,
    SystemDescription,
    TimedResult,
)
from replay.experiments.serve.arrivals.spec import ArrivalSpec
from replay.experiments.serve.capacity import Capacity
from replay.experiments.serve.measures import ServingRun
from replay.experiments.serve.result import asked_of_both, scheme_name
from tracegen.shared.strict import Strict

US_PER_S = 1e6


class Cache(Strict):
    """Caches of a phase: positions of each worker, and their bytes on each of its GPUs."""

    phase: Literal["prefill", "decode"]
    workers: int
    positions: int
    position_bytes: int


class ArrivalPhase(Strict):
    """A phase: the scheme of its layers, and the machine."""

    phase: Literal["prefill", "decode"]
    scheme: SchemeDescription
    system: SystemDescription


class ArrivalResult(TimedResult):
    """Requests that arrived, served under one scheme for prompts and one for decoding.

    Attributes
    ----------
    model, phases
        The model's sizes, and what prefills and decodes; nothing in files of the first schema.
    served
        The run; of a search, the one at the largest rate that keeps the limits, if there is one.
    capacity
        The search, whose own `served` is left out.
    """

    format: Literal["moereplay-arrivals/2"] = "moereplay-arrivals/2"
    spec: ArrivalSpec
    model: dict[str, JsonValue] = Field(default_factory=dict)
    phases: list[ArrivalPhase] = Field(default_factory=list)
    caches: list[Cache]
    served: ServingRun | None
    capacity: Capacity | None

    @property
    def name(self) -> str:
        """Name in comparisons, see `scheme_name`."""
        if not self.phases:
            return scheme_name(self.spec.of_prompts, self.spec.scheme)
        return scheme_name(*(one.scheme.name for one in self.phases))

    @property
    def schemes(self) -> list[SchemeDescription]:
        """Scheme of prompts and scheme of decoding, or the one of both."""
        return list({one.scheme.name: one.scheme for one in self.phases}.values())

    @property
    def asked_options(self) -> dict[str, Mapping[str, Any]]:
        """Options of the scheme of prompts, and of that of decoding."""
        return asked_of_both(self.schemes, self.spec)

    @property
    def headline_us(self) -> float:
        """Mean time of a request, from its arrival until its last token.

        After a search it is the time between two requests at the largest rate that keeps the
        limits: infinite where no rate does. Where they are kept even if all come at once, it is
        the time of the run over its requests.
        """
        if self.capacity is None:
            return math.inf if self.served is None else self.served.e2e.mean_us
        rate = self.capacity.rate_per_s
        if rate is None:
            assert self.served is not None
            return self.served.span_us / self.served.requests
        return US_PER_S / rate if rate else math.inf


class ArrivalComparison(ComparisonBase[ArrivalResult]):
    """Several schemes that serve the same requests."""

    format: Literal["moereplay-arrivals-comparison/2"] = "moereplay-arrivals-comparison/2"


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-arrivals/1``, which had two specs, one of the present schema."""
    arrivals = document["arrivals"]
    kept = {name: value for name, value in document.items() if name != "arrivals"}
    spec = {**document["spec"], **arrivals}
    return {**kept, "format": "moereplay-arrivals/2", "spec": spec}


def comparison_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a comparison of the first schema, which had no baseline, one of the present schema."""
    results = [result_of_old(one) for one in document["results"]]
    first = document["results"][0]["spec"]
    prompts = ArrivalSpec(scheme=first["scheme"], prefill_scheme=first["prefill_scheme"]).of_prompts
    return {
        **document,
        "format": "moereplay-arrivals-comparison/2",
        "baseline": scheme_name(prompts, first["scheme"]),
        "results": results,
    }
