"""NCCL's collectives as nccl-tests measures them: kernel behind kernel in a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from replay.collectives import nccl
from replay.collectives.pair_rules import rules_of
from replay.collectives.point_to_point import all_to_all
from replay.machine.kinds import DISPATCH
from replay.validate.bench import Bench
from replay.validate.table import Bound, Row, Table

if TYPE_CHECKING:
    from replay.machine.machine import Ints, Machine

MEGABYTE = 1 << 20


def build(collective: str, nbytes: int, machine: Machine, start: Ints) -> Ints:
    """Add a collective: (rank,) the last task of every rank; `nbytes` as nccl-tests counts them."""
    begun = machine.kernel(start)
    if collective != "alltoall":
        name = cast("nccl.Collective", collective)
        return nccl.run(machine, DISPATCH, name, nbytes, begun)
    n, rules = machine.num_ranks, rules_of(machine)
    channels = machine.sms.channels("nccl", rules.num_channels)
    share = np.full((n, n), max(1, nbytes // n))
    return all_to_all(machine, DISPATCH, channels, rules, share, begun, payload=False).done


def nccl_us(bench: Bench, system: str, collective: str, num_gpus: int, nbytes: int) -> float:
    """Time of a collective, the gap before its kernel included, in microseconds."""
    return bench.time_us(
        bench.system(system),
        num_gpus,
        lambda machine, start: build(collective, nbytes, machine, start),
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
