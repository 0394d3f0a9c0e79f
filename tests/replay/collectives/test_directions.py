"""Which direction of the links a collective fills, in rings and in the switch, and two together."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest

from replay.engine import GraphBuilder, schedule
from replay.measure.measures import measures
from replay.model.arrays import Ints
from replay.model.collectives.algorithm import Collective
from replay.model.collectives.library import find
from replay.model.machine import multimem
from replay.model.machine.kinds import COMBINE, DISPATCH, KIND_NAMES
from replay.model.machine.machine import Machine
from replay.schemes.contract.case import system_for

MIB = 1 << 20
LARGE = 256 * MIB
SLICE = 64 * 1024
UNDER_WAY = 16  # slices of each GPU


class Found(NamedTuple):
    """Time, and the share of it in which each direction of the links is busy."""

    time_us: float
    up: float
    down: float


@cache
def replayed(algorithm: str, collective: Collective) -> Found:
    """A kernel of 8 GPUs that runs alone."""
    machine = machine_of_8()
    begun = machine.mark(machine.ranks)
    ends = find(algorithm).build(machine, DISPATCH, collective, LARGE, begun, payload=True)
    return found_of(machine, ends)


def machine_of_8() -> Machine:
    return Machine(system_for(8), GraphBuilder(KIND_NAMES), 8)


def found_of(machine: Machine, ends: Ints) -> Found:
    timeline = schedule(machine.graph.build())
    found = measures(timeline.graph, ends, machine, timeline, phases_separated=False)
    used = found.utilisation
    return Found(found.makespan_us, used["uplink"].mean, used["downlink"].mean)


def test_a_gather_alone_in_the_switch_fills_one_direction_and_loses_to_a_ring() -> None:
    switch, ring = replayed("nvls", "all_gather"), replayed("ring", "all_gather")
    assert switch.down > 0.85
    assert switch.up < 0.2
    assert min(ring.up, ring.down) > 0.85
    assert switch.time_us > ring.time_us


def test_a_reduction_alone_in_the_switch_fills_the_other_and_loses_to_a_ring() -> None:
    switch, ring = replayed("nvls", "reduce_scatter"), replayed("ring", "reduce_scatter")
    assert switch.up > 0.85
    assert switch.down < 0.25  # the sums, and requests for all parts of them
    assert switch.time_us > ring.time_us


def test_an_all_reduce_in_the_switch_uses_both_and_beats_a_ring() -> None:
    """It moves 9 shares each way, where a ring moves 14."""
    switch, ring = replayed("nvls", "all_reduce"), replayed("ring", "all_reduce")
    assert min(switch.up, switch.down) > 0.8
    assert 1.3 < ring.time_us / switch.time_us < 14 / 9


@cache
def in_the_switch(*, gathers: bool, sums: bool, apart: bool = True) -> Found:
    """Multicast stores, or loads of sums, or both at once, of so many slices at a time each.

    Blocks of kernels have so much under way, and not all of a buffer. Requests and stores that have
    virtual channels of their own (`apart`) pass the answers that wait at a port.
    """
    machine = machine_of_8()
    owner = np.repeat(machine.ranks, UNDER_WAY)
    begun = machine.mark(machine.ranks)
    stored = loaded = begun
    for _ in range(LARGE // 8 // SLICE // UNDER_WAY):
        if gathers:
            spread = multimem.multicast(machine, DISPATCH, owner, SLICE, stored[owner], first=apart)
            stored = machine.gather(spread.arrived, spread.member, begun)
        if sums:
            total = multimem.reduce(machine, COMBINE, owner, SLICE, loaded[owner], requests_first=apart)
            loaded = machine.gather(total, owner, begun)
    return found_of(machine, machine.meet(np.concatenate((stored, loaded))))


def test_a_gather_and_a_reduction_together_fill_both_directions() -> None:
    """Each direction carries 9 shares at once, where in turn one of them carries 8, then 1."""
    gather = in_the_switch(gathers=True, sums=False)
    sums = in_the_switch(gathers=False, sums=True)
    both = in_the_switch(gathers=True, sums=True)
    assert max(gather.up, sums.down) < 0.25
    assert min(both.up, both.down) > 0.9
    assert both.time_us < 0.65 * (gather.time_us + sums.time_us)


def test_they_fill_less_where_answers_hold_up_stores_and_requests() -> None:
    apart, mixed = (in_the_switch(gathers=True, sums=True, apart=each) for each in (True, False))
    assert mixed.time_us > 1.1 * apart.time_us


def test_two_rings_together_take_as_long_as_one_after_the_other() -> None:
    """Each fills both directions by itself: there is nothing to gain."""
    machine = machine_of_8()
    begun = machine.mark(machine.ranks)
    ring = find("ring")
    ring.build(machine, DISPATCH, "all_gather", LARGE, begun, payload=True)
    both = found_of(machine, ring.build(machine, COMBINE, "reduce_scatter", LARGE, begun, payload=True))
    alone = replayed("ring", "all_gather"), replayed("ring", "reduce_scatter")
    assert both.time_us == pytest.approx(sum(one.time_us for one in alone), rel=0.1)
