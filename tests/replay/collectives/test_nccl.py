"""NCCL's rings on a machine of round numbers, and which protocol a size gets."""

from __future__ import annotations

import pytest
from loops import every
from machine_alone import machine_of
from packets import write_packets
from round_machine import NS, US, round_machine

import hwmodel
from replay.engine import schedule
from replay.model.collectives import nccl
from replay.model.collectives.algorithm import CollectiveCall
from replay.model.collectives.nccl import NCCL
from replay.model.machine.kinds import DISPATCH, Kind

WAY = (150 + 100 + 30) * NS  # to the switch, to the target, until it is visible
POLL = 5 * NS
FLAG = WAY + POLL
LL_START, SIMPLE_START = 1 * US, 8 * US
LL_PASS, COPY = 100, 40  # ps a byte of one block: 10 and 25 GB/s
KIB, MIB = 1 << 10, 1 << 20


def time_ps(collective: nccl.Collective, nbytes: int, num_ranks: int) -> int:
    machine = machine_of(round_machine(), num_ranks)
    ends = NCCL.build(machine, DISPATCH, collective, nbytes, machine.mark(machine.ranks))
    return int(schedule(machine.graph.build()).visible_ps[ends].max())


@every("num_ranks", [2, 4])
@every(("collective", "rounds"), [("all_gather", 1), ("reduce_scatter", 1), ("all_reduce", 2)])
def test_a_short_ring_takes_its_steps_one_after_the_other(
    collective: nccl.Collective, rounds: int, num_ranks: int
) -> None:
    part = 512  # of one channel
    wire = write_packets(2 * part)  # a flag beside every four bytes
    step = part * LL_PASS + 2 * wire + WAY + POLL
    expected = LL_START + rounds * (num_ranks - 1) * step + part * LL_PASS
    assert time_ps(collective, part * num_ranks, num_ranks) == expected


def test_a_long_ring_goes_in_chunks_of_two_mebibytes_a_channel() -> None:
    # 24 channels, of which each takes two loops.
    loop = 24 * 2 * MIB
    piece = write_packets(512 * KIB)
    copied = 2 * MIB * COPY
    expected = SIMPLE_START + 2 * ((loop // (512 * KIB) + 1) * piece + WAY + FLAG + copied)
    assert time_ps("all_gather", 2 * 2 * loop, 2) == expected


@every(
    ("collective", "num_ranks", "nbytes", "chosen"),
    [
        ("all_gather", 8, 16 * KIB, "ring LL"),
        ("all_gather", 8, 2 * MIB, "ring LL128"),
        ("all_gather", 8, 64 * MIB, "ring Simple"),
        ("all_reduce", 2, 64 * MIB, "ring Simple"),
        ("all_reduce", 8, 64 * MIB, "nvls"),
    ],
)
def test_the_protocol_follows_the_size(collective: nccl.Collective, num_ranks: int, nbytes: int, chosen: str) -> None:
    machine = machine_of(hwmodel.load("dgx-h100"), num_ranks)
    assert NCCL.way(machine, collective, nbytes).name == chosen


@every("nbytes", [4 * KIB, 512 * KIB, 32 * MIB])
def test_the_estimate_of_a_ring_is_its_time_on_idle_ports(nbytes: int) -> None:
    for index in range(3):
        machine = machine_of(hwmodel.load("dgx-h100"), 4)
        way = nccl.ways(CollectiveCall(machine, DISPATCH, "all_gather", nbytes))[index]
        ends = way.build(machine.mark(machine.ranks))
        took = schedule(machine.graph.build()).visible_ps[ends].max()
        assert way.estimate_ps == pytest.approx(took, rel=0.03)  # acknowledgements take room


def test_no_switch_no_reduction_in_it() -> None:
    machine = machine_of(hwmodel.load("dgx-a100"), 8)
    names = [way.name for way in nccl.ways(CollectiveCall(machine, DISPATCH, "all_reduce", 1 * MIB))]
    assert names == ["ring LL", "ring LL128", "ring Simple"]


def test_bytes_that_are_no_rows_are_no_payload() -> None:
    machine = machine_of(round_machine(), 4)
    NCCL.build(machine, DISPATCH, "all_gather", 4 * KIB, machine.mark(machine.ranks))
    graph = machine.graph.build()
    assert not graph.payload_bytes.any()
    assert (graph.wire_bytes[graph.kind == Kind.DISPATCH_UP] > 0).all()
