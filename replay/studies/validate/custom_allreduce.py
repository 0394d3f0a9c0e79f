"""All-reduce kernels of inference engines, in CUDA graphs.

An engine takes its one-shot or two-shot kernel by size, and NCCL beyond. Where it goes from one to
the other is tuned for each engine: the prediction is the quickest of the three, and says which.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from replay.model.collectives import one_shot, two_shot
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.machine.kinds import DISPATCH, Kind
from replay.studies.validate.bench import Bench
from replay.studies.validate.nccl import timed
from replay.studies.validate.symmetric_memory import in_graph
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, Prediction, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

SYSTEM = "dgx-h100"
MOST_BYTES = 64 << 20  # engines leave this size and larger ones to NCCL
COPIES = {"vllm"}  # into a registered buffer, first
KERNELS = {"one-shot": one_shot.by_loads, "two-shot": two_shot.all_reduce}


def build(name: str, nbytes: int, copies: bool, machine: Machine, start: Ints) -> Ints:
    """Add a kernel of an engine: (rank,) the last tasks."""
    begun = in_graph(machine, start)
    if copies:
        copied = machine.stream(Kind.DISPATCH_MEMORY, 2 * nbytes, machine.ranks, begun)
        begun = in_graph(machine, copied)
    return KERNELS[name](CollectiveCall(machine, DISPATCH, "all_reduce", nbytes), begun)


def predict(bench: Bench, row: MeasurementRow) -> Prediction:
    """Predict a time in microseconds."""
    system, n, nbytes = bench.system(SYSTEM), row["num_gpus"], row["bytes"]
    alone = bench.once(("nccl", n, nbytes), lambda: timed(bench, SYSTEM, "all_reduce", n, nbytes))
    found = [alone._replace(kernel=f"NCCL {alone.kernel}")]
    if nbytes < MOST_BYTES:
        copies = row["framework"] in COPIES
        found += [Prediction(bench.time_us(system, n, partial(build, name, nbytes, copies)), name) for name in KERNELS]
    return min(found)


TABLE = MeasurementTable(
    name="custom_allreduce",
    title="One-shot, two-shot and NCCL all-reduce of inference engines, 2, 4 and 8 x H100",
    size="bytes",
    bounds=(Bound("all", 20, has()),),
    predict=predict,
)
