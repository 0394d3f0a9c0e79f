"""NCCL's chain within a domain, by hand on a machine of round numbers."""

from __future__ import annotations

import numpy as np
import pytest
from loops import every
from machine_alone import machine_of
from packets import write_packets
from round_machine import NS, US, round_machine

import hwmodel
from replay.engine import TaskGraph, schedule
from replay.model.collectives import tree
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.collectives.tree import TREE
from replay.model.machine.kinds import DISPATCH, Kind

UP = 150 * NS
WAY = UP + (100 + 30) * NS  # to the switch, to the neighbour, until it is visible
POLL = 5 * NS
FLAG = WAY + POLL
LL_START, SIMPLE_START = 1 * US, 8 * US
LL_PASS, COPY = 100, 40  # ps a byte of one block: 10 and 25 GB/s
KIB, MIB = 1 << 10, 1 << 20


def estimated(num_ranks: int, nbytes: int) -> dict[str, int]:
    """Estimates by way."""
    call = CollectiveCall(machine_of(round_machine(), num_ranks), DISPATCH, "all_reduce", nbytes)
    return {way.name: way.estimate_ps for way in tree.ways(call)}


def replayed(num_ranks: int, nbytes: int, *, payload: bool = False) -> tuple[TaskGraph, int]:
    """Tasks, and when the last rank is done."""
    machine = machine_of(round_machine(), num_ranks)
    begun = machine.mark(machine.ranks)
    ends = TREE.build(machine, DISPATCH, "all_reduce", nbytes, begun, payload=payload)
    timeline = schedule(machine.graph.build())
    return timeline.graph, int(timeline.visible_ps[ends].max())


@every("num_ranks", [2, 3, 5])
def test_a_short_sum_goes_up_the_chain_and_down_again(num_ranks: int) -> None:
    nbytes = 512  # of one channel
    hop = nbytes * LL_PASS + 2 * write_packets(2 * nbytes) + WAY + POLL
    expected = LL_START + 2 * (num_ranks - 1) * hop + nbytes * LL_PASS
    assert replayed(num_ranks, nbytes)[1] == expected
    assert estimated(num_ranks, nbytes)["tree LL"] == expected


def test_two_ranks_of_a_long_sum_fill_a_direction_each() -> None:
    # 24 channels x 512 KiB are a chunk; the first goes up alone, the last comes down alone.
    chunk, count = 24 * 512 * KIB, 4
    stored, piece = write_packets(chunk), write_packets(chunk // 16)
    up = count * stored + (count - 1) * UP + piece + WAY + FLAG
    down = stored + piece + WAY + FLAG
    expected = SIMPLE_START + up + down + 512 * KIB * COPY
    assert replayed(2, count * chunk)[1] == expected
    # The estimate has a port send one chunk right behind the other.
    assert estimated(2, count * chunk)["tree Simple"] == expected - (count - 1) * UP


def test_a_port_in_the_middle_has_every_chunk_twice_in_the_estimate() -> None:
    chunk, count, n = 24 * 512 * KIB, 3, 4
    stored, piece = write_packets(chunk), write_packets(chunk // 16)
    hop = stored + piece + WAY + FLAG
    expected = SIMPLE_START + 2 * (n - 1) * hop + (count - 1) * 2 * stored + 512 * KIB * COPY
    assert estimated(n, count * chunk)["tree Simple"] == expected


def test_ranks_in_the_middle_have_the_buffer_twice_in_each_direction() -> None:
    nbytes, n = 24 * MIB + 7, 5
    graph, _ = replayed(n, nbytes, payload=True)
    for kind in (Kind.DISPATCH_UP, Kind.DISPATCH_DOWN):
        chosen = graph.kind == kind
        carried = np.bincount(graph.rank[chosen], graph.payload_bytes[chosen])
        assert carried.tolist() == [nbytes, *[2 * nbytes] * (n - 2), nbytes]


def test_chunks_of_ll128_are_halved_until_there_are_enough() -> None:
    machine = machine_of(hwmodel.load("dgx-h100"), 8)
    ll128, simple = machine.system.nccl.ll128, machine.system.nccl.simple
    channels = 24
    # 4800 KiB / 8 with flags: enough; halved once, to 14.4 and more; down to 32 KiB at most.
    for nbytes, with_flags in ((1 << 30, 600), (128 * MIB, 300), (MIB, 18.75)):
        least = 15 / 16 * with_flags * KIB * channels
        expected = -(-nbytes // int(least))
        assert len(tree._chunks(machine, nbytes, ll128, channels)) == expected
    assert len(tree._chunks(machine, MIB, simple, channels)) == 1


def test_few_blocks_store_with_half_of_their_warps_each_way() -> None:
    # One block stores 100 GB/s, 50 of them up; the link takes 1000.
    machine = machine_of(round_machine(), 2)
    nbytes = 512 * KIB
    begun = machine.mark(machine.ranks)
    ends = TREE.build(machine, DISPATCH, "all_reduce", nbytes, begun, blocks=1)
    took = int(schedule(machine.graph.build()).visible_ps[ends].max())
    piece = write_packets(nbytes // 16)
    hop = nbytes * 20 + 2 * piece + WAY + FLAG
    assert took == SIMPLE_START + 2 * hop + nbytes * COPY


@every("nbytes", [4 * KIB, MIB, 64 * MIB, 512 * MIB])
@every("num_ranks", [2, 8])
def test_the_estimate_is_near_the_time_on_idle_ports(nbytes: int, num_ranks: int) -> None:
    machine = machine_of(hwmodel.load("dgx-h100"), num_ranks)
    ways = tree.ways(CollectiveCall(machine, DISPATCH, "all_reduce", nbytes))
    for way in ways:
        alone = machine_of(hwmodel.load("dgx-h100"), num_ranks)
        again = {each.name: each for each in tree.ways(CollectiveCall(alone, DISPATCH, "all_reduce", nbytes))}
        ends = again[way.name].build(alone.mark(alone.ranks))
        took = schedule(alone.graph.build()).visible_ps[ends].max()
        assert way.estimate_ps == pytest.approx(took, rel=0.16)
