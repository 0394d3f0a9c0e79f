"""NCCL EP's low-latency mode: bandwidths that its owner publishes, on one to eight nodes.

The benchmark (``ep_bench``) divides the bytes of a rank's (token, expert) pairs by the mean time
between events before and behind a call. Ten of a rank's 1024 pairs are masked there and none here,
which moves bytes and times alike. Before the combine its host waits for the dispatch and launches
then, so that the published time of a combine is that of the kernel and of this; here it is the
kernel alone, whose bandwidth is higher by that. Which network cards it had is not said; the
predictions are for the system's own.
"""

from __future__ import annotations

from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.nccl_ep import NcclEp
from replay.studies.validate.bench import Bench
from replay.studies.validate.deepep import whole_way_us
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict a bandwidth in GB/s."""
    work = row.work("bf16")
    time_us = whole_way_us(bench, row, NcclEp(), work)
    return float(row["tokens_per_rank"] * row["topk"] * work.dispatch_row_bytes / time_us / 1000)


TABLE = MeasurementTable(
    name="nccl_ep",
    title="NCCL EP's low-latency kernels, 8 to 64 x H100 on one to eight nodes",
    kind=lambda row: WorkKind.ROWS_BETWEEN if row["ep_size"] > NODE_GPUS else WorkKind.ROWS,
    size="ep_size",
    bounds=(Bound("all", 10, has()),),
    predict=predict,
    measured="bandwidth_GB_per_s",
    schemes=("nccl-ep",),
)
