"""NCCL EP's low-latency mode: bandwidths that its owner publishes, on one to eight nodes.

The benchmark (``ep_bench``) divides the bytes of a rank's (token, expert) pairs by the mean time
between events before and behind a call. Ten of a rank's 1024 pairs are masked there and none here,
which moves bytes and times alike. Before the combine its host waits for the dispatch and launches
then, so that the published time of a combine is that of the kernel and of this; here it is the
kernel alone, whose bandwidth is higher by that. Which network cards it had is not said; the
predictions are for the system's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replay.schemes.ep.deepep.messages import NODE_GPUS
from replay.schemes.ep.nccl_ep import NcclEp
from replay.studies.validate.bench import Bench, uniform_work
from replay.studies.validate.deepep import whole_way
from replay.studies.validate.table import Bound, Row, Table


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict bandwidths in GB/s."""
    predicted, scheme = [], NcclEp()
    for row in rows:
        n, tokens, topk = row["ep_size"], row["tokens_per_rank"], row["topk"]
        work = uniform_work(n, tokens, row["num_experts"], topk, row["hidden"], "bf16")
        system = bench.system(row["system"], fabric__num_domains=-(-n // NODE_GPUS))
        phase = scheme.dispatch if row["phase"] == "dispatch" else scheme.combine
        time_us = bench.time_us(system, n, partial(whole_way, phase, work))
        predicted.append(tokens * topk * work.dispatch_row_bytes / time_us / 1000)
    return predicted


TABLE = Table(
    name="nccl_ep",
    title="NCCL EP's low-latency kernels, 8 to 64 x H100 on one to eight nodes",
    unit="GB/s",
    size="ep_size",
    bounds=(Bound("all", 10, lambda row: True),),
    predict=predict,
    measured="bandwidth_GB_per_s",
    schemes=("nccl-ep",),
)
