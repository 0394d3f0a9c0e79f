"""Residuals of validation by part of a layer, as data for `replay.studies.uncertainty`.

A part is a mechanism of one or several schemes with ten measurements or more. A few further parts
say how far off schemes are that take another's error (`parts.FEW`). Of each, the quantiles of
measured over predicted time are kept: `scripts/residuals.py` writes the file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.model.arrays import Reals
from replay.studies.uncertainty.residuals import BLACKWELL, POINTS, UNVALIDATED
from replay.studies.validate.nccl import MEGABYTE
from replay.studies.validate.table import MeasurementRow, Outcome, has

if TYPE_CHECKING:
    import numpy.typing as npt

Holds = Callable[[MeasurementRow], bool]

UNFITTED = (
    "deepep_v2",
    "hybrid_ep",
    "nccl_ep",
    "deepep_internode",
    "deepep_low_latency_internode",
    "ccfuser",
)
"""Tables of communication that was predicted, and on which nothing, or one number, was fitted."""


def _collective(*, is_exchange: bool, is_large: bool) -> Holds:
    return lambda row: (row["collective"] == "alltoall") == is_exchange and (row["bytes"] >= MEGABYTE) == is_large


def _other(column: str, value: str) -> Holds:
    return lambda row: bool(row[column] != value)


def _parts() -> dict[str, dict[str, Holds]]:
    """Rows of each part, by table."""
    found: dict[str, dict[str, Holds]] = {}
    for on, suffix in (("", ""), (BLACKWELL, "_b200")):
        for size, is_large in (("large", True), ("small", False)):
            for name, is_exchange in (("all-to-all", True), ("rings", False)):
                rows = _collective(is_exchange=is_exchange, is_large=is_large)
                found[f"NCCL {name}, {size}{on}"] = {f"nccl_collectives{suffix}": rows}
        for phase in ("dispatch", "combine"):
            rows = has(phase=phase)
            found[f"DeepEP {phase}{on}"] = {f"deepep_normal{suffix}": rows}
            found[f"DeepEP low-latency {phase}{on}"] = {f"deepep_low_latency{suffix}": rows}
    for phase, kernel in (("dispatch", "get_gemm1"), ("combine", "gemm2_put")):
        rows = has(phase=phase)
        found[f"DeepEP {phase} between nodes"] = {"deepep_internode": rows}
        found[f"DeepEP low-latency {phase} between nodes"] = {"deepep_low_latency_internode": rows}
        found[f"HybridEP {phase}"] = {"hybrid_ep": rows}
        found[f"TensorRT-LLM {phase}"] = {"trtllm_alltoall": rows}
        found[f"CCFuser {phase}"] = {"ccfuser": has(kernel=kernel)}
    found["DeepEP V2, B200"] = {"deepep_v2": has()}
    found["NCCL EP"] = {"nccl_ep": has()}
    found["MegaMoE for Hopper, whole FP8 kernels in two orders"] = {"fused_layers": has(measure="kernel")}
    bf16 = _other("moe_dtype", "fp8_block")
    found["experts, FP8"] = {"moe_deepgemm": has()}
    found["experts, BF16"] = {"moe_compute": bf16, "moe_skewed": bf16}
    found["dense GEMMs, FP8"] = {"gemm": has(gemm_dtype="fp8_block")}
    found["dense GEMMs, BF16"] = {"gemm": _other("gemm_dtype", "fp8_block")}
    found[UNVALIDATED] = dict.fromkeys(UNFITTED, has())
    return found


PARTS = _parts()


def quantiles(name: str, outcomes: Mapping[str, Outcome]) -> Reals:
    """(point,): quantiles of measured over predicted time of a part.

    Parameters
    ----------
    name
        A key of `PARTS`.
    outcomes
        Tables and their predictions, by name. Each table of a part weighs the same.
    """
    ratios, weights = [], []
    for table, holds in PARTS[name].items():
        found = _ratios(outcomes[table], holds)
        ratios.append(found)
        weights.append(np.full(len(found), 1 / len(found)))
    return _quantiles(np.concatenate(ratios), np.concatenate(weights))


def num_rows(name: str, outcomes: Mapping[str, Outcome]) -> int:
    """Measurements that a part has."""
    return sum(int(outcomes[t].part(holds).sum()) for t, holds in PARTS[name].items())


def _ratios(outcome: Outcome, holds: Holds) -> Reals:
    """(row,): measured over predicted time, also where a rate was measured."""
    which: npt.NDArray[np.bool_] = outcome.part(holds)
    ratio: Reals = (outcome.measured / outcome.predicted)[which]
    return 1 / ratio if outcome.table.unit == "GB/s" else ratio


def _quantiles(values: Reals, weights: Reals) -> Reals:
    """Quantiles of values that count differently, each standing in the middle of its weight."""
    order = np.argsort(values, kind="stable")
    sorted_weights = weights[order]
    middle = (np.cumsum(sorted_weights) - sorted_weights / 2) / sorted_weights.sum()
    return np.interp(POINTS, middle, values[order])


def lines(outcomes: Mapping[str, Outcome]) -> Sequence[str]:
    """Lines of the file that `replay.studies.uncertainty.residuals` reads."""
    heading = ["part", "rows", *(f"q{100 * point:g}" for point in POINTS)]
    found = [",".join(heading)]
    for name in PARTS:
        numbers = [f"{one:.4g}" for one in quantiles(name, outcomes)]
        found.append(",".join([f'"{name}"', str(num_rows(name, outcomes)), *numbers]))
    return found
