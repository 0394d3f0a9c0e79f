"""Results of replays of tensor parallelism: schemas ``moereplay-tensor/2`` and its comparison.

Times are microseconds (exact multiples of a picosecond), bytes are whole numbers, and lists have
one entry per GPU. The same input gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import JsonValue

from replay.experiments.base.result import (
    ComparisonBase,
    SchemeDescription,
    SystemDescription,
    TimedResult,
    scheme_of_old,
)
from replay.experiments.dense.spec import TensorSpec
from replay.measure.result import Measures
from tracegen.shared.strict import Strict


class Quantiles(Strict):
    """A distribution, in microseconds."""

    count: int
    mean_us: float
    p50_us: float
    p90_us: float
    p99_us: float
    max_us: float


class Skew(Strict):
    """Accesses of several GPUs to one address: from the first until the last.

    Attributes
    ----------
    between_gpus
        Over the addresses that more than one GPU accesses, by what accesses them.
    """

    between_gpus: dict[str, Quantiles]


class Direction(Strict):
    """One direction of all links: bytes per GPU, and the share of the time that they are busy.

    Attributes
    ----------
    gather_bytes, reduce_bytes
        Payload of rows on their way to all GPUs, and of sums, per GPU.
    wire_bytes
        Everything, headers, requests and acknowledgements included, per GPU.
    utilisation
        Mean over the GPUs.
    """

    gather_bytes: list[int]
    reduce_bytes: list[int]
    wire_bytes: list[int]
    utilisation: float


class TensorResult(TimedResult):
    """One replay.

    Attributes
    ----------
    sequence_parallel
        Whether norms and what is elementwise have slices of the tokens.
    time_us
        From the first task to the last; `layer_us` of it for each layer, if there are several.
    products_us
        Time that the products, attention and elementwise kernels of the layer take by themselves,
        one after the other, on an otherwise idle GPU. Kernels that are one save launches and
        partial waves besides.
    communication_sms
        SMs per GPU that do nothing but communicate, while a kernel of the scheme does.
    """

    ENTERED = frozenset({"model", "sequence_parallel", "tp", "tokens", "sequence"})

    format: Literal["moereplay-tensor/2"] = "moereplay-tensor/2"
    spec: TensorSpec
    model: dict[str, JsonValue]
    system: SystemDescription
    scheme: SchemeDescription
    sequence_parallel: bool
    tp: int
    tokens: int
    sequence: int
    time_us: float
    layer_us: float
    products_us: float
    exposed_us: float
    up: Direction
    down: Direction
    communication_sms: int
    skew: Skew
    measures: Measures

    @property
    def headline_us(self) -> float:
        """Time of all layers."""
        return self.time_us

    @property
    def schedules(self) -> list[Measures]:
        """Measures of the one schedule of all layers."""
        return [self.measures]


class TensorComparison(ComparisonBase[TensorResult]):
    """Several schemes on one layer."""

    format: Literal["moereplay-tensor-comparison/2"] = "moereplay-tensor-comparison/2"


def result_of_old(document: Mapping[str, Any]) -> dict[str, Any]:
    """Make a result of ``moereplay-tensor/1`` one of the present schema."""
    scheme = document["scheme"]
    return {
        **document,
        "format": "moereplay-tensor/2",
        "scheme": scheme_of_old(scheme),
        "sequence_parallel": scheme["sequence_parallel"],
    }
