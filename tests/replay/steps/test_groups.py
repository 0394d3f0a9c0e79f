"""Collectives and messages of a plan's groups, against exact replays and rates of ports."""

from __future__ import annotations

import numpy as np
import pytest
from machine_alone import machine_of
from packets import write_packets
from round_machine import NS, US, round_machine
from round_nodes import HOST_FLAG, NIC, STEP, WAY, two_nodes

import hwmodel
from replay.engine import schedule
from replay.model.collectives import dma
from replay.model.collectives.algorithm import Collective
from replay.model.collectives.nccl import NCCL
from replay.model.machine.kinds import DISPATCH
from replay.steps.groups import LARGEST, GroupTimes, spread

H100 = hwmodel.load("dgx-h100")
TWO = hwmodel.load("dgx-h100-x2")
ATLAS = hwmodel.load("atlas-800t-a2")
NBYTES = 1 << 28


def replayed(system: hwmodel.System, what: Collective, nbytes: int, ranks: int) -> int:
    """Time of NCCL's collective among all GPUs of a machine."""
    machine = machine_of(system, ranks)
    NCCL.build(machine, DISPATCH, what, nbytes, machine.mark(machine.ranks))
    return schedule(machine.graph.build()).makespan_ps


@pytest.mark.parametrize(("system", "ranks"), [(H100, 8), (TWO, 16)])
def test_large_collectives_take_what_their_replay_takes(system: hwmodel.System, ranks: int) -> None:
    half, most = (replayed(system, "reduce_scatter", nbytes, ranks) for nbytes in (LARGEST // 2, LARGEST))
    found = GroupTimes(system).collective_ps("reduce_scatter", 4 * LARGEST, ranks)
    assert found == most + 6 * (most - half)
    exact = replayed(system, "reduce_scatter", 4 * LARGEST, ranks)
    assert found == pytest.approx(exact, rel=0.01)


def test_members_of_other_nodes_have_their_own_network_card() -> None:
    """One GPU in each of four nodes, then four in each of two: all links of NVLink are theirs."""
    links = {"fabric.links_per_plane": [5, 4, 4, 5]}
    for size, num, stride in ((1, 4, 8), (4, 2, 2)):
        nodes = {"fabric.num_gpus": size, "fabric.num_domains": num, **links}
        alone = replayed(hwmodel.load("dgx-h100", nodes), "all_gather", NBYTES, size * num)
        found = GroupTimes(H100).collective_ps("all_gather", NBYTES, size * num, stride)
        assert found == alone


def test_neighbours_exchange_as_on_the_machine_itself() -> None:
    groups = GroupTimes(TWO)
    assert spread(TWO, 8, 1) is TWO
    assert groups.collective_ps("all_gather", 1 << 20, 4) == GroupTimes(H100).collective_ps("all_gather", 1 << 20, 4)
    assert groups.collective_ps("all_gather", 1 << 20, 1) == 0


def test_nodes_of_a_group_are_alike() -> None:
    nodes = spread(hwmodel.load("gb200-nvl72"), 16, 8)
    assert nodes.fabric.gpus_per_domain == 8
    assert nodes.num_gpus == 16
    assert spread(ATLAS, 4, 8).fabric.gpus_per_domain == 1
    assert spread(ATLAS, 8, 4).fabric.gpus_per_domain == 2


def test_neighbours_that_fill_no_nodes_are_as_many_in_each() -> None:
    """Twelve on two nodes of eight: NCCL wants six in each, engines take them as they lie."""
    links = {"fabric.links_per_plane": [5, 4, 4, 5]}
    six = hwmodel.load("dgx-h100", {"fabric.num_gpus": 6, "fabric.num_domains": 2, **links})
    found = GroupTimes(TWO).collective_ps("all_gather", NBYTES, 12)
    assert found == replayed(six, "all_gather", NBYTES, 12)
    assert spread(TWO, 16, 1) is TWO
    atlas = hwmodel.load("atlas-800t-a2-x2")
    assert spread(atlas, 12, 1) is atlas
    assert GroupTimes(atlas).collective_ps("all_gather", NBYTES, 12) > 0


COPY, PUSH, VISIBLE = 40, 10, 280 * NS  # ps a byte of one block; until a store is visible


def test_a_short_message_to_a_neighbour() -> None:
    # A block passes 100 ps a byte; the last that the sender learns is that its stores are there.
    wire = write_packets(2 * 256)
    hop = GroupTimes(round_machine()).hop(256, 8, crosses=False)
    assert hop.latency_ps == 2 * US + 256 * 100 + 2 * wire + VISIBLE + 250 * NS


def test_a_long_message_to_a_neighbour_waits_for_copies() -> None:
    # 16 channels have seven chunks of 512 KiB each, which come in four pieces; the last channel's
    # pieces are behind those of all others.
    piece = 128 << 10
    wire, told = write_packets(piece), 250 * NS + (250 + 30 + 5) * NS
    known = 4 * US + piece * PUSH + (3 * 16 + 2) * wire + VISIBLE + told
    whole = known + 15 * wire + 7 * 4 * piece * COPY
    hop = GroupTimes(round_machine()).hop(16 * 7 * 4 * piece, 8, crosses=False)
    assert hop.duration_ps + hop.latency_ps == whole


def test_messages_to_another_node_take_the_way_over_cards_and_hosts() -> None:
    groups, hosts = GroupTimes(two_nodes(4)), 2 * (HOST_FLAG + STEP) + WAY

    def first(chunk: int) -> int:
        return 4 * US + chunk * PUSH + hosts + 2 * chunk * NIC

    assert groups.hop(256, 8, crosses=True).latency_ps == first(256) + 256 * COPY
    # Two channels: a chunk of the second is behind one of the first, and copies take the longest.
    nbytes, chunk = 4096 * 7168 * 2, 128 << 10
    hop = groups.hop(nbytes, 8, crosses=True)
    whole = first(chunk) + chunk * NIC + nbytes // 2 * COPY
    assert hop.duration_ps + hop.latency_ps == whole


@pytest.mark.parametrize("crosses", [False, True])
def test_rate_and_latency_of_a_hop_are_its_message_told_once(crosses: bool) -> None:
    """A message that is all latency, and one of 58 MB: their difference is what a port is busy."""
    groups, nbytes = GroupTimes(H100), 4096 * 7168 * 2
    few, whole = (groups._message_ps(each, 8, crosses=crosses) for each in (256, nbytes))
    hop = groups.hop(nbytes, 8, crosses=crosses)
    assert (hop.latency_ps, hop.duration_ps) == (few, whole - few)
    assert groups.hop(256, 8, crosses=crosses).duration_ps == 0


def test_machines_without_nccl_exchange_by_engines() -> None:
    groups, nbytes, ranks = GroupTimes(ATLAS), 1 << 26, 8
    machine = machine_of(ATLAS, ranks)
    sizes = nbytes // ranks * (1 - np.eye(ranks, dtype=np.int64))
    begun = machine.mark(machine.ranks)
    done = dma.all_to_all(machine, DISPATCH, sizes, begun, payload=False).done
    gather = int(schedule(machine.graph.build()).visible_ps[done].max())
    assert groups.collective_ps("all_gather", nbytes, ranks) == gather
    # Vector cores add up: what came and its own part are read, and the sum is written.
    adding = int(machine.costs.stream(nbytes * 9 // 8).ps)
    assert groups.collective_ps("reduce_scatter", nbytes, ranks) == gather + adding
    assert groups.hop(1 << 20, 8, crosses=True).duration_ps > 0
