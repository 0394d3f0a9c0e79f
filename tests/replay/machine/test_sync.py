"""Waiting for one another, and times that are only handed on."""

from __future__ import annotations

import numpy as np
from round_machine import NS, round_machine

from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.times import NO_TIME, Time


def make(num_ranks: int = 4) -> Machine:
    return Machine(round_machine(), GraphBuilder(KIND_NAMES), num_ranks)


def test_a_barrier_waits_for_the_last_of_all_ranks() -> None:
    machine = make()
    late = machine.delay(Kind.BETWEEN, Time(np.array([0, 70 * NS, 3 * NS, 5 * NS])), machine.mark(machine.ranks))
    met = machine.sync.barrier(DISPATCH, late)
    timeline = schedule(machine.graph.build())
    assert set(timeline.visible_ps[met].tolist()) == {70 * NS + 1000 * NS + 3 * 10 * NS}


def test_a_barrier_behind_stores_waits_for_their_acknowledgement() -> None:
    for num_ranks, late in ((4, 250 * NS), (1, 0)):
        ends = []
        for behind_stores in (False, True):
            machine = make(num_ranks)
            start = machine.mark(machine.ranks)
            met = machine.sync.barrier(DISPATCH, start, behind_stores=behind_stores)
            ends.append(schedule(machine.graph.build()).visible_ps[met].max())
        assert ends[1] - ends[0] == late


def test_counts_reach_everybody_from_everybody() -> None:
    machine = make()
    start = machine.mark(machine.ranks)
    machine.sync.exchange_counts(start, 64)
    graph = machine.graph.build()
    up = graph.rank[graph.kind == int(Kind.COUNT_UP)]
    down = graph.rank[graph.kind == int(Kind.COUNT_DOWN)]
    assert np.bincount(up).tolist() == np.bincount(down).tolist() == [3] * 4


def test_a_rank_gathers_its_own_tasks_only() -> None:
    machine = make(2)
    start = machine.mark(machine.ranks)
    rank = np.array([0, 1, 1])
    tasks = machine.delay(Kind.BETWEEN, Time(np.array([5, 7, 9])), start[rank], rank)
    ends = machine.gather(tasks, rank, start)
    timeline = schedule(machine.graph.build())
    assert timeline.visible_ps[ends].tolist() == [5, 9]


def test_times_add_up_without_being_read() -> None:
    chosen = np.array([True, False])
    both = Time.where(chosen, Time(5), Time(np.array([1, 2]))) + Time(10)
    assert np.array_equal(both.ps, [15, 12])
    assert np.array_equal((both * np.array([2, 3])).ps, [30, 36])
    assert (Time(7) * 3).shared_by(4).ps == 6
    assert (NO_TIME + NO_TIME).ps == 0
    assert make().costs.ns(3).ps == 3 * NS
