"""Paths agree with the wiring that the hardware model describes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from loops import every

import hwmodel
from replay.engine import GraphBuilder
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine

TWO_NODES = hwmodel.load("dgx-h100-x2")


def test_hops_are_the_ports_of_the_route_at_their_rates() -> None:
    fabric = TWO_NODES.fabric
    for src in range(16):
        for dst in range(16):
            hops, route = fabric.hops(src, dst), fabric.route(src, dst)
            assert sum(hop.latency_ps for hop in hops) == fabric.path_latency_ps(src, dst)
            kinds = [fabric.graph[one][other] for one, other in itertools.pairwise(route)]
            if len(route) == 3:
                assert [hop.port for hop in hops] == [edge["kind"] for edge in kinds]
                planes = [fabric.route(src, dst, plane) for plane in fabric.planes]
                for place, hop in enumerate(hops):
                    edges = [fabric.graph[way[place]][way[place + 1]] for way in planes]
                    together = sum(edge["rate"].units_per_second for edge in edges)
                    assert hop.rate.units_per_second == pytest.approx(together)
            elif src != dst:
                # The GPU's way to its card, the card's to the leaf, the leaf's to the spine.
                assert [hop.port.split("-")[0] for hop in hops] == [edge["kind"] for edge in kinds]
                assert [hop.rate for hop in hops] == [edge["rate"] for edge in kinds]
                leaves = [src % 8, dst % 8] if len(route) == 7 else []
                assert [hop.index for hop in hops] == [src, src, *leaves, dst, dst]


@every(
    "changes",
    [
        {},
        {"fabric.rank_order": "round robin"},
        {"fabric.rank_order": [*range(0, 16, 2), *range(15, 0, -2)]},
        {
            "fabric.slow": [
                "nic 3 = 0.5",
                "nic 9 = 0.5",
                "leaf 1 = 0.25",
                "gpu 5 = 0.5",
                "node 1 = 0.1",
            ]
        },
        {"fabric.slow": ["nic 3 = 0", "rail 6 = 0", "nic 4 = 0.5"]},
        {"network.rails": 4, "network.domains_per_leaf": 1},
    ],
)
def test_many_messages_at_once_are_each_on_their_own_way(changes: dict[str, Any]) -> None:
    system = hwmodel.load("dgx-h100-x2", changes)
    machine = Machine(system, GraphBuilder(KIND_NAMES), 16)
    gpus = machine.domains.gpu.tolist()
    src, dst = (ends.ravel() for ends in np.meshgrid(np.arange(16), np.arange(16)))
    src, dst = src[src != dst], dst[src != dst]
    near, *far = machine.path(src, dst)
    assert near.is_nvlink and not any(path.is_nvlink for path in far)
    names = np.array(machine.graph.build().resources.names)
    for path in (near, *far):
        assert path.messages is not None
        for place, message in enumerate(path.messages.tolist()):
            hops = system.fabric.hops(*(gpus[each[message]] for each in (src, dst)))
            assert len(hops) == len(path.hops)
            for hop, one in zip(path.hops, hops, strict=True):
                # What belongs to ranks is numbered by them, what lies in the network by itself.
                of_rank = one.port.startswith(("uplink", "downlink", "pcie"))
                number = gpus.index(one.index) if of_rank else one.index
                assert names[hop.resource[place]] == f"{one.port} {number}"
                assert hop.latency_ps == one.latency_ps
                took = np.broadcast_to(hop.duration_ps(12345), len(path.messages))[place]
                assert took == one.rate.duration_ps(12345)
                ends = (src, dst)[one.port in ("downlink", "leaf-down", "nic-in", "pcie-in")]
                assert hop.rank[place] == ends[message]


def test_one_domain_is_one_path_of_all_messages() -> None:
    machine = Machine(TWO_NODES, GraphBuilder(KIND_NAMES), 8)
    (path,) = machine.path(np.array([0, 3]), np.array([3, 7]))
    assert path.messages is None
    assert list(machine.path(np.zeros(0, np.int64), np.zeros(0, np.int64))) == []
