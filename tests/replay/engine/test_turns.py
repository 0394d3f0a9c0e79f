"""Round-robin: lanes that have their credits are served in turn."""

from __future__ import annotations

from typing import Literal

import pytest
from loops import every

from replay.engine import GraphBuilder, GraphError, schedule

Discipline = Literal["fifo", "voq", "turns"]


def _served(builder: GraphBuilder, lane_of: dict[int, str]) -> str:
    """Lanes in the order in which their tasks started."""
    start = schedule(builder.build()).start_ps
    return "".join(lane_of[task] for task in sorted(lane_of, key=lambda task: start[task]))


def _backlogged(discipline: Discipline, counts: dict[str, int], room: int = 100) -> str:
    """A port with tasks of several lanes, all ready at once, lane after lane by id."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline=discipline)
    lane_of = {}
    for lane, count in counts.items():
        pool = builder.credit_pool(lane, room, group="queue")
        tasks = builder.add(count, resource=port, duration_ps=10)
        builder.take(tasks, pool)
        lane_of |= dict.fromkeys(tasks.tolist(), lane)
    return _served(builder, lane_of)


def test_backlogged_lanes_are_served_in_turn_which_voq_does_not() -> None:
    counts = {"a": 4, "b": 4, "c": 2}
    assert _backlogged("voq", counts) == "aaaabbbbcc"
    assert _backlogged("turns", counts) == "abcabcabab"


@every("lanes", [1, 2, 5, 13])
def test_no_backlogged_lane_gets_two_services_more_than_another(lanes: int) -> None:
    names = "abcdefghijklm"[:lanes]
    order = _backlogged("turns", dict.fromkeys(names, 9))
    for end in range(len(order) + 1):
        counts = [order[:end].count(lane) for lane in names]
        assert max(counts) - min(counts) <= 1


def test_a_lane_never_served_comes_before_one_that_was() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    pools = [builder.credit_pool(lane, 9) for lane in "ab"]
    early = builder.add(5, resource=port, duration_ps=10)
    builder.take(early, pools[0])
    delay = builder.add_one(resource=-1, duration_ps=15)
    late = builder.add(2, resource=port, duration_ps=10, after=delay)
    builder.take(late, pools[1])
    lane_of = dict.fromkeys(early.tolist(), "a") | dict.fromkeys(late.tolist(), "b")
    assert _served(builder, lane_of) == "aababaa"


def test_priority_goes_before_turns() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    pools = [builder.credit_pool(lane, 9) for lane in "ab"]
    tasks = builder.add(8, resource=port, duration_ps=10, priority=[1, 1, 1, 1, 0, 0, 1, 1])
    builder.take(tasks, [pools[0]] * 4 + [pools[1]] * 4)
    lane_of = dict(zip(tasks.tolist(), "aaaaBBbb", strict=True))
    # Tasks of another priority are another lane: b has not been served when B has.
    assert _served(builder, lane_of) == "BBababaa"


def test_a_lane_without_credits_is_passed_over_and_next_once_it_has_them() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    slow = builder.resource("slow", "port")
    scarce, plenty = builder.credit_pool("scarce", 1), builder.credit_pool("plenty", 99)
    ahead = builder.add(2, resource=port, duration_ps=10)
    others = builder.add(9, resource=port, duration_ps=10)
    drain = builder.add(2, resource=slow, duration_ps=35, after=ahead)
    builder.take(ahead, scarce, released_by=drain)
    builder.take(others, plenty)
    lane_of = dict.fromkeys(ahead.tolist(), "a") | dict.fromkeys(others.tolist(), "b")
    # The unit of a comes back at 45; the service that began at 40 ends at 50.
    assert _served(builder, lane_of) == "abbbbabbbbb"


def test_what_a_task_takes_names_its_lane_whatever_the_order_it_was_told_in() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    a, b = builder.credit_pool("a", 99), builder.credit_pool("b", 99)
    tasks = builder.add(6, resource=port, duration_ps=10)
    builder.take(tasks[:4], [a, b, a, b])
    builder.take(tasks[:4], [b, a, b, a])
    builder.take(tasks[4:], a)
    lane_of = dict(zip(tasks.tolist(), "aaaabb", strict=True))
    assert _served(builder, lane_of) == "ababaa"


def test_between_ports_the_order_of_the_queue_decides() -> None:
    """Both ports want the one unit; that of the turn, not the one ready first, stands for its."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    other = builder.resource("other", "port")
    unit, plenty = builder.credit_pool("unit", 1), builder.credit_pool("plenty", 9)
    first = builder.add_one(resource=port, duration_ps=30)
    delays = builder.add(3, resource=-1, duration_ps=[5, 10, 20])
    again, rival, mine = builder.add(3, resource=[port, other, port], duration_ps=100, after=delays).tolist()
    gate = builder.add_one(resource=-1, duration_ps=30)
    builder.edges(gate, rival)
    builder.take([first, again], plenty)
    builder.take([rival, mine], unit)
    start = schedule(builder.build()).start_ps
    # At 30 the port's turn is that of mine, ready at 20, before the rival's, ready at 30. Lane of
    # again, ready at 5, was served at 0 and comes last.
    assert start[[first, mine, rival, again]].tolist() == [0, 30, 130, 130]


