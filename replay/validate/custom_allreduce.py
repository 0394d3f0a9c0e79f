"""All-reduce kernels of inference frameworks, in CUDA graphs.

Frameworks take one-shot or two-shot by size and NCCL beyond; here it is whichever is quickest (see
`replay.machine.all_reduce`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from replay.machine.all_reduce import one_shot, two_shot
from replay.validate.bench import Bench
from replay.validate.nccl import nccl_us
from replay.validate.table import Bound, Row, Table

if TYPE_CHECKING:
    pass

SYSTEM = "dgx-h100"
MOST_BYTES = 64 << 20  # beyond, frameworks leave it to NCCL


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds."""
    found, system = [], bench.system(SYSTEM)
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
        found.append(min(times))
    return found


TABLE = Table(
    name="custom_allreduce",
    title="One-shot, two-shot and NCCL all-reduce of inference frameworks, 2, 4 and 8 x H100",
    unit="us",
    size="bytes",
    bounds=(Bound("all", 20, lambda row: True),),
    predict=predict,
)
