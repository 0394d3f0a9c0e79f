"""MoRI's dispatch and combine on GPUs of AMD, which a mesh of links joins.

Source: ROCm/mori, the launch configurations that it comes with, each with the time that it was
chosen by. The kernels are no scheme here. What is predicted is a mesh's part of them: the rows of
each pair of GPUs over its one link (dispatch stores them, combine loads them), and what a kernel
that all GPUs take part in costs beside. So this tests the machine, and not the compute units that
move rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.model.machine.kinds import COMBINE, DISPATCH
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

SCALE_BYTES = 32 * 4  # of an FP8 row in its benchmark: scale_dim x scale_type_size
CHOICE_BYTES = 4 + 4  # an expert's id and its weight
SOURCE_BYTES = 4  # where the row is from
MOST_MESSAGES = 256  # of a pair, so that each waits for the one before it and little more


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a time in microseconds."""
    system, num_gpus = bench.system(row["system"]), row["ep_size"]
    copies = row.work(row["precision"]).matrix("copies")
    one_of, to = np.nonzero(copies * ~np.eye(num_gpus, dtype=np.bool_))
    messages = int(min(MOST_MESSAGES, copies[one_of, to].min()))
    src, dst = np.tile(one_of, messages), np.tile(to, messages)
    nbytes = -(-copies[src, dst] * _row_bytes(row) // messages)

    def build(machine: Machine, start: Ints) -> None:
        if row["kernel"] == "dispatch":
            peers = machine.transfers.fan_out(src, dst, "stores")
            machine.transfers.store(DISPATCH, src, dst, nbytes, start[src], peers)
        else:  # the row's owner reads what was computed elsewhere
            machine.transfers.load(COMBINE, src, dst, nbytes, start[src])

    beside = system.overheads.barrier_ps(num_gpus) / PS_PER_US
    return bench.time_us(system, num_gpus, build) + beside


def _row_bytes(row: MeasurementRow) -> int:
    """Bytes of a row with all that goes with it."""
    values = row["hidden"] * (2 if row["precision"] == "bf16" else 1)
    if row["kernel"] == "combine":
        return int(values)
    scales = SCALE_BYTES if row["precision"] == "fp8" else 0
    return int(values + scales + CHOICE_BYTES * row["topk"] + SOURCE_BYTES)


TABLE = MeasurementTable(
    name="mori_ep",
    title="MoRI's dispatch and combine over the links of 2, 4 and 8 MI300X and MI355X",
    kind=WorkKind.ROWS,
    size="tokens_per_rank",
    bounds=(
        Bound("MI300X dispatch", 10, has(system="mi300x", kernel="dispatch")),
        Bound("MI300X combine", 10, has(system="mi300x", kernel="combine")),
        Bound("MI355X dispatch", 15, has(system="mi355x", kernel="dispatch")),
        Bound("MI355X combine", 10, has(system="mi355x", kernel="combine")),
    ),
    predict=predict,
    systems=("mi300x", "mi355x"),
)
