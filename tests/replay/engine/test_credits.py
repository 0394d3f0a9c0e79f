"""Credits that go back by many ways: far away, among many, each a different number of units."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from loops import every

from replay.engine import NULL_RESOURCE, EngineError, GraphBuilder, GraphError, TouchOutcome, schedule
from replay.engine.plan import make_plan


@every("others", [0, 9])
@every("steps", [0, 1, 2, 5])
def test_units_go_back_when_somebody_many_steps_later_leaves(steps: int, others: int) -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", servers=2)
    pool = builder.credit_pool("slot", 3)
    first, second = builder.add(2, resource=port, duration_ps=10)
    last = first
    for _ in range(steps):
        # Those who follow first are not those who give the units back.
        builder.add(others, resource=NULL_RESOURCE, duration_ps=1, after=np.full(others, last))
        last = builder.add_one(resource=NULL_RESOURCE, duration_ps=7, after=last)
    builder.take([first, second], pool, 2, released_by=[last, second])
    assert schedule(builder.build()).start_ps[second] == 10 + 7 * steps


@every("steps", [1, 2, 3])
def test_who_is_ahead_of_a_slow_taker_gives_back_too_early(steps: int) -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    pool = builder.credit_pool("slot", 1)
    begin = builder.add_one(resource=port, duration_ps=10)
    slow = builder.add_one(resource=NULL_RESOURCE, duration_ps=100, after=begin)
    taker = builder.add_one(resource=port, duration_ps=10, after=slow)
    giver = begin
    for _ in range(steps):
        giver = builder.add_one(resource=NULL_RESOURCE, duration_ps=5, after=giver)
    builder.take(taker, pool, released_by=giver)
    with pytest.raises(EngineError, match=rf"task {giver} .* gives back credits before task 2"):
        schedule(builder.build())


@every("discipline", ["fifo", "voq", "turns"])
def test_every_task_has_credits_and_costs_of_its_own(
    discipline: Literal["fifo", "voq", "turns"],
) -> None:
    """In two rounds; in a table of one entry, everybody of the second round misses."""
    count = 300
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", 1, discipline)
    table = builder.table("table", 1)
    number = np.arange(count)
    pools = np.array([builder.credit_pool(f"pool {i}", i + 1) for i in range(count)])
    first = builder.add(count, resource=port, duration_ps=10)
    again = builder.add(count, resource=port, duration_ps=10, after=first[-1])
    for tasks in (first, again):
        builder.take(tasks, pools, number + 1)
        builder.touch(tasks, table, number, miss_duration_ps=number, miss_latency_ps=1000 - number)
    timeline = schedule(builder.build())
    service = np.concatenate([np.full(count, 10), 10 + number])
    assert timeline.end_ps.tolist() == np.cumsum(service).tolist()
    late = timeline.visible_ps - timeline.end_ps
    assert late.tolist() == [0] * count + (1000 - number).tolist()
    assert timeline.touched[0] == TouchOutcome.NEW
    assert (timeline.touched[1:count] == TouchOutcome.NEW + TouchOutcome.EVICTED).all()
    assert (timeline.touched[count:] == TouchOutcome.MISSED + TouchOutcome.EVICTED).all()


def test_takes_from_one_pool_are_one_however_they_are_told() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", servers=9, discipline="voq")
    a, b = builder.credit_pool("a", 5), builder.credit_pool("b", 3)
    tasks = builder.add(3, resource=port, duration_ps=[10, 10, 10])
    for pool, units in ((b, 1), (a, 2), (b, 1), (a, 1)):
        builder.take(tasks[:2], pool, units)
    builder.take(tasks[2], a, 2)
    # The first holds three of ``a`` and two of ``b``: not enough is left for the second.
    assert schedule(builder.build()).start_ps.tolist() == [0, 10, 0]


def test_the_same_credits_are_taken_on_many_ports_with_many_latencies() -> None:
    ports, latencies = 40, 6
    builder = GraphBuilder(["x"])
    port = np.array([builder.resource(f"port {i}", "port") for i in range(ports)])
    pool = builder.credit_pool("slots", ports)
    each = np.tile(np.arange(latencies), ports)
    tasks = builder.add(resource=np.repeat(port, latencies), duration_ps=10, latency_ps=100 * each)
    builder.take(tasks, pool)
    timeline = schedule(builder.build())
    assert timeline.end_ps.tolist() == (10 * (each + 1)).tolist()
    assert timeline.visible_ps.tolist() == (10 * (each + 1) + 100 * each).tolist()


@every("discipline", ["fifo", "voq", "turns"])
def test_units_of_several_givers_go_back_all_at_once_when_the_last_has_left(
    discipline: Literal["fifo", "voq", "turns"],
) -> None:
    """A copy that ends at 20, one at 45, one at 30, each visible much later: room at 45."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", 1, discipline)
    exits = [builder.resource(f"exit {i}", "exit") for i in range(3)]
    pool = builder.credit_pool("room", 5)
    first, second = builder.add(2, resource=port, duration_ps=10)
    copies = builder.add(3, resource=exits, duration_ps=[10, 35, 20], latency_ps=99, after=first)
    builder.take_until_last(first, pool, 4, np.zeros(3, int), copies)
    builder.take(second, pool, 2)
    assert schedule(builder.build()).start_ps[second] == 45


