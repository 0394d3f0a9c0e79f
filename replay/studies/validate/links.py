"""Bandwidth between GPUs: pairs, fan-in, fan-out and both ways, by SMs and by copy engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.machine.kinds import DISPATCH
from replay.studies.validate.bench import Bench
from replay.studies.validate.table import Bound, MeasurementRow, MeasurementTable, WorkKind, has

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.machine.machine import Machine

NUM_GPUS = 8
MESSAGE_BYTES = 1 << 20  # small against a transfer, large against a packet
NUM_MESSAGES = 256  # per pair of GPUs: enough that the first one's latency does not count

PATTERNS = {  # (source, target) GPUs of the data
    "pair": [(0, 1)],
    "both-ways": [(0, 1), (1, 0)],
    "fan-in": [(peer, 0) for peer in range(1, NUM_GPUS)],
    "fan-out": [(0, peer) for peer in range(1, NUM_GPUS)],
}


def predict(bench: Bench, row: MeasurementRow) -> float:
    """Predict the payload's rate per GPU and direction, in GB/s."""
    pairs = np.array(PATTERNS[row["pattern"]], dtype=np.int64)
    chosen = pairs[np.arange(NUM_MESSAGES * len(pairs)) % len(pairs)]
    src, dst = chosen[:, 0], chosen[:, 1]

    def build(machine: Machine, start: Ints) -> None:
        move = machine.transfers
        way = (src, dst) if row["access"] == "write" else (dst, src)
        act = move.store if row["access"] == "write" else move.load
        act(DISPATCH, *way, MESSAGE_BYTES, start[way[0]], engine=row["engine"])

    time_us = bench.time_us(bench.system(row["system"]), NUM_GPUS, build)
    streams = 2 if row["pattern"] == "both-ways" else 1
    return float(len(chosen) / streams * MESSAGE_BYTES / time_us / 1e3)


TABLE = MeasurementTable(
    name="links",
    title="NVLink bandwidth, 8 x H800 and 8 x H100",
    kind=WorkKind.COLLECTIVES,
    size="bandwidth_GB_per_s",
    bounds=(Bound("all", 3, has()),),
    predict=predict,
    systems=("dgx-h100", "hgx-h800"),
    measured="bandwidth_GB_per_s",
)
