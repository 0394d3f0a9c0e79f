"""Kernels on memory that all GPUs have mapped: all-reduce of PyTorch and engines, in CUDA graphs.

vLLM's benchmark captures ten calls in a graph. A call of PyTorch's kernels is three of them: a
copy into the registered buffer, the all-reduce, a copy out; those of the engine itself work on
tensors that it has registered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from replay.collectives import multimem_kernels, nccl, one_shot, registered, two_shot
from replay.collectives.multimem_kernels import SAMPLE
from replay.machine.kinds import DISPATCH, Kind
from replay.machine.times import Time
from replay.validate.bench import Bench
from replay.validate.table import Bound, Prediction, Row, Table

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

Kernel = Callable[["Machine", int, "Ints"], "Ints"]


def in_graph(machine: Machine, after: Ints) -> Ints:
    """The gap before a kernel of a CUDA graph: (rank,) begins."""
    gap = Time(machine.system.overheads.kernel_gap_ps("graph"))
    return machine.delay(Kind.LAUNCH, gap, after)


def _between_copies(run: Callable[..., Ints], machine: Machine, nbytes: int, start: Ints) -> Ints:
    inside = registered.copied(machine, DISPATCH, nbytes, in_graph(machine, start))
    summed = run(machine, DISPATCH, nbytes, in_graph(machine, inside))
    return registered.copied(machine, DISPATCH, nbytes, in_graph(machine, summed))


def _alone(run: Callable[..., Ints], machine: Machine, nbytes: int, start: Ints) -> Ints:
    return run(machine, DISPATCH, nbytes, in_graph(machine, start))


KERNELS: dict[str, Kernel] = {
    "multimem": partial(_between_copies, multimem_kernels.all_reduce),
    "two-shot": partial(_between_copies, two_shot.all_reduce_by_stores),
    "engine one-shot": partial(_alone, one_shot.by_loads),
    "engine two-shot": partial(_alone, two_shot.all_reduce),
}
IN_SWITCH: dict[str, Kernel] = {
    "one-shot": partial(
        _alone, partial(one_shot.in_switch, style=replace(SAMPLE, meets_after=False))
    ),
    "two-shot": partial(_alone, partial(multimem_kernels.all_reduce, style=SAMPLE)),
    "two-shot with flags": partial(_alone, multimem_kernels.all_reduce_with_flags),
}
NCCL = "nccl"


def predict(
    kernels: dict[str, Kernel], bench: Bench, rows: Sequence[Row]
) -> list[float | Prediction]:
    """Predict times in microseconds."""
    found: list[float | Prediction] = []
    for row in rows:
        system, n, nbytes = bench.system(row["system"]), row["num_gpus"], row["bytes"]
        if row["kernel"] != NCCL:
            kernel = kernels[row["kernel"]]
            found.append(bench.time_us(system, n, lambda m, s: kernel(m, nbytes, s)))
            continue
        taken = []

        def build(machine: Machine, start: Ints) -> None:
            way = nccl.quickest(machine, DISPATCH, "all_reduce", nbytes)
            taken.append(way.name)
            way.build(in_graph(machine, start))

        found.append(Prediction(bench.time_us(system, n, build), f"NCCL {taken[0]}"))
    return found


TABLE = Table(
    name="symmetric_memory",
    title="All-reduce on symmetric memory, PyTorch's and vLLM's kernels",
    unit="us",
    size="bytes",
    systems=("dgx-h100", "hgx-b200"),
    bounds=(Bound("all", 100, lambda row: True),),
    predict=partial(predict, KERNELS),
)
GB200 = Table(
    name="in_switch",
    title="All-reduce in the switch with four thread blocks, 4 and 8 x GB200",
    unit="us",
    size="bytes",
    systems=("gb200-nvl72",),
    bounds=(Bound("all", 100, lambda row: True),),
    predict=partial(predict, IN_SWITCH),
)
