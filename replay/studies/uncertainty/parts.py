"""Errors of the model by tasks of a scheme.

A part is a mechanism with an error of its own, `replay.studies.uncertainty.residuals`. Two schemes
that have the same part have the same error in a draw, which so cancels between them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay.experiments.base.names import UNREAL
from replay.model.machine.kinds import KINDS, Kind
from replay.studies.uncertainty.residuals import BLACKWELL, UNVALIDATED, factor, table

if TYPE_CHECKING:
    from hwmodel import System
    from replay.experiments.layer.result import Result

LARGE_BYTES = 1_000_000  # of a GPU, where NCCL's table is parted (`replay.studies.validate.nccl`)
BLACKWELL_ROWS = 128  # of an instruction of Blackwell's tensor cores; Hopper's has 64

MEASURED = MappingProxyType(
    {
        "nccl-alltoall": "NCCL all-to-all, {size}",
        "megatron": "NCCL all-to-all, {size}",
        "tutel": "NCCL all-to-all, {size}",
        "fastermoe": "NCCL all-to-all, {size}",
        "megatron-allgather": "NCCL rings, {size}",
        "deepep": "DeepEP {phase}",
        "deepep-ll": "DeepEP low-latency {phase}",
        "hybrid-ep": "HybridEP {phase}",
        "trtllm-alltoall": "TensorRT-LLM {phase}",
        "ccfuser": "CCFuser {phase}",
    }
)
"""Part that a scheme's communication is, where its kernels were measured."""

MEASURED_ON = MappingProxyType({"TensorRT-LLM dispatch": "GB200", "TensorRT-LLM combine": "GB200"})
"""Machine of parts that were measured on one alone."""

FEW = MappingProxyType(
    {
        "deepep-v2": "DeepEP V2, B200",
        "nccl-ep": "NCCL EP",
        "megamoe-hopper": "MegaMoE for Hopper, whole FP8 kernels in two orders",
    }
)
"""Part that tells how far off a scheme was where it was measured: too seldom, or with its experts,
to be the part that its communication is."""

_GROUPS = MappingProxyType(
    {
        "dispatch": "dispatch",
        "combine": "combine",
        "placement": "placement",
        "gemm1": "experts",
        "gemm2": "experts",
        "wgrad": "experts",
    }
)
"""Phases of a layer whose error is known; elementwise kernels and attention have that of their
hardware values alone."""


def group_of(kind: Kind) -> str:
    """Group by which a kind of task has its error: a phase, the experts, dense GEMMs, or none."""
    if kind == Kind.DENSE_GEMM:
        return "dense"
    return _GROUPS.get(KINDS[kind].phase or "", "")


def parts_of(result: Result, system: System | None = None) -> dict[str, str]:
    """Name of the part that each group of tasks belongs to.

    Parameters
    ----------
    result
        Of a scheme.
    system
        The machine; None takes what the result says of its own.

    Two schemes without measurements have parts of different names, unless they are variants of one:
    ``communication with few or no measurements (dysharp)``.
    """
    precision = "FP8" if result.types.gemm == "fp8" else "BF16"  # FP32 is multiplied as BF16 is
    found = {"experts": f"experts, {precision}", "dense": f"dense GEMMs, {precision}"}
    found["placement"] = f"{UNVALIDATED} (weights)"
    values = result.system.values if system is None else system.describe()
    if result.scheme.name not in UNREAL:
        for phase in ("dispatch", "combine"):
            found[phase] = _communication(result, values, phase)
    return found


def _communication(result: Result, values: Mapping[str, Any], phase: str) -> str:
    family = result.scheme.name.partition("-")[0]
    measured = MEASURED.get(result.scheme.name)
    if measured is None:
        return f"{UNVALIDATED} ({family})"
    name = measured.format(phase=phase, size=_size(result, phase))
    per_domain = values.get("fabric.num_gpus")
    if isinstance(per_domain, int) and result.batch.num_ranks > per_domain:
        if (transport := result.scheme.options.get("transport", "warps")) != "warps":
            return f"{UNVALIDATED} ({family} over {transport})"
        name += " between nodes"
    elif values.get("compute.mma_rows") == BLACKWELL_ROWS:
        name += BLACKWELL if name + BLACKWELL in table() else ""
    return name if name in table() else f"{UNVALIDATED} ({family})"


def _size(result: Result, phase: str) -> str:
    """Tell whether a layer's GPUs send much in a phase."""
    sent = sum(max(one.payload_bytes[phase].uplink, default=0) for one in result.schedules)
    return "large" if sent / result.totals.num_layers >= LARGE_BYTES else "small"


def factors(parts: dict[str, str], share: Callable[[str], float]) -> tuple[npt.NDArray[np.float64], dict[str, float]]:
    """Factors on the times of tasks.

    Parameters
    ----------
    parts
        See `parts_of`.
    share
        Gives for the name of a part where in its distribution the draw lies (0 to 1).

    Returns
    -------
    (kind,) factors, and those of the parts by name.
    """
    by_part = {name: factor(name.partition(" (")[0], share(name)) for name in parts.values()}
    by_kind = np.ones(len(Kind))
    for kind in Kind:
        group = group_of(kind)
        if group in parts:
            by_kind[kind] = by_part[parts[group]]
    return by_kind, by_part
