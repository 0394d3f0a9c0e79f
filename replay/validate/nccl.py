"""NCCL collectives as nccl-tests measures them: the quickest algorithm and protocol of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from replay.machine import collectives
from replay.machine.collectives import PROTOCOLS, Protocol
from replay.validate.bench import Bench
from replay.validate.table import Bound, Row, Table

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

MEGABYTE = 1 << 20
Algorithm = Callable[["Machine", "Ints"], "Ints"]


def algorithms(collective: str, num_gpus: int, nbytes: int) -> list[Algorithm]:
    """Every algorithm and protocol of a collective; `nbytes` as nccl-tests counts them."""
    choices = [_point_to_point(collective, num_gpus, nbytes, protocol) for protocol in PROTOCOLS]
    if collective == "all_reduce" and num_gpus > 2:
        choices.append(lambda machine, start: collectives.nvls_all_reduce(machine, start, nbytes))
    return choices


def _point_to_point(collective: str, n: int, nbytes: int, protocol: Protocol) -> Algorithm:
    """Exchange between pairs (alltoall), or a ring (all other collectives)."""
    if collective == "alltoall":
        return lambda machine, start: collectives.all_to_all(machine, start, nbytes, protocol)
    steps = 2 * (n - 1) if collective == "all_reduce" else n - 1
    part = max(1, nbytes // n)
    return lambda machine, start: collectives.ring(machine, start, part, protocol, steps=steps)


def nccl_us(bench: Bench, system: str, collective: str, num_gpus: int, nbytes: int) -> float:
    """Time of a collective by its quickest algorithm, launch included, in microseconds."""
    return min(
        bench.time_us(bench.system(system), num_gpus, algorithm)
        for algorithm in algorithms(collective, num_gpus, nbytes)
    )


def predict(bench: Bench, rows: Sequence[Row]) -> list[float]:
    """Predict times in microseconds."""
    return [
        nccl_us(bench, row["system"], row["collective"], row["num_gpus"], row["bytes"])
        for row in rows
    ]


TABLE = Table(
    name="nccl_collectives",
    title="NCCL collectives, 2, 4 and 8 x H100",
    unit="us",
    size="bytes",
    bounds=(
        Bound("1 MB and more", 10, lambda row: row["bytes"] >= MEGABYTE),
        Bound("less than 1 MB", 20, lambda row: row["bytes"] < MEGABYTE),
    ),
    predict=predict,
)