def test_an_idle_port_whose_lanes_all_wait_goes_on_when_units_come_back() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    other = builder.resource("other", "port")
    pools = [builder.credit_pool(lane, 1) for lane in "ab"]
    holders = builder.add(2, resource=other, duration_ps=[30, 40])
    waiters = builder.add(2, resource=port, duration_ps=5)
    builder.take(holders, pools)
    builder.take(waiters, pools)
    # The second holder takes its unit at 30, at the very moment that the first gives its own back;
    # until then the unit of b is free.
    assert schedule(builder.build()).start_ps.tolist() == [0, 30, 30, 0]


def test_a_port_that_loses_the_units_of_its_turn_offers_another_lane_at_once() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    thief, rival = builder.resource("thief", "port"), builder.resource("rival", "port")
    u, v = builder.credit_pool("u", 1), builder.credit_pool("v", 1)
    everywhere = [port, thief, rival]
    first = builder.add(3, resource=everywhere, duration_ps=20)
    builder.take(first[0], v)
    delays = builder.add(4, resource=-1, duration_ps=[10, 5, 7, 8])
    turn, again, steals, wants = builder.add(
        4, resource=[port, port, thief, rival], duration_ps=100, after=delays
    ).tolist()
    builder.take([turn, steals], u)
    builder.take([again, wants], v)
    start = schedule(builder.build()).start_ps
    # At 20 all three ports are free. It would be the turn of u, ready at 10; but the thief, ready
    # at 7, takes that unit, and the lane of v, ready at 5, is before the rival, ready at 8.
    assert start[[steals, again, wants, turn]].tolist() == [20, 20, 120, 120]


def test_pools_have_groups() -> None:
    builder = GraphBuilder(["x"])
    builder.credit_pool("a", 1, group="switch buffer")
    builder.credit_pool("b", 1)
    assert builder.build().pools.groups == ("switch buffer", "")


def test_an_unknown_discipline_is_refused() -> None:
    with pytest.raises(GraphError, match="'lottery'; known: fifo, voq, turns"):
        GraphBuilder(["x"]).resource(
            "port",
            "port",
            discipline="lottery",  # type: ignore[arg-type]  # what is refused
        )


def test_tasks_that_take_more_or_less_of_one_pool_are_one_lane() -> None:
    """Round-robin goes from pool to pool, not from size to size: ab ab, not a (size 1), a, b."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    pools = [builder.credit_pool(lane, 99) for lane in "ab"]
    tasks = builder.add(8, resource=port, duration_ps=10)
    builder.take(tasks, [pools[0]] * 4 + [pools[1]] * 4, units=[1, 2, 3, 4, 1, 1, 1, 1])
    lane_of = dict(zip(tasks.tolist(), "aaaabbbb", strict=True))
    assert _served(builder, lane_of) == "abababab"


def test_the_first_of_a_lane_holds_up_those_behind_it_that_want_less() -> None:
    """Of 4 units the first takes 3 until 100; the second wants 2, the third 1: both wait."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", discipline="turns")
    pool = builder.credit_pool("room", 4)
    tasks = builder.add(3, resource=port, duration_ps=10)
    drain = builder.add_one(resource=-1, duration_ps=90, after=tasks[0])
    builder.take(tasks, pool, units=[3, 2, 1], released_by=[drain, tasks[1], tasks[2]])
    assert schedule(builder.build()).start_ps[tasks].tolist() == [0, 100, 110]
