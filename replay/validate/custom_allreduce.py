"""All-reduce kernels of inference frameworks, in CUDA graphs.

A framework takes its one-shot or two-shot kernel by size, and NCCL beyond. The prediction is the
quickest of the three (see `replay.collectives.all_reduce`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from replay.collectives.all_reduce import one_shot, two_shot
from replay.validate.bench import Bench
from replay.validate.nccl import nccl_us
from replay.validate.table import Bound, Row, Table

SYSTEM = "dgx-h100"
MOST_BYTES = 64 << 20  # frameworks leave this size and larger ones to NCCL


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds."""
    predicted, system = [], bench.system(SYSTEM)
    nccl: dict[tuple[int, int], float] = {}
    for row in rows:
        n, nbytes = row["num_gpus"], row["bytes"]
        if (n, nbytes) not in nccl:
            nccl[n, nbytes] = nccl_us(bench, SYSTEM, "all_reduce", n, nbytes)
        times = [nccl[n, nbytes]]
        if nbytes < MOST_BYTES:
            times += [
                bench.time_us(system, n, partial(shot, row["framework"], nbytes))
                for shot in (one_shot, two_shot)
            ]
        predicted.append(min(times))
    return predicted


TABLE = Table(
    name="custom_allreduce",
    title="One-shot, two-shot and NCCL all-reduce of inference frameworks, 2, 4 and 8 x H100",
    unit="us",
    size="bytes",
    bounds=(Bound("all", 20, lambda row: True),),
    predict=predict,
)
