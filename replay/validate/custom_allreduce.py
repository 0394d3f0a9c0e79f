"""All-reduce kernels of inference engines, in CUDA graphs.

An engine takes its one-shot or two-shot kernel by size, and NCCL beyond. Which by which size differs
from engine to engine and is tuned: the prediction is the quickest of the three, and says which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replay.collectives import one_shot, two_shot
from replay.machine.kinds import DISPATCH, Kind
from replay.validate.bench import Bench
from replay.validate.nccl import nccl_us
from replay.validate.symmetric_memory import in_graph
from replay.validate.table import Bound, Prediction, Row, Table

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

SYSTEM = "dgx-h100"
MOST_BYTES = 64 << 20  # engines leave this size and larger ones to NCCL
COPIES = {"vllm"}  # into a registered buffer, first
KERNELS = {"one-shot": one_shot.by_loads, "two-shot": two_shot.all_reduce}


def predict(bench: Bench, rows: Sequence[Row]) -> list[Prediction]:
    """Predict times in microseconds."""
    predicted, system = [], bench.system(SYSTEM)
    nccl: dict[tuple[int, int], float] = {}
    for row in rows:
        n, nbytes, copies = row["num_gpus"], row["bytes"], row["framework"] in COPIES
        if (n, nbytes) not in nccl:
            nccl[n, nbytes] = nccl_us(bench, SYSTEM, "all_reduce", n, nbytes)
        found = [Prediction(nccl[n, nbytes], "NCCL")]
        for name in KERNELS if nbytes < MOST_BYTES else ():

            def build(machine: Machine, start: Ints, name: str = name) -> Ints:
                begun = in_graph(machine, start)
                if copies:
                    copied = machine.stream(Kind.DISPATCH_MEMORY, 2 * nbytes, machine.ranks, begun)
                    begun = in_graph(machine, copied)
                return KERNELS[name](machine, DISPATCH, nbytes, begun)

            found.append(Prediction(bench.time_us(system, n, build), name))
        predicted.append(min(found))
    return predicted


TABLE = Table(
    name="custom_allreduce",
    title="One-shot, two-shot and NCCL all-reduce of inference engines, 2, 4 and 8 x H100",
    unit="us",
    size="bytes",
    bounds=(Bound("all", 20, lambda row: True),),
    predict=predict,
)
