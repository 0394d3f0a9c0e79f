"""MegaMoE's kernel for Hopper by itself, on 8 x H100 and on one GPU, and when its dispatch ends.

On 8 x H100 measured by the authors of sgl-project/DeepGEMM pull request 88: whole kernels of the
branch that they change (waves) and of their own (GEMM-2 behind GEMM-1), and from traces within the
kernel when the last row has been pulled, with GEMM-2 behind by 8 and by 40 units.

On one GPU, which has all experts, measured by this project (measurements/MEASURED.md): the kernel
in waves, pull request 36. It takes 0.87 to 1.00 of what eight GPUs take for as many rows of as many
experts on each: products, and what warps do beside them, are what a layer in waves waits for.

Only the H200's ``hbm.stream_efficiency`` is fitted to them, to three rows of the kernel on one GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hwmodel.units import PS_PER_US
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.schemes.ep.megamoe.scheme import MEGAMOE_HOPPER
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    timeline = _timeline(bench, row, row["lag_units"])
    if row["measure"] == "kernel":
        return timeline.makespan_ps / PS_PER_US
    pulled = timeline.graph.kind == Kind.DISPATCH_RECEIVE
    return float(timeline.visible_ps[pulled].max()) / PS_PER_US


def predict_alone(bench: Bench, row: MeasurementRow) -> float:
    """Predict the time on one GPU in microseconds."""
    return _timeline(bench, row, 0).makespan_ps / PS_PER_US


def _timeline(bench: Bench, row: MeasurementRow, lag_units: int) -> Timeline:
    work = work_of(row)
    scheme: Any = MEGAMOE_HOPPER.with_options({"schedule": row["order"], "lag_units": lag_units})

    def build(machine: Machine, start: Ints) -> Ints:
        ends: Ints = scheme.kernel(work, machine, start)
        return ends

    return bench.timeline(bench.system(row["system"]), row["ep_size"], build)


def work_of(row: MeasurementRow) -> LayerWork:
    """Its routing."""
    drawn = row.work()
    return LayerWork(
        drawn.expert_ids,
        drawn.source_rank.astype(np.int32),
        drawn.placement,
        ExpertShape(row["hidden"], row["intermediate"]),
        Precision("fp8", dispatch="fp8"),
    )


TABLE = MeasurementTable(
    name="fused_layers",
    title="MegaMoE's kernel for Hopper, 8 x H100",
    kind=WorkKind.ROWS,
    size="tokens_per_rank",
    bounds=(
        Bound("GEMM-2 behind GEMM-1", 10, has(measure="kernel", order="lag")),
        Bound("waves", 15, has(measure="kernel", order="waves")),
        Bound("end of the dispatch", 10, has(measure="end of dispatch")),
    ),
    predict=predict,
    systems=("dgx-h100",),
    schemes=("megamoe-hopper",),
)

ALONE = MeasurementTable(
    name="fused_kernel",
    title="MegaMoE's kernel for Hopper in waves, one GPU",
    kind=WorkKind.EXPERTS,
    size="tokens_per_rank",
    bounds=(
        Bound("H100", 15, has(system="dgx-h100")),
        Bound("H200", 20, has(system="hgx-h200")),
    ),
    predict=predict_alone,
    systems=("dgx-h100", "hgx-h200"),
    others=("again_us",),
    schemes=("megamoe-hopper",),
)
