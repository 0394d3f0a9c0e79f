"""Collectives and messages of a plan's groups, against exact replays and rates of ports."""

from __future__ import annotations

import pytest

import hwmodel
from replay.engine import GraphBuilder, schedule
from replay.model.collectives.nccl import NCCL
from replay.model.machine.kinds import DISPATCH, KIND_NAMES
from replay.model.machine.machine import Machine
from replay.steps.groups import LARGEST, GroupTimes, spread

H100 = hwmodel.load("dgx-h100")
TWO = hwmodel.load("dgx-h100-x2")
ATLAS = hwmodel.load("atlas-800t-a2")
NBYTES = 1 << 28
NIC = 50e9  # bytes per second of a 400G network card


@pytest.mark.parametrize(("system", "ranks"), [(H100, 8), (TWO, 16)])
def test_large_collectives_take_what_their_replay_takes(system: hwmodel.System, ranks: int) -> None:
    nbytes = 4 * LARGEST
    machine = Machine(system, GraphBuilder(KIND_NAMES), ranks)
    NCCL.build(machine, DISPATCH, "reduce_scatter", nbytes, machine.mark(machine.ranks))
    exact = schedule(machine.graph.build()).makespan_ps
    found = GroupTimes(system).collective_ps("reduce_scatter", nbytes, ranks)
    assert found == pytest.approx(exact, rel=0.01)


def test_members_of_other_nodes_have_their_own_network_card() -> None:
    """One GPU in each of four nodes passes three quarters of the bytes."""
    found = GroupTimes(H100).collective_ps("all_gather", NBYTES, 4, stride=8)
    assert 0.75 * NBYTES / NIC < found / 1e12 < 1.5 * 0.75 * NBYTES / NIC
    # Four in each of two nodes have four cards, which share what goes between the nodes.
    other = GroupTimes(H100).collective_ps("all_gather", NBYTES, 8, stride=2)
    assert other < found / 2


def test_neighbours_exchange_as_on_the_machine_itself() -> None:
    groups = GroupTimes(TWO)
    assert spread(TWO, 8, 1) is TWO
    assert groups.collective_ps("all_gather", 1 << 20, 4) == GroupTimes(H100).collective_ps(
        "all_gather", 1 << 20, 4
    )
    assert groups.collective_ps("all_gather", 1 << 20, 1) == 0


def test_nodes_of_a_group_are_alike() -> None:
    nodes = spread(hwmodel.load("gb200-nvl72"), 16, 8)
    assert nodes.fabric.gpus_per_domain == 8
    assert nodes.num_gpus == 16
    assert spread(ATLAS, 4, 8).fabric.gpus_per_domain == 1
    assert spread(ATLAS, 8, 4).fabric.gpus_per_domain == 2


def test_hops_take_the_rate_of_their_port() -> None:
    nbytes, groups = 4096 * 7168 * 2, GroupTimes(H100)
    far, near = (groups.hop(nbytes, 8, crosses=crosses) for crosses in (True, False))
    assert nbytes / NIC < far.duration_ps / 1e12 < 1.15 * nbytes / NIC
    assert near.duration_ps < far.duration_ps / 4
    assert 0 < near.latency_ps < far.latency_ps < 30e6


@pytest.mark.parametrize("crosses", [False, True])
def test_rate_and_latency_of_a_hop_are_its_message_told_once(crosses: bool) -> None:
    """A message that is all latency, and one of 58 MB: their difference is what a port is busy."""
    groups, nbytes = GroupTimes(H100), 4096 * 7168 * 2
    few, whole = (groups._message_ps(each, 8, crosses=crosses) for each in (256, nbytes))
    hop = groups.hop(nbytes, 8, crosses=crosses)
    assert (hop.latency_ps, hop.duration_ps) == (few, whole - few)
    assert groups.hop(256, 8, crosses=crosses).duration_ps == 0


def test_machines_without_nccl_exchange_by_engines() -> None:
    groups, link = GroupTimes(ATLAS), 28e9  # to each of the seven others
    gather = groups.collective_ps("all_gather", 1 << 26, 8)
    assert (1 << 23) / link < gather / 1e12 < 3 * (1 << 23) / link
    assert groups.collective_ps("reduce_scatter", 1 << 26, 8) > gather
    assert groups.hop(1 << 20, 8, crosses=True).duration_ps > 0
