"""Measures of a layer's schedule by directions of links and by GPUs that access one address."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hwmodel.units import PS_PER_US
from replay.experiments.dense.result import Direction, Quantiles, Skew

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.measure.result import Measures
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine


def directions(found: Measures) -> tuple[Direction, Direction]:
    """Bytes and utilisation of the links out of all GPUs, and into them."""
    made = []
    for port in ("uplink", "downlink"):
        wire = [getattr(found.wire_bytes[phase], port) for phase in ("dispatch", "combine")]
        made.append(
            Direction(
                gather_bytes=getattr(found.payload_bytes["dispatch"], port),
                reduce_bytes=getattr(found.payload_bytes["combine"], port),
                wire_bytes=[sum(gpu) for gpu in zip(*wire, strict=True)],
                utilisation=found.utilisation[port].mean,
            )
        )
    return made[0], made[1]


def skew_of(timeline: Timeline, machine: Machine) -> Skew:
    """Time from the first access to an address until the last, by what accesses it."""
    found = {}
    for name, entries in sorted(machine.notes.accesses.items()):
        address = np.concatenate([one for one, _ in entries])
        task = np.concatenate([one for _, one in entries])
        spread = spread_ps(address, timeline.start_ps[task])
        if len(spread):
            found[name] = quantiles(spread)
    return Skew(between_gpus=found)


def spread_ps(address: Ints, time_ps: Picoseconds) -> Picoseconds:
    """From the first to the last of the times (access,) of each address that has several."""
    if not len(address):
        return np.zeros(0, np.int64)
    order = np.lexsort((time_ps, address))
    address, time_ps = address[order], time_ps[order]
    first = np.flatnonzero(np.diff(address, prepend=address[:1] - 1))
    last = np.append(first[1:], len(address)) - 1
    several = last > first
    found: Ints = (time_ps[last] - time_ps[first])[several]
    return found


def quantiles(ps: Ints) -> Quantiles:
    """The distribution of durations."""
    p50, p90, p99 = (float(np.quantile(ps, q, method="higher")) for q in (0.5, 0.9, 0.99))
    return Quantiles(
        count=len(ps),
        mean_us=float(ps.mean()) / PS_PER_US,
        p50_us=p50 / PS_PER_US,
        p90_us=p90 / PS_PER_US,
        p99_us=p99 / PS_PER_US,
        max_us=int(ps.max()) / PS_PER_US,
    )
