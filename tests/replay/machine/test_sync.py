"""Waiting for one another, and times that are only handed on."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
from loops import every
from round_machine import NS, round_machine

from replay.engine import GraphBuilder, GraphError, schedule
from replay.model.arrays import Tasks
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.model.machine.notes import KernelLaunches
from replay.model.machine.times import NO_TIME, Stored, Time


def make(num_ranks: int = 4) -> Machine:
    return Machine(round_machine(), GraphBuilder(KIND_NAMES), num_ranks)


def test_a_barrier_waits_for_the_last_of_all_ranks() -> None:
    machine = make()
    late = machine.delay(Kind.BETWEEN, Time(np.array([0, 70 * NS, 3 * NS, 5 * NS])), machine.mark(machine.ranks))
    met = machine.sync.barrier(DISPATCH, late, stored="nothing")
    timeline = schedule(machine.graph.build())
    assert set(timeline.visible_ps[met].tolist()) == {70 * NS + 1000 * NS + 3 * 10 * NS}


WAY = 250 * NS  # of an acknowledgement
BEHIND = {"nothing": 0, "each": WAY, "multicast": WAY + 9 * NS, "any": 12_400 * NS}


def met_ps(num_ranks: int, stored: Stored) -> int:
    machine = make(num_ranks)
    met = machine.sync.barrier(DISPATCH, machine.mark(machine.ranks), stored=stored)
    return int(schedule(machine.graph.build()).visible_ps[met].max())


@pytest.mark.parametrize("stored", get_args(Stored))
def test_barriers_flags_and_fences_wait_alike_for_what_was_stored(stored: Stored) -> None:
    assert met_ps(4, stored) - met_ps(4, "nothing") == BEHIND[stored]
    machine = make()
    one, start = np.array([1]), machine.mark(machine.ranks)
    fenced = machine.sync.fence(DISPATCH, start, stored=stored)
    plain = machine.sync.flag(one, one + 1, 8, start[one], stored="nothing")
    behind = machine.sync.flag(one + 1, one + 2, 8, start[one], stored=stored, late=machine.costs.ns(7))
    ends = schedule(machine.graph.build()).visible_ps
    assert (ends[fenced] == BEHIND[stored]).all()
    assert ends[behind] - ends[plain] == BEHIND[stored] + 7 * NS
    assert (machine.costs.flag(stored).ps - machine.costs.flag().ps) == BEHIND[stored]


def test_a_rank_alone_waits_for_no_acknowledgement() -> None:
    assert met_ps(1, "multicast") == met_ps(1, "each") == met_ps(1, "nothing") == 0


def test_who_waits_for_whom_is_counted() -> None:
    machine = make()
    start = machine.mark(machine.ranks)
    one = np.array([1])
    machine.sync.barrier(DISPATCH, start, stored="nothing")
    machine.sync.barrier(DISPATCH, start, stored="each")
    machine.sync.flag(one, one + 1, 8, start[one], stored="any")
    machine.sync.exchange_counts(start, 8)
    assert machine.notes.meetings == {"meetings": 2, "fences": 2, "rounds of flags": 2}
    assert machine.notes.take().meetings and not machine.notes.meetings


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


def test_repeated_tasks_are_noted_as_those_of_a_loop() -> None:
    one, other = make(), make()
    at, its = one.mark(one.ranks), other.mark(other.ranks)
    begin = one.graph.position
    one.delay(DISPATCH.sync, one.costs.flag(), at)
    assert one.repeat(begin, 2) == 8
    for _ in range(3):
        its = other.delay(DISPATCH.sync, other.costs.flag(), its)
    assert one.notes.spent == other.notes.spent
    assert [task for task, _ in one.notes.places] == [task for task, _ in other.notes.places] == [0, 4, 8, 12]
    assert len(one.notes.spent) == 3


def test_nothing_is_repeated_where_nothing_was_added() -> None:
    machine = make()
    machine.mark(machine.ranks)
    assert (machine.repeat(machine.graph.position, 2), machine.graph.num_tasks) == (0, 4)


@every(
    "note",
    [
        lambda machine, at: machine.notes.follow("sent", machine.ranks, at),
        lambda machine, at: machine.notes.poll(at, at, machine.ranks),
        lambda machine, at: machine.notes.access("merged loads", machine.ranks, at),
        lambda machine, at: machine.notes.held_up.append((at, at, machine.ranks)),
        lambda machine, at: machine.notes.kernels.append(KernelLaunches(int(at[0]), at, machine.ranks)),
    ],
)
def test_tasks_with_notes_of_other_kinds_are_not_repeated(note: Callable[[Machine, Tasks], None]) -> None:
    machine = make()
    at = machine.mark(machine.ranks)
    note(machine, at)  # of tasks before the position: no harm
    begin = machine.graph.position
    at = machine.mark(machine.ranks, at)
    assert machine.repeat(begin, 1) == 4
    begin = machine.graph.position
    note(machine, machine.mark(machine.ranks, at + 4))
    with pytest.raises(GraphError, match="notes of tasks from 12 on cannot be repeated"):
        machine.repeat(begin, 1)
