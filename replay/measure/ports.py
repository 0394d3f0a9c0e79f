"""Bytes and time of service of every port: sums over the messages on ports."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from replay.machine.kinds import ACKS, PHASES, ROWS, phase_index
from replay.machine.resources import PORTS
from replay.measure.parts import BusiestPort, PortBytes

if TYPE_CHECKING:
    from replay.graph import TaskGraph
    from replay.machine.resources import Ints

PORT_NAMES = tuple(port.name.lower().replace("_", "-") for port in PORTS)
NVLINK = ("uplink", "downlink")
COMMUNICATION = ("dispatch", "combine")


def port_of(graph: TaskGraph, classes: Ints, tasks: slice = slice(None)) -> tuple[Ints, Ints]:
    """Port (its place in `PORTS`, -1 for none) and GPU of the port that each task occupies.

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.
    """
    place = np.full(max(len(classes), 1), -1, np.int64)
    for index, port in enumerate(PORTS):
        place[np.flatnonzero(classes == port)] = index
    resource = graph.resource[tasks].astype(np.int64)
    owner = graph.resources.owner.astype(np.int64)
    return np.where(resource >= 0, place[resource], -1), owner[resource]


class PortSums:
    """Sums over port tasks: (phase, port, gpu).

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.
    service_ps
        (task,): time in service, where the schedule is known.
    tasks
        The tasks that count.
    extra_wire
        (task,): bytes that the schedule added to tasks of the whole graph (evictions).
    """

    def __init__(
        self,
        graph: TaskGraph,
        classes: Ints,
        num_ranks: int,
        service_ps: Ints | None = None,
        tasks: slice = slice(None),
        extra_wire: Ints | None = None,
    ) -> None:
        kind = graph.kind[tasks]
        direction, gpu = port_of(graph, classes, tasks)
        phase = phase_index(kind)
        chosen = np.flatnonzero((direction >= 0) & (phase >= 0))
        owner = gpu[chosen]
        shape = (len(PHASES), len(PORTS), num_ranks)
        key = np.ravel_multi_index((phase[chosen], direction[chosen], owner), shape)
        is_ack = np.isin(kind[chosen], np.array(sorted(ACKS)))
        is_row = np.isin(kind[chosen], np.array(sorted(ROWS)))
        payload, wire = graph.payload_bytes[tasks][chosen], graph.wire_bytes[tasks][chosen]
        if extra_wire is not None:
            wire = wire + extra_wire[tasks][chosen]
        least = graph.duration_ps[tasks][chosen]
        duration = least if service_ps is None else service_ps[tasks][chosen]

        def total(values: Ints) -> Ints:
            # Sums stay below 2**53, where a double counts exactly.
            size = int(np.prod(shape))
            sums: Ints = np.bincount(key, weights=values, minlength=size).astype(np.int64)
            by_port: Ints = sums.reshape(shape)
            return by_port

        self._sums = {
            "payload": total(np.where(is_row, payload, 0)),
            "wire": total(wire),
            "duration": total(duration),
            # Nobody waits for acknowledgements: they may be under way after the phase.
            "awaited": total(np.where(is_ack, 0, least)),
        }

    def _of(self, phase: str, what: str) -> Ints:
        sums = self._sums[what]
        by_port: Ints = sums.sum(axis=0) if phase == "both" else sums[PHASES.index(phase)]
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
    bounds: Ints,
    extra_wire: Ints | None = None,
) -> list[tuple[dict[str, PortBytes], dict[str, PortBytes]]]:
    """Payload and wire bytes of each layer's dispatch and combine.

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.
    bounds
        (layer + 1,): tasks of layer l are ``[bounds[l], bounds[l + 1])``.
    extra_wire
        See `PortSums`.
    """
    found = []
    for first, last in itertools.pairwise(bounds.tolist()):
        ports = PortSums(graph, classes, num_ranks, None, slice(first, last), extra_wire)
        found.append(
            (
                {phase: ports.bytes(phase, "payload") for phase in COMMUNICATION},
                {phase: ports.bytes(phase, "wire") for phase in COMMUNICATION},
            )
        )
    return found
