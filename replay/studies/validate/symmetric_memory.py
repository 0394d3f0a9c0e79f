"""Kernels on memory that all GPUs have mapped: all-reduce of PyTorch and engines, in CUDA graphs.

vLLM's benchmark captures ten calls in a graph. A call of PyTorch's kernels is three of them: a
copy into the registered buffer, the all-reduce, a copy out; those of the engine itself work on
tensors that it has registered.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from replay.model.collectives import buffer_copies, multimem_kernels, nccl, one_shot, two_shot
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.collectives.multimem_kernels import SAMPLE
from replay.model.machine.kinds import DISPATCH, Kind
from replay.model.machine.times import Time
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, Prediction, WorkKind, has

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

Kernel = Callable[["Machine", int, "Ints"], "Ints"]


def in_graph(machine: Machine, after: Ints) -> Ints:
    """Add the gap before a kernel of a CUDA graph; returns when each rank begins, (rank,)."""
    gap = Time(machine.system.overheads.kernel_gap_ps("graph"))
    return machine.delay(Kind.LAUNCH, gap, after)


def _between_copies(run: Callable[..., Ints], machine: Machine, nbytes: int, start: Ints) -> Ints:
    inside = buffer_copies.copy(machine, DISPATCH, nbytes, in_graph(machine, start))
    summed = _alone(run, machine, nbytes, inside)
    return buffer_copies.copy(machine, DISPATCH, nbytes, in_graph(machine, summed))


def _alone(run: Callable[..., Ints], machine: Machine, nbytes: int, start: Ints) -> Ints:
    call = CollectiveCall(machine, DISPATCH, "all_reduce", nbytes)
    return run(call, in_graph(machine, start))


KERNELS: dict[str, Kernel] = {
    "multimem": partial(_between_copies, multimem_kernels.exchange),
    "two-shot": partial(_between_copies, two_shot.all_reduce_by_stores),
    "engine one-shot": partial(_alone, one_shot.by_loads),
    "engine two-shot": partial(_alone, two_shot.all_reduce),
}
IN_SWITCH: dict[str, Kernel] = {
    "one-shot": partial(_alone, partial(one_shot.in_switch, style=one_shot.SAMPLE)),
    "two-shot": partial(_alone, partial(multimem_kernels.exchange, style=SAMPLE)),
    "two-shot with flags": partial(_alone, multimem_kernels.all_reduce_with_flags),
}
NCCL = "nccl"


def _nccl(bench: Bench, system: System, num_gpus: int, nbytes: int) -> Prediction:
    """NCCL's prediction, as a kernel of a graph."""
    taken: list[str] = []

    def build(machine: Machine, start: Ints) -> None:
        way = nccl.NCCL.way(machine, "all_reduce", nbytes)
        taken.append(way.name)
        way.build(in_graph(machine, start))

    return Prediction(bench.time_us(system, num_gpus, build), f"NCCL {taken[0]}")


def predict(kernels: dict[str, Kernel], bench: Bench, row: MeasurementRow) -> float | Prediction:
    """Predict a time in microseconds."""
    system, n, nbytes = bench.system(row["system"]), row["num_gpus"], row["bytes"]
    if row["kernel"] == NCCL:
        return _nccl(bench, system, n, nbytes)
    run = kernels[row["kernel"]]
    return bench.time_us(system, n, lambda machine, start: run(machine, nbytes, start))


def _part(system: str, kernel: str, *num_gpus: int) -> Callable[[MeasurementRow], bool]:
    return lambda row: bool(row["system"] == system and row["kernel"] == kernel and row["num_gpus"] in num_gpus)


def _on_b200(row: MeasurementRow) -> bool:
    return bool(row["system"] == B200 and row["kernel"] != NCCL)


H100, B200 = "dgx-h100", "hgx-b200"
TABLE = MeasurementTable(
    name="symmetric_memory",
    title="All-reduce of PyTorch and vLLM on registered memory, 6 and 8 x H100, 8 x B200",
    kind=WorkKind.COLLECTIVES,
    size="bytes",
    systems=(H100, B200),
    bounds=(
        Bound("multimem, 8 x H100", 10, _part(H100, "multimem", 8)),
        Bound("multimem, 6 x H100", 20, _part(H100, "multimem", 6)),
        Bound("two-shot, H100", 15, _part(H100, "two-shot", 6, 8)),
        Bound("one-shot of engines, H100", 10, _part(H100, "engine one-shot", 6)),
        Bound("two-shot of engines, H100", 20, _part(H100, "engine two-shot", 6)),
        Bound("NCCL", 15, has(kernel=NCCL)),
        Bound("B200", 10, _on_b200),
    ),
    predict=partial(predict, KERNELS),
    schemes=("nvls",),
)
GB200 = MeasurementTable(
    name="in_switch",
    title="All-reduce in the switch with four thread blocks, 4 and 8 x GB200",
    kind=WorkKind.COLLECTIVES,
    size="bytes",
    systems=("gb200-nvl72",),
    bounds=(
        Bound("one-shot", 10, has(kernel="one-shot")),
        Bound("two-shot", 10, has(kernel="two-shot")),
        Bound("two-shot, flags", 10, has(kernel="two-shot with flags")),
    ),
    predict=partial(predict, IN_SWITCH),
    schemes=("nvls",),
)
