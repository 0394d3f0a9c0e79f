"""NCCL's collectives as nccl-tests measures them: kernel behind kernel in a stream.

Rows say which kernel NCCL takes by the model's formulas: an algorithm and a protocol, or grouped
sends and receives.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from replay.experiments.collective.replay import bus_factor
from replay.experiments.collective.spec import collective_of
from replay.model.collectives import library
from replay.model.collectives.nccl import NCCL
from replay.model.collectives.pair_rules import rules_on
from replay.model.collectives.point_to_point import all_to_all
from replay.model.machine.kinds import DISPATCH
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, Prediction, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

MEGABYTE = 1 << 20
SCHEMES = ("nccl-alltoall", "megatron", "megatron-allgather", "tutel", "fastermoe")
"""Schemes whose rows travel by NCCL's kernels."""


def build(collective: str, nbytes: int, machine: Machine, start: Ints) -> tuple[Ints, str]:
    """Add a collective: (rank,) the last task of every rank, and the kernel's name.

    Parameters
    ----------
    nbytes
        As nccl-tests counts them.
    """
    begun = machine.kernel(start)
    if collective not in ("alltoall", "sendrecv"):
        way = NCCL.way(machine, collective_of(collective), nbytes)
        return way.build(begun), way.name
    n, rules = machine.num_ranks, rules_on(machine.system, machine.num_ranks)
    channels = machine.sms.channels("nccl", rules.num_channels)
    share = np.full((n, n), max(1, nbytes // n))
    if collective == "sendrecv":  # to the next rank alone
        share = np.roll(np.eye(n, dtype=np.int64), 1, axis=1) * nbytes
    done = all_to_all(machine, DISPATCH, channels, rules, share, begun, payload=False).done
    return done, "sends and receives"


def time_collective(bench: Bench, system: str, collective: str, num_gpus: int, nbytes: int) -> Prediction:
    """Time of a collective, the gap before its kernel included, in microseconds, and its kernel."""
    names: list[str] = []

    def add(machine: Machine, start: Ints) -> None:
        names.append(build(collective, nbytes, machine, start)[1])

    return Prediction(bench.time_us(bench.system(system), num_gpus, add), names[0])


def predict(bench: Bench, row: MeasurementRow) -> Prediction:
    """Predict a time in microseconds."""
    return time_collective(bench, row["system"], row["collective"], row["num_gpus"], row["bytes"])


def predict_bus(bench: Bench, row: MeasurementRow) -> Prediction:
    """Predict a bus bandwidth in GB/s."""
    what, nbytes = collective_of(row["collective"]), row["bytes"]
    algorithm = library.find(row["algorithm"])
    names: list[str] = []

    def add(machine: Machine, start: Ints) -> None:
        names.append(algorithm.way(machine, what, nbytes).name)
        algorithm.build(machine, DISPATCH, what, nbytes, machine.kernel(start))

    time_us = bench.time_us(bench.system(row["system"]), row["num_gpus"], add)
    bus = nbytes / time_us / 1e3 * bus_factor(what, row["num_gpus"])
    return Prediction(bus, names[0])


TABLE = MeasurementTable(
    name="nccl_collectives",
    title="NCCL collectives, 2, 4 and 8 x H100",
    kind=WorkKind.COLLECTIVES,
    size="bytes",
    bounds=(
        Bound("1 MB and more", 10, lambda row: row["bytes"] >= MEGABYTE),
        Bound("less than 1 MB", 20, lambda row: row["bytes"] < MEGABYTE),
    ),
    predict=predict,
    schemes=SCHEMES,
)
B200 = replace(
    TABLE,
    name="nccl_collectives_b200",
    title="NCCL collectives, 2 and 8 x B200",
    systems=("hgx-b200",),
    bounds=(
        Bound("1 MB and more", 10, lambda row: row["bytes"] >= MEGABYTE),
        Bound("less than 1 MB", 10, lambda row: row["bytes"] < MEGABYTE),
    ),
)
BUS = MeasurementTable(
    name="nccl_bus_bandwidth",
    title="Bus bandwidth of large collectives by number of GPUs, H100, H200 and H800",
    kind=WorkKind.COLLECTIVES,
    size="bytes",
    bounds=(
        Bound("all-reduce, as NCCL runs", 10, has(collective="all_reduce", algorithm="nccl")),
        Bound("all-reduce, rings", 10, has(collective="all_reduce", algorithm="ring")),
        Bound("gather and scatter", 10, lambda row: row["collective"] != "all_reduce"),
    ),
    predict=predict_bus,
    systems=("dgx-h100", "hgx-h200", "hgx-h800"),
    measured="bandwidth_GB_per_s",
)
