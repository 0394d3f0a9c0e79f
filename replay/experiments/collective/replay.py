"""Collectives alone, one kernel each, as nccl-tests times them.

Kernel follows kernel in a stream, so that a time has the gap before the kernel. Algorithm bandwidth
is the size over the time; bus bandwidth is what every port would carry if no switch added or
copied: times (n - 1) / n, for an all-reduce times 2 (n - 1) / n (``doc/PERFORMANCE.md`` of
NVIDIA/nccl-tests).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hwmodel.units import PS_PER_US
from replay.engine import schedule
from replay.experiments.base.result import SystemDescription, package_version
from replay.experiments.collective.result import CollectiveResult, CollectiveRow, PortUse
from replay.model.machine.kinds import DISPATCH

if TYPE_CHECKING:
    from replay.experiments.base.experiment import ReplayWatcher
    from replay.experiments.collective.setup import CollectiveSetup
    from replay.model.arrays import Ints
    from replay.model.collectives.algorithm import Algorithm, Collective


def carry_out(setup: CollectiveSetup, watch: ReplayWatcher) -> CollectiveResult:
    """Time a collective at each size, under each algorithm.

    Parameters
    ----------
    watch
        Its observer is called with the schedule and the machine of each row.
    """
    rows = []
    for size in setup.spec.num_bytes:
        for algorithm in setup.algorithms:
            rows.append(_row(setup, algorithm, size, watch))
            watch.progress()
    return CollectiveResult(
        run_id=setup.run_id,
        version=package_version(),
        spec=setup.spec,
        system=SystemDescription.of(setup.system),
        collective=setup.spec.op,
        num_ranks=setup.num_ranks,
        num_domains=setup.machine().num_domains,
        rows=rows,
    )


def bus_factor(what: Collective, num_ranks: int) -> float:
    """Bus bandwidth over algorithm bandwidth."""
    return (2 if what == "all_reduce" else 1) * (num_ranks - 1) / num_ranks


def _row(setup: CollectiveSetup, algorithm: Algorithm, nbytes: int, watch: ReplayWatcher) -> CollectiveRow:
    what, blocks, num_ranks = setup.spec.op, setup.spec.blocks, setup.num_ranks
    machine = setup.machine()
    count = algorithm.way(machine, what, nbytes).blocks if blocks is None else blocks
    kernel = algorithm.way(machine, what, nbytes, blocks).name
    begun = machine.kernel(machine.mark(machine.ranks))
    payload = machine.num_domains == 1
    algorithm.build(machine, DISPATCH, what, nbytes, begun, blocks=blocks, payload=payload)
    timeline = schedule(machine.graph.build())
    watch.saw(timeline, machine)
    graph, span = timeline.graph, timeline.makespan_ps

    def way(ports: Ints) -> PortUse:
        owner = np.full(len(graph.resources), -1, np.int64)
        owner[ports] = machine.ranks
        on_port = np.flatnonzero((graph.resource >= 0) & (owner[graph.resource] >= 0))
        rank = owner[graph.resource[on_port]]

        def total(values: npt.NDArray[np.integer[Any]]) -> list[int]:
            sums = np.zeros(num_ranks, np.int64)
            np.add.at(sums, rank, values[on_port])
            return [int(value) for value in sums]

        busy = total(timeline.end_ps - timeline.start_ps)
        return PortUse(
            payload_bytes=total(graph.payload_bytes) if payload else None,
            wire_bytes=total(graph.wire_bytes),
            utilisation=sum(busy) / (num_ranks * span),
        )

    bandwidth = nbytes / span * 1e3
    return CollectiveRow(
        algorithm=algorithm.name,
        kernel=kernel,
        blocks=count,
        bytes=nbytes,
        time_us=span / PS_PER_US,
        algorithm_GB_per_s=bandwidth,
        bus_GB_per_s=bandwidth * bus_factor(what, num_ranks),
        up=way(machine.resources.uplink),
        down=way(machine.resources.downlink),
    )
