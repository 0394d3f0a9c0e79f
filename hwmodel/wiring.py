"""A fabric as a graph: names of its nodes, and the wires between them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import networkx

    from hwmodel.ports import Direction, Port
    from hwmodel.units import Rate

SPINE = "spine"


def gpu_node(gpu: int) -> str:
    """Name of a GPU."""
    return f"gpu{gpu}"


def plane_node(domain: int, plane: int) -> str:
    """Name of a switch plane of an NVLink domain."""
    return f"domain{domain}/plane{plane}"


def nic_node(gpu: int) -> str:
    """Name of a GPU's network card."""
    return f"nic{gpu}"


def leaf_node(rail: int) -> str:
    """Name of the network's switch of a rail."""
    return f"leaf{rail}"


def wiring(
    ports: Iterable[Port],
    domains: Sequence[int],
    latency_ps: Mapping[Direction, int],
    rails: Sequence[int],
    nic_rate: Rate,
) -> networkx.DiGraph:
    """Wiring as a graph; :attr:`hwmodel.fabric.Fabric.graph` says what nodes and edges carry.

    Parameters
    ----------
    ports
        All ports of all GPUs.
    domains
        (gpu,): NVLink domain of each GPU.
    latency_ps
        From one end of a link to the other, by direction.
    rails
        (gpu,): rail of each GPU's network card; empty where there is no network.
    nic_rate
        Rate of a network card.
    """
    import networkx

    graph = networkx.DiGraph()
    for gpu, domain in enumerate(domains):
        graph.add_node(gpu_node(gpu), kind="gpu", index=gpu, domain=domain)
    for port in ports:
        domain = domains[port.gpu]
        ends = (gpu_node(port.gpu), plane_node(domain, port.plane))
        graph.add_node(ends[1], kind="switch", index=port.plane, domain=domain)
        graph.add_edge(
            *(ends if port.direction == "uplink" else ends[::-1]),
            kind=port.direction,
            num_links=port.num_links,
            rate=port.rate,
            latency_ps=latency_ps[port.direction],
        )
    if rails:
        graph.add_node(SPINE, kind="spine")
    for gpu, rail in enumerate(rails):
        leaf, nic = leaf_node(rail), nic_node(gpu)
        graph.add_node(nic, kind="nic", index=gpu)
        graph.add_node(leaf, kind="leaf", index=rail)
        for one, other, kind, rate in (
            (gpu_node(gpu), nic, "nic", nic_rate),
            (nic, leaf, "network", nic_rate),
            (leaf, SPINE, "network", None),
        ):
            graph.add_edge(one, other, kind=kind, num_links=1, rate=rate)
            graph.add_edge(other, one, kind=kind, num_links=1, rate=rate)
    return graph
