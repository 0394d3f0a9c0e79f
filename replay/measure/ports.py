"""Bytes and time of service of every port: sums over the messages on ports."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from replay.graph import Touched
from replay.graph.timeline import sum_by
from replay.machine.kinds import ACKS, PHASES, ROWS, Kind, among, phase_index
from replay.machine.resources import PORTS
from replay.measure.parts import BusiestPort, PortBytes

if TYPE_CHECKING:
    from replay.graph import TaskGraph, Timeline
    from replay.machine.machine import Machine
    from replay.machine.resources import Ints

PORT_NAMES = tuple(port.name.lower().replace("_", "-") for port in PORTS)
NVLINK = ("uplink", "downlink")
COMMUNICATION = ("dispatch", "combine")


def evicted_wire_bytes(timeline: Timeline, machine: Machine) -> Ints:
    """Bytes that evictions put on the port of each task: (task,)."""
    graph = timeline.graph
    extra = np.zeros(graph.num_tasks, np.int64)
    for blocks in machine.notes.touches.values():
        for block in blocks:
            has = np.flatnonzero(timeline.touched[block.touch] & Touched.EVICTED)
            np.add.at(extra, graph.touches.charged[block.touch[has]], block.evicted_wire_bytes[has])
    return extra


class PortSums:
    """Sums over port tasks: (kind, port, gpu).

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.
    service_ps
        (task,): time in service, where the schedule is known.
    tasks
        The tasks that count.
    evicted
        (task,): see `evicted_wire_bytes`.

    Attributes
    ----------
    payload, wire, evicted
        Bytes; those that evictions added are not in `wire`.
    """

    def __init__(
        self,
        graph: TaskGraph,
        classes: Ints,
        num_ranks: int,
        service_ps: Ints | None = None,
        tasks: slice | Ints = slice(None),
        evicted: Ints | None = None,
    ) -> None:
        shape = (len(Kind), len(PORTS), num_ranks)
        port_of = np.full(len(classes) + 1, -1, np.int64)  # the null resource comes last
        for place, port in enumerate(PORTS):
            of_class = np.flatnonzero(classes == port)
            port_of[of_class] = place * num_ranks + graph.resources.owner[of_class]
        port_of_task = port_of[graph.resource[tasks]]
        chosen = np.flatnonzero(port_of_task >= 0)
        kind = graph.kind[tasks][chosen].astype(np.int64)
        key = kind * (len(PORTS) * num_ranks) + port_of_task[chosen]

        def total(values: Ints) -> Ints:
            return sum_by(key, values[tasks][chosen], math.prod(shape)).reshape(shape)

        self.payload, self.wire = total(graph.payload_bytes), total(graph.wire_bytes)
        self.evicted = np.zeros_like(self.wire) if evicted is None else total(evicted)
        self._least = total(graph.duration_ps)
        self._duration = self._least if service_ps is None else total(service_ps)

    @classmethod
    def of(cls, timeline: Timeline, machine: Machine) -> PortSums:
        """Sums over all tasks of a schedule."""
        graph = timeline.graph
        classes = machine.resources.classes(graph)
        evicted = evicted_wire_bytes(timeline, machine)
        return cls(graph, classes, machine.num_ranks, timeline.service_ps, evicted=evicted)

    def _of(self, phase: str, what: str) -> Ints:
        """Bytes or picoseconds of a phase, or of all ("both"): (port, gpu)."""
        every = np.ones(len(Kind), np.bool_)
        sums, counts = {
            "payload": (self.payload, among(ROWS)),
            "wire": (self.wire + self.evicted, every),
            "duration": (self._duration, every),
            # Nobody waits for acknowledgements: they may be under way after the phase.
            "awaited": (self._least, ~among(ACKS)),
        }[what]
        phases = phase_index(np.arange(len(Kind)))
        is_in = phases >= 0 if phase == "both" else phases == PHASES.index(phase)
        by_port: Ints = sums[is_in & counts].sum(axis=0)
        return by_port

    def bytes(self, phase: str, what: str) -> PortBytes:
        """Bytes of a phase on NVLink ports, by direction and GPU."""
        up, down = self._of(phase, what)[: len(NVLINK)]
        return PortBytes(uplink=up.tolist(), downlink=down.tolist())

    def network_bytes(self, phase: str, what: str) -> Ints:
        """Bytes of a phase on network cards: (way out or in, gpu)."""
        return self._of(phase, what)[len(NVLINK) :]

    def busiest(self, phase: str) -> BusiestPort:
        """The port that is in service longest; the first of equals."""
        duration = self._of(phase, "duration")
        direction, gpu = np.unravel_index(int(duration.argmax()), duration.shape)
        where = (direction, gpu)
        return BusiestPort(
            direction=PORT_NAMES[int(direction)],
            gpu=int(gpu),
            payload_bytes=int(self._of(phase, "payload")[where]),
            wire_bytes=int(self._of(phase, "wire")[where]),
            busy_us=int(duration[where]) / 1e6,
        )

    def bound_ps(self, phase: str) -> int:
        """Time in which the busiest port serves what the phase waits for, in picoseconds."""
        return int(self._of(phase, "awaited").max(initial=0))


def bytes_by_layer(
    graph: TaskGraph,
    classes: Ints,
    num_ranks: int,
    tasks: Sequence[slice | Ints],
    evicted: Ints | None = None,
) -> list[tuple[dict[str, PortBytes], dict[str, PortBytes]]]:
    """Payload and wire bytes of each layer's dispatch and combine.

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.
    tasks
        (layer,): the tasks of each.
    evicted
        (task,): see `evicted_wire_bytes`.
    """
    found = []
    for some in tasks:
        ports = PortSums(graph, classes, num_ranks, None, some, evicted)
        found.append(
            (
                {phase: ports.bytes(phase, "payload") for phase in COMMUNICATION},
                {phase: ports.bytes(phase, "wire") for phase in COMMUNICATION},
            )
        )
    return found
