"""Bytes and time of service of every port: sums over the messages on ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.engine.sums import TaskSums
from replay.measure.parts import BusiestPort, PortBytes
from replay.measure.pools import Pools
from replay.model.machine.kinds import ACKS, PHASE_OF_KIND, PHASES, ROWS, among
from replay.model.machine.resources import PORTS, ResourceClass

if TYPE_CHECKING:
    from replay.engine import TaskGraph
    from replay.model.arrays import Bytes, Ints
    from replay.model.machine.machine import Machine

PORT_NAMES = tuple(port.name.lower().replace("_", "-") for port in PORTS)
NVLINK = ("uplink", "downlink")
CARDS = (ResourceClass.NIC_OUT, ResourceClass.NIC_IN)
COMMUNICATION = ("dispatch", "combine")
IS_ROW, IS_ACK = among(ROWS), among(ACKS)
_IN_PHASE = {name: np.equal(PHASE_OF_KIND, place) for place, name in enumerate(PHASES)}
_IN_PHASE["both"] = PHASE_OF_KIND >= 0
# Nobody waits for acknowledgements: they may be under way after the phase.
_COUNTED = {"payload": IS_ROW, "wire": True, "duration": True, "awaited": ~IS_ACK}
_IS_COUNTED = {
    (phase, what): (is_in & counted).astype(np.int64)
    for phase, is_in in _IN_PHASE.items()
    for what, counted in _COUNTED.items()
}
"""(kind,): 1 for the kinds that sums of a phase add up."""
_INDEX_OF_CLASS = np.full(max(ResourceClass) + 1, -1, np.int64)
_INDEX_OF_CLASS[[*PORTS, ResourceClass.SM]] = np.arange(len(PORTS) + 1)


def places_of(graph: TaskGraph, classes: Ints, num_ranks: int) -> tuple[Ints, int]:
    """Places at which sums are wanted: ports (port, gpu), SMs (gpu,), and all the rest together.

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.

    Returns
    -------
    (resource,) place, and how many places there are.
    """
    num_places = (len(PORTS) + 1) * num_ranks + 1
    index = _INDEX_OF_CLASS[classes]
    return np.where(index < 0, num_places - 1, index * num_ranks + graph.resources.owner), num_places


class ResourceFacts(NamedTuple):
    """Facts of a machine's resources for measures, once for all that are read of it.

    Attributes
    ----------
    classes
        (resource,): see `Resources.classes`.
    pools
        The parts of the machine that they are made of.
    places
        Where sums are wanted, see `places_of`.
    """

    classes: Ints
    pools: Pools
    places: tuple[Ints, int]

    @classmethod
    def of(cls, graph: TaskGraph, machine: Machine, before: ResourceFacts | None = None) -> ResourceFacts:
        """Look at the resources of a graph, unless no more have come since before."""
        if before is not None and len(before.classes) == len(graph.resources):
            return before
        classes = machine.resources.classes(graph)
        return cls(classes, Pools.of(graph, machine), places_of(graph, classes, machine.num_ranks))


def sms_of(by_place: Ints, num_ranks: int) -> Ints:
    """(kind, gpu): the entries of SMs in sums (kind, place)."""
    return by_place[:, len(PORTS) * num_ranks : (len(PORTS) + 1) * num_ranks]


def evicted_by_place(graph: TaskGraph, place: Ints, num_places: int, charged: Ints, nbytes: Bytes) -> Ints:
    """Bytes that evictions put on ports: (kind, place), see `places_of`.

    Parameters
    ----------
    charged, nbytes
        Tasks, and how many each: two (eviction,), see `EndedTouches.evictions`.
    """
    total = np.zeros((len(graph.kind_names), num_places), np.int64)
    np.add.at(total, (graph.kind[charged], place[graph.resource[charged]]), nbytes)
    return total


class PortSums:
    """Sums over port tasks: (kind, port, gpu).

    Parameters
    ----------
    sums
        Of tasks, by the places of `places_of`.
    num_ranks
        GPUs.
    evicted
        (kind, place): bytes that evictions added; None for none.

    Attributes
    ----------
    payload, wire, evicted
        Bytes; those that evictions added are not in `wire`.
    """

    def __init__(self, sums: TaskSums, num_ranks: int, evicted: Ints | None = None) -> None:
        def of_ports(by_place: Ints) -> Ints:
            on_ports = by_place[:, : len(PORTS) * num_ranks]
            return on_ports.reshape(len(by_place), len(PORTS), num_ranks)

        self.payload, self.wire = of_ports(sums.payload_bytes), of_ports(sums.wire_bytes)
        self.evicted = np.zeros_like(self.wire) if evicted is None else of_ports(evicted)
        least, duration = of_ports(sums.duration_ps), of_ports(sums.service_ps)
        self._sums = {
            "payload": self.payload,
            "wire": self.wire + self.evicted,
            "duration": duration,
            "awaited": least,
        }
        self._of_ports: dict[tuple[str, str], Ints] = {}

    @classmethod
    def of(cls, graph: TaskGraph, classes: Ints, num_ranks: int) -> PortSums:
        """Sums over all tasks of a graph whose schedule is not known.

        Parameters
        ----------
        classes
            (resource,): see `Resources.classes`.
        """
        return cls(TaskSums.of(graph, *places_of(graph, classes, num_ranks)), num_ranks)

    def of_port(self, phase: str, what: str) -> Ints:
        """Bytes or picoseconds of a phase, or of all ("both"): (port, gpu)."""
        if (phase, what) not in self._of_ports:
            # A product adds kinds up in one call; a mask would first copy their rows.
            sums = self._sums[what]
            added = _IS_COUNTED[phase, what] @ sums.reshape(len(sums), -1)
            self._of_ports[phase, what] = added.reshape(sums.shape[1:])
        return self._of_ports[phase, what]

    def bytes(self, phase: str, what: str) -> PortBytes:
        """Bytes of a phase on NVLink ports, by direction and GPU."""
        up, down = self.of_port(phase, what)[: len(NVLINK)]
        return PortBytes(uplink=up.tolist(), downlink=down.tolist())

    def busiest(self, phase: str) -> BusiestPort:
        """The port that is in service longest; the first of equals."""
        duration = self.of_port(phase, "duration")
        direction, gpu = np.unravel_index(int(duration.argmax()), duration.shape)
        where = (direction, gpu)
        return BusiestPort(
            direction=PORT_NAMES[int(direction)],
            gpu=int(gpu),
            payload_bytes=int(self.of_port(phase, "payload")[where]),
            wire_bytes=int(self.of_port(phase, "wire")[where]),
            busy_us=int(duration[where]) / 1e6,
        )

    def bound_ps(self, phase: str) -> int:
        """Time in which the busiest port serves what the phase waits for, in picoseconds."""
        return int(self.of_port(phase, "awaited").max(initial=0))
