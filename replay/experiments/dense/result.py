"""Results of replays of tensor parallelism: schemas ``moereplay-tensor/1`` and its comparison.

Times are microseconds (exact multiples of a picosecond), bytes are whole numbers, and lists have
one entry per GPU. The same input gives the same bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, JsonValue, model_validator

from replay.experiments.base.names import check_baseline
from replay.experiments.base.rows import result_row
from replay.experiments.dense.spec import TensorSpec
from replay.experiments.layer.result import SystemDescription
from replay.files import write_text
from replay.measure.result import Measures
from tracegen.shared.display.shown import Shown
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


class TensorResult(Strict, Shown):
    """One replay.

    Attributes
    ----------
    run_id
        SHA-256 of everything that decides the result.
    scheme
        The scheme, its source and all its options by value.
    time_us
        From the first task to the last; `layer_us` of it for each layer, if there are several.
    products_us
        Time that the products, attention and elementwise kernels of the layer take by themselves,
        one after the other, on an otherwise idle GPU. Kernels that are one save launches and
        partial waves besides.
    communication_sms
        SMs per GPU that do nothing but communicate, while a kernel of the scheme does.
    """

    format: Literal["moereplay-tensor/1"] = "moereplay-tensor/1"
    run_id: str
    version: str
    spec: TensorSpec
    model: dict[str, JsonValue]
    system: SystemDescription
    scheme: dict[str, JsonValue]
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

    def _rows(self) -> list[dict[str, Any]]:
        """One."""
        return [result_row(str(self.scheme["name"]), self)]

    def to_json(self) -> str:
        """The whole result."""
        return _json(self)

    def save(self, path: str | Path) -> None:
        """Write `to_json` to a file, whole or not at all."""
        write_text(path, self.to_json())


class TensorComparison(Strict, Shown):
    """Several schemes on one layer.

    Attributes
    ----------
    baseline
        Scheme that speed-ups are given over.
    left_out
        By name, why a scheme was not replayed.
    """

    format: Literal["moereplay-tensor-comparison/1"] = "moereplay-tensor-comparison/1"
    baseline: str
    results: list[TensorResult]
    left_out: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _has_its_baseline(self) -> TensorComparison:
        check_baseline(self.baseline, [str(one.scheme["name"]) for one in self.results])
        return self

    def __getitem__(self, scheme: str) -> TensorResult:
        """Result of a scheme by name."""
        for result in self.results:
            if result.scheme["name"] == scheme:
                return result
        raise KeyError(scheme)

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
