"""Paths agree with the wiring that the hardware model describes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import hwmodel
from replay.graph import GraphBuilder
from replay.machine.kinds import KIND_NAMES
from replay.machine.machine import Machine
from replay.machine.resources import ResourceClass

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
                assert [hop.port for hop in hops] == ["nic-out", "nic-in"]
                assert {hop.rate for hop in hops} == {kinds[0]["rate"], kinds[-1]["rate"]}
            assert [hop.gpu for hop in hops] == ([src, dst] if src != dst else [])


def test_many_messages_at_once_are_each_on_their_own_way() -> None:
    machine = Machine(TWO_NODES, GraphBuilder(KIND_NAMES), 16)
    src, dst = (ends.ravel() for ends in np.meshgrid(np.arange(16), np.arange(16)))
    src, dst = src[src != dst], dst[src != dst]
    near, far = machine.path(src, dst)
    assert near.is_nvlink and not far.is_nvlink
    classes = [[hop.of for hop in path.hops] for path in (near, far)]
    assert classes == [
        [ResourceClass.UPLINK, ResourceClass.DOWNLINK],
        [ResourceClass.NIC_OUT, ResourceClass.NIC_IN],
    ]
    for path in (near, far):
        assert path.messages is not None
        for hop_index, hop in enumerate(path.hops):
            latency = np.broadcast_to(hop.latency_ps, len(path.messages))
            for place, message in enumerate(path.messages.tolist()):
                one = TWO_NODES.fabric.hops(int(src[message]), int(dst[message]))[hop_index]
                assert (int(hop.rank[place]), int(latency[place])) == (one.gpu, one.latency_ps)


def test_one_domain_is_one_path_of_all_messages() -> None:
    machine = Machine(TWO_NODES, GraphBuilder(KIND_NAMES), 8)
    (path,) = machine.path(np.array([0, 3]), np.array([3, 7]))
    assert path.messages is None
    assert list(machine.path(np.zeros(0, np.int64), np.zeros(0, np.int64))) == []
