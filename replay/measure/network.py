"""Traffic of the network between NVLink domains: every port of it, and rails."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.measure.parts import NetworkLoad, NetworkPort, Rail
from replay.measure.ports import CARDS, COMMUNICATION, PORT_NAMES
from replay.model.machine.resources import PORTS, ResourceClass

if TYPE_CHECKING:
    import numpy.typing as npt

    from replay.engine import TaskGraph
    from replay.measure.ports import PortSums
    from replay.model.arrays import Ints

ON_THE_WAY = (
    ResourceClass.PCIE_OUT,
    ResourceClass.NIC_OUT,
    ResourceClass.LEAF_UP,
    ResourceClass.LEAF_DOWN,
    ResourceClass.NIC_IN,
    ResourceClass.PCIE_IN,
)
"""Ports between domains, in the order in which a message passes them."""

_IS_ON_THE_WAY = np.isin(np.arange(max(ResourceClass) + 1), ON_THE_WAY)


def carried_between_domains(
    graph: TaskGraph,
    classes: Ints,
    sums: PortSums,
    in_use: npt.NDArray[np.float64],
    leaf: Ints,
) -> NetworkLoad | None:
    """Bytes and utilisation of all ports between domains; None if no message passed any.

    Parameters
    ----------
    classes, in_use
        (resource,): what it is, and busy time over makespan.
    sums
        Bytes by class of ports and the rank that a port stands under.
    leaf
        (rank,): leaf switch of its card.
    """
    if not _IS_ON_THE_WAY[classes].any():
        return None
    ports: dict[str, list[NetworkPort]] = {}
    for of in ON_THE_WAY:
        made = np.flatnonzero(classes == of)
        if len(made):
            place = PORTS.index(of)
            ports[PORT_NAMES[place]] = [
                _port(graph, sums, place, resource, in_use[resource], leaf) for resource in made.tolist()
            ]
    return network_of(ports)


def network_of(ports: dict[str, list[NetworkPort]]) -> NetworkLoad:
    """Put ports, by class, together with the rails that their cards are on."""
    cards = [ports[PORT_NAMES[PORTS.index(of)]] for of in CARDS]
    rails = [_rail(number, *cards) for number in sorted({card.leaf for card in cards[0]})]
    carried = [rail.sent_bytes + rail.received_bytes for rail in rails]
    return NetworkLoad(ports=ports, rails=rails, busiest_rail=int(np.argmax(carried)))


def _port(graph: TaskGraph, sums: PortSums, place: int, resource: int, in_use: float, leaf: Ints) -> NetworkPort:
    owner = int(graph.resources.owner[resource])
    payload, wire = (
        {phase: int(sums.of_port(phase, what)[place, owner]) for phase in COMMUNICATION} for what in ("payload", "wire")
    )
    return NetworkPort(
        name=graph.resources.names[resource],
        leaf=int(leaf[owner]),
        payload_bytes=payload,
        wire_bytes=wire,
        utilisation=float(in_use),
    )


def _rail(leaf: int, out: list[NetworkPort], into: list[NetworkPort]) -> Rail:
    sends, receives = ([card for card in way if card.leaf == leaf] for way in (out, into))
    sent, received = (sum(sum(card.wire_bytes.values()) for card in way) for way in (sends, receives))
    busy = max(sum(card.utilisation for card in way) / len(way) for way in (sends, receives))
    return Rail(leaf=leaf, num_cards=len(sends), sent_bytes=sent, received_bytes=received, utilisation=busy)