def test_several_takes_with_givers_of_their_own() -> None:
    """Room for two; the third starts when the faster of the first two is out: 20, not 30."""
    builder = GraphBuilder(["x"])
    ports = [builder.resource(f"port {i}", "port") for i in range(3)]
    pool = builder.credit_pool("room", 2)
    tasks = builder.add(3, resource=ports, duration_ps=10)
    exits = builder.add(4, resource=NULL_RESOURCE, duration_ps=[20, 5, 10, 5], after=tasks[[0, 0, 1, 2]])
    builder.take_until_last(tasks, pool, 1, np.array([0, 0, 1, 2]), exits)
    assert schedule(builder.build()).start_ps[tasks].tolist() == [0, 0, 20]


def test_a_take_that_nobody_gives_back_is_refused() -> None:
    builder = GraphBuilder(["x"])
    pool = builder.credit_pool("room", 2)
    tasks = builder.add(2, resource=NULL_RESOURCE)
    with pytest.raises(GraphError, match="each of 2 takes needs a releasing task"):
        builder.take_until_last(tasks, pool, 1, np.array([0, 0]), tasks)


def test_what_several_give_back_is_held_until_the_last_of_them_in_messages_too() -> None:
    """The first giver has left, the second waits for what nobody gives back."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    pool, other = builder.credit_pool("room", 1), builder.credit_pool("other", 1)
    first = builder.add_one(resource=port)
    quick, stuck = builder.add(2, resource=NULL_RESOURCE, duration_ps=1, after=first)
    blocker = builder.add_one(resource=NULL_RESOURCE, after=stuck)
    second = builder.add_one(resource=port, after=quick)
    builder.take_until_last(first, pool, 1, np.zeros(2, int), [quick, stuck])
    builder.take([first, stuck], other, released_by=[blocker, stuck])
    builder.take(second, pool)
    with pytest.raises(EngineError, match=r"0 of 1 free, held by task 0 .* until task 1 ends"):
        schedule(builder.build())


@every("often", [1, 2, 3])
@every("units", [2, 5, 2**31 - 1, 2**40])
def test_takes_of_one_task_from_one_pool_are_added_up(often: int, units: int) -> None:
    """Whoever takes elsewhere, and however often, only its own pool and task count."""
    for capacity in (often * units, often * units - 1):
        builder = GraphBuilder(["x"])
        pool, other = builder.credit_pool("room", capacity), builder.credit_pool("other", 9)
        tasks = builder.add(4, resource=NULL_RESOURCE)
        builder.take(tasks[:3], pool, units - 1)
        builder.take(np.repeat(tasks[:1], 5), other)
        builder.take(np.repeat(tasks[3:], often), pool, units)
        if capacity == often * units:
            assert len(builder.build().takes) == 8 + often
            continue
        message = f"task 3 takes {often * units} units of credit pool 'room', which holds {capacity}$"
        with pytest.raises(GraphError, match=message):
            builder.build()


@every("between", range(6))
def test_who_follows_a_taker_closely_is_not_watched(between: int) -> None:
    """A giver that cannot be early takes neither memory nor time; what is further off may be."""
    builder = GraphBuilder(["x"])
    pool = builder.credit_pool("room", 1)
    chain = builder.add(between + 1, resource=NULL_RESOURCE, duration_ps=1)
    builder.edges(chain[:-1], chain[1:])
    builder.take(chain[0], pool, released_by=chain[-1])
    arrays = make_plan(builder.build())[0].arrays
    assert (arrays["give_indptr"].size > 1) is (between > 3)
