"""A fabric as a graph: names of its nodes, and the wires between them."""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import networkx

    from hwmodel.network import Network
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
    """Name of the network card beside a GPU."""
    return f"nic{gpu}"


def leaf_node(leaf: int) -> str:
    """Name of a leaf switch of the network."""
    return f"leaf{leaf}"


def wiring(
    ports: Iterable[Port],
    domains: Sequence[int],
    latency_ps: Mapping[Direction, int],
    network: Network | None,
    pair_rate: Rate | None = None,
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
    network
        What joins the domains; None where there is one.
    pair_rate
        Wire bytes per second between two GPUs of a domain; None where there are switches.
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
    if pair_rate is not None:
        for src, dst in permutations(range(len(domains)), 2):
            if domains[src] == domains[dst]:
                graph.add_edge(
                    gpu_node(src),
                    gpu_node(dst),
                    kind="link",
                    num_links=1,
                    rate=pair_rate,
                    latency_ps=sum(latency_ps.values()),
                )
    if network is not None:
        graph.add_node(SPINE, kind="spine")
        for gpu in range(len(domains)):
            _add_ways(graph, network, gpu)
    return graph


def _add_ways(graph: networkx.DiGraph, network: Network, gpu: int) -> None:
    """Add the ways from a GPU to its card, from there to its leaf, and on to the spine."""
    nic = network.nic_of(gpu)
    leaf = network.leaf(nic)
    graph.add_node(nic_node(nic), kind="nic", index=nic)
    graph.add_node(leaf_node(leaf), kind="leaf", index=leaf)
    nic_rate = network.nic.times(network.nic_factors[nic])
    ways = [
        (gpu_node(gpu), nic_node(nic), "pcie", network.pcie),
        (nic_node(nic), leaf_node(leaf), "nic", nic_rate),
    ]
    if network.leaf_factors[leaf]:
        rate = network.uplinks.times(network.leaf_factors[leaf])
        ways.append((leaf_node(leaf), SPINE, "leaf", rate))
    for one, other, kind, rate in ways:
        graph.add_edge(one, other, kind=kind, num_links=1, rate=rate)
        graph.add_edge(other, one, kind=kind, num_links=1, rate=rate)
