"""Finite room: that credits hold tasks up, and that layers share what has one name."""

from __future__ import annotations

import numpy as np
from round_machine import round_machine

from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.model.machine.machine import Machine


def make(num_ranks: int = 2) -> Machine:
    return Machine(round_machine(), GraphBuilder(KIND_NAMES), num_ranks)


def test_shapes_and_identity() -> None:
    machine = make(3)
    pools = machine.buffers.pools
    assert pools("a", 5).shape == (3,)
    assert pools("a", 5, 4).shape == (3, 4)
    assert pools("a", 5) is pools("a", 5)
    assert len({*pools("a", 5).tolist(), *pools("a", 5, 4).ravel().tolist()}) == 15
    rings = machine.buffers.rings(2, 8)
    assert rings.shape == (3, 3, 2)
    assert len(np.unique(rings)) == 18
    assert machine.buffers.rings(2, 8) is rings
    assert not set(machine.buffers.rings(2, 9).ravel()) & set(rings.ravel())


def test_a_buffer_of_two_lets_two_tasks_run_at_a_time() -> None:
    machine = make(1)
    rank = np.zeros(6, np.int64)
    time = machine.costs.ns(10)
    tasks = machine.delay(Kind.LAYOUT, time, machine.mark(rank), rank)
    machine.graph.take(tasks, machine.buffers.pools("room", 2)[rank], 1, released_by=tasks)
    timeline = schedule(machine.graph.build())
    assert timeline.start_ps[tasks].tolist() == [0, 0, 10_000, 10_000, 20_000, 20_000]


def test_keys_of_layers_differ_and_tables_are_shared() -> None:
    caches = make().caches
    first, second = caches.new_keys(10), caches.new_keys(3)
    assert second == first + 10
    assert caches.tables("t", 4) is caches.tables("t", 4)
    assert not set(caches.tables("t", 4)) & set(caches.tables("t", 4, policy="fifo"))


def test_a_key_that_had_to_leave_is_fetched_again() -> None:
    machine = make(1)
    rank = np.zeros(3, np.int64)
    pool = machine.sms.pool("one at a time", 1)
    looks = machine.serve(pool[rank], machine.costs.ns(1), kind=Kind.LAYOUT, rank=rank)
    table = machine.caches.tables("t", 1)
    machine.caches.touch("t", looks, table[rank], np.array([7, 8, 7]), miss=machine.costs.memory_load())
    timeline = schedule(machine.graph.build())
    waited = timeline.visible_ps[looks] - timeline.end_ps[looks]
    assert waited.tolist() == [0, 0, 60_000]  # a load of 60 ns
