"""NCCL's collectives in the switch: their formula, and sums in pieces that there is room for."""

from __future__ import annotations

import pytest
from loops import every
from machine_alone import machine_of

import hwmodel
from replay.engine import schedule
from replay.model.collectives import nvls
from replay.model.collectives.algorithm import COLLECTIVES, Collective, CollectiveCall
from replay.model.collectives.nccl import NCCL
from replay.model.machine.kinds import DISPATCH

MIB = 1 << 20


def time_ps(system: str, num_ranks: int, collective: Collective, nbytes: int) -> tuple[int, int]:
    """Time by formula, and of the replay."""
    machine = machine_of(hwmodel.load(system), num_ranks)
    [way] = nvls.ways(CollectiveCall(machine, DISPATCH, collective, nbytes))
    ends = way.build(machine.mark(machine.ranks))
    return way.estimate_ps, int(schedule(machine.graph.build()).visible_ps[ends].max())


@every("collective", COLLECTIVES)
@every("num_ranks", [3, 8])
def test_the_formula_is_the_time_of_large_buffers(collective: Collective, num_ranks: int) -> None:
    expected, found = time_ps("dgx-h100", num_ranks, collective, 256 * MIB)
    assert expected == pytest.approx(found, rel=0.02)


def test_sums_of_a_large_buffer_do_not_wait_for_one_another() -> None:
    # 64 messages a share would be of 1 MiB, of which the room of a port holds one.
    expected, found = time_ps("hgx-b200", 8, "all_reduce", 512 * MIB)
    assert expected == pytest.approx(found, rel=0.02)


@every("collective", COLLECTIVES)
def test_ranks_that_meet_behind_copies_of_the_switch_wait_for_their_fence(
    collective: Collective,
) -> None:
    # Large buffers have copies on their way beside others, which hides a part of what each is late.
    for value, nbytes in (("switch.multicast_release_ns", 4 * MIB), ("switch.multicast_ns", MIB // 16)):
        ends, formulas = [], []
        for late_ns in (0.0, 1000.0):
            machine = machine_of(hwmodel.load("dgx-h100", {value: late_ns}), 8)
            [way] = nvls.ways(CollectiveCall(machine, DISPATCH, collective, nbytes))
            last = way.build(machine.mark(machine.ranks))
            ends.append(int(schedule(machine.graph.build()).visible_ps[last].max()))
            formulas.append(way.estimate_ps)
        wanted = 0 if collective == "reduce_scatter" else 1_000_000
        assert ends[1] - ends[0] == wanted, value
        assert formulas[1] - formulas[0] == wanted, value  # by which NCCL chooses


@every(
    ("num_ranks", "nbytes", "chosen"),
    [
        # A log of NCCL on 8 H100: rings up to 1 MB, the switch from 2 MB on (nccl-tests issue 309).
        (8, MIB, "ring LL128"),
        (8, 2 * MIB, "nvls"),
        (8, 1024 * MIB, "nvls"),
        # S (1 + 1/n) in the switch, 2 S (n - 1) / n at a higher rate in a ring.
        (4, 1024 * MIB, "nvls"),
        (3, 1024 * MIB, "ring Simple"),
        (2, 1024 * MIB, "ring Simple"),
    ],
)
def test_the_switch_is_taken_for_large_sums_of_four_and_more(num_ranks: int, nbytes: int, chosen: str) -> None:
    machine = machine_of(hwmodel.load("dgx-h100"), num_ranks)
    assert NCCL.way(machine, "all_reduce", nbytes).name == chosen
