"""Messages over full meshes and between groups of GPUs, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every

import hwmodel
from hwmodel import System
from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.engine.export.programs import SEND, make_programs
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine

# A byte takes 1 ps on a link of the mesh, and 1/7 of that on the ports of an NPU.
ROUND = {
    "link.bandwidth_GB_per_s": 1000,
    "link.efficiency": 1.0,
    "link.header_flits": 0,
    "link.sm_write_ack_flits": 0,
    "link.scatter_efficiency": 1.0,
    "link.propagation_ns": 1,
    "switch.traversal_ns": 0,
    "gpu.write_visibility_ns": 0,
}
ROW = 7 * 32_000
UP, LATENCY = ROW // 7, 2_000


def stored(system: System, src: list[int], dst: list[int]) -> tuple[TaskGraph, list[int]]:
    """Graph of messages of `ROW` bytes that leave at once, and when each arrives."""
    graph = GraphBuilder(KIND_NAMES)
    machine = Machine(system, graph, 8)
    after = machine.mark(np.array(src))
    fan_out = machine.transfers.fan_out(np.array(src), np.array(dst))
    sent = machine.transfers.store(DISPATCH, np.array(src), np.array(dst), ROW, after, fan_out=fan_out)
    built = graph.build()
    return built, schedule(built).visible_ps[sent.arrived].tolist()


def test_a_pair_has_one_link_and_others_have_theirs() -> None:
    mesh = hwmodel.load("atlas-800t-a2", ROUND)
    _, one_peer = stored(mesh, [0, 0, 0], [1, 1, 1])
    assert one_peer == [UP + n * ROW + UP + LATENCY for n in (1, 2, 3)]
    # To seven peers, the rows leave one after the other and pass seven links at once.
    _, peers = stored(mesh, [0] * 7, [*range(1, 8)])
    assert sorted(peers) == [n * UP + ROW + UP + LATENCY for n in range(1, 8)]
    # Nothing of a pair's link is another pair's, nor that of the way back.
    _, others = stored(mesh, [0, 1, 2], [1, 0, 3])
    assert others == [UP + ROW + UP + LATENCY] * 3


def test_a_switch_gives_one_peer_all_links() -> None:
    settings = {**ROUND, "fabric.num_gpus": 8}
    _, arrived = stored(hwmodel.load("cloudmatrix384", settings), [0, 0, 0], [1, 1, 1])
    assert arrived == [n * UP + UP + LATENCY for n in (1, 2, 3)]


def test_payload_is_counted_on_ports_alone() -> None:
    graph, _ = stored(hwmodel.load("atlas-800t-a2", ROUND), [0, 0, 3], [1, 2, 1])
    groups = np.array([*graph.resources.groups, ""])[graph.resource]
    for group, nbytes in (("uplink", 3 * ROW), ("downlink", 3 * ROW), ("link", 0)):
        assert graph.payload_bytes[groups == group].sum() == nbytes, group
    assert (groups[graph.kind == Kind.DISPATCH_UP] == "link").sum() == 3


@every("name", ["atlas-800t-a2", "pcie-l20", "cloudmatrix384"])
def test_other_simulators_get_the_bytes_of_the_ports(name: str) -> None:
    """From 0 to its neighbour and to a card of the other processor, and their acknowledgements."""
    system = hwmodel.load(name)
    graph, _ = stored(system, [0, 0], [1, 6])
    programs = make_programs(schedule(graph))
    sent = programs.what == SEND
    data = system.link.write_wire_bytes(ROW)
    acks = system.link.ack_wire_bytes(ROW)
    found = sorted(
        zip(*(each[sent].tolist() for each in (programs.gpu, programs.peer, programs.size_bytes)), strict=True)
    )
    assert found == [(0, 1, data), (0, 6, data), (1, 0, acks), (6, 0, acks)]


@pytest.mark.parametrize(("src", "links"), [([0, 1, 2], 1), ([0, 4, 5], 2)])
def test_all_that_goes_between_processors_shares_their_cable(src: list[int], links: int) -> None:
    """From 0, 1, 2 to the other four cards; or 0 there and 4, 5 back, on two cables."""
    settings = {**ROUND, "groups.bandwidth_GB_per_s": 1000, "groups.latency_ns": 5}
    system = hwmodel.load("pcie-l20", {**settings, "link.bandwidth_GB_per_s": 4000 / 16})
    dst = [5, 6, 7] if links == 1 else [5, 1, 2]
    graph, arrived = stored(system, src, dst)
    port, way = ROW // 4, LATENCY + 5_000
    last = 3 if links == 1 else 2
    assert max(arrived) == port + last * ROW + port + way
    assert min(arrived) == port + ROW + port + way
    assert graph.resources.groups.count("link") == 2
    _, near = stored(system, [0, 1], [1, 2])
    assert near == [2 * port + LATENCY] * 2


def test_ranks_on_other_gpus_are_in_the_groups_of_these() -> None:
    settings = {**ROUND, "groups.num_gpus": 2, "groups.latency_ns": 5, "fabric.num_gpus": 8}
    plain = hwmodel.load("cloudmatrix384", settings)
    assert [stored(plain, [0], [dst])[1][0] - 2 * UP for dst in (1, 2)] == [2_000, 7_000]
    swapped = hwmodel.load("cloudmatrix384", {**settings, "fabric.rank_order": [0, 2, 1, 3, 4, 5, 6, 7]})
    assert [stored(swapped, [0], [dst])[1][0] - 2 * UP for dst in (1, 2)] == [7_000, 2_000]
    # All at once: each has the latency of its own group.
    _, arrived = stored(swapped, [4, 5, 0], [5, 6, 1])
    assert [each - 2 * UP for each in arrived] == [2_000, 7_000, 7_000]
    _, together = stored(swapped, [0, 1, 2, 3], [1, 3, 0, 2])
    assert [each - 2 * UP for each in together] == [7_000, 2_000, 2_000, 7_000]
