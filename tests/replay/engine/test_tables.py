"""Tables: who is found, who leaves, and what that costs whom."""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

from replay.engine import (
    NULL_RESOURCE,
    EngineError,
    GraphBuilder,
    GraphError,
    TaskGraph,
    Timeline,
    TouchOutcome,
    critical_path,
    least_work_ps,
    longest_chain_ps,
    schedule,
)
from replay.engine.export.chrome import write_chrome
from replay.engine.export.networkx_ import to_networkx
from replay.engine.export.programs import DELAY, make_programs

HIT, NEW, MISSED = TouchOutcome.HIT, TouchOutcome.NEW, TouchOutcome.MISSED
NEW_EVICTED, MISSED_EVICTED = NEW + TouchOutcome.EVICTED, MISSED + TouchOutcome.EVICTED


def _busiest_ps(graph: TaskGraph) -> dict[str, int]:
    """Time that the resource of each group needs at least; here a group has one."""
    least = -(-least_work_ps(graph) // graph.resources.servers)
    return dict(zip(graph.resources.groups, least.tolist(), strict=True))


def _in_turn(keys: list[int], entries: int, policy: str = "lru", patience_ps: int = 0, **costs: Any) -> Timeline:
    """One port serves a task of 10 ps a key, one after the other."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    table = builder.table("table", entries, policy=policy, patience_ps=patience_ps)
    tasks = builder.add(len(keys), resource=port, duration_ps=10)
    builder.touch(tasks, table, keys, **costs)
    return schedule(builder.build())


@every("policy", ["lru", "fifo"])
@every("entries", [1, 2, 7])
def test_one_key_too_many_in_a_circle_never_hits(policy: str, entries: int) -> None:
    keys = list(range(entries + 1)) * 5
    found = _in_turn(keys, entries, policy).touched
    assert found[:entries].tolist() == [NEW] * entries
    assert found[entries] == NEW_EVICTED
    assert (found[entries + 1 :] == MISSED_EVICTED).all()


@pytest.mark.parametrize("policy", ["lru", "fifo"])
def test_as_many_keys_as_entries_always_hit_after_the_first_pass(policy: str) -> None:
    found = _in_turn(list(range(7)) * 5, 7, policy).touched
    assert found.tolist() == [NEW] * 7 + [HIT] * 28


def test_fifo_lets_go_what_lru_keeps() -> None:
    keys = [1, 2, 3, 1, 4, 1]
    # The fourth touch makes 1 the most recently used, but not the last inserted.
    common = [NEW, NEW, NEW, HIT, NEW_EVICTED]
    assert _in_turn(keys, 3, "lru").touched.tolist() == [*common, HIT]
    assert _in_turn(keys, 3, "fifo").touched.tolist() == [*common, MISSED_EVICTED]


@settings(max_examples=60)
@given(
    keys=st.lists(st.integers(0, 8), min_size=1, max_size=60),
    entries=st.integers(1, 6),
    is_lru=st.booleans(),
    spread=st.sampled_from([1, 2**58]),
)
def test_equals_an_ordered_dictionary(keys: list[int], entries: int, is_lru: bool, spread: int) -> None:
    """The reference of every textbook; the port is in service longer for what it finds."""
    held: OrderedDict[int, None] = OrderedDict()
    seen: set[int] = set()
    expected, now, ends = [], 0, []
    for key in keys:
        now += 10
        if key in held:
            expected.append(int(HIT))
            if is_lru:
                held.move_to_end(key)
        else:
            expected.append(int(MISSED if key in seen else NEW))
            now += 7 * (key in seen)
            if len(held) == entries:
                held.popitem(last=False)
                expected[-1] += int(TouchOutcome.EVICTED)
                now += 3
            held[key] = None
            seen.add(key)
        ends.append(now)
    sparse = [key * spread for key in keys]
    policy = "lru" if is_lru else "fifo"
    timeline = _in_turn(sparse, entries, policy, miss_duration_ps=7, evict_duration_ps=3)
    assert timeline.touched.tolist() == expected
    assert timeline.end_ps.tolist() == ends
    assert timeline.extra_service_ps.sum() == now - 10 * len(keys)
    assert timeline.busy_ps().tolist() == [now]


def test_only_what_was_evicted_is_missed_and_only_a_miss_costs() -> None:
    timeline = _in_turn([5, 6, 5], 1, miss_latency_ps=100, miss_duration_ps=4)
    assert timeline.touched.tolist() == [NEW, NEW_EVICTED, MISSED_EVICTED]
    assert timeline.end_ps.tolist() == [10, 20, 34]
    assert timeline.visible_ps.tolist() == [10, 20, 134]
    assert timeline.makespan_ps == 134


def test_patience_holds_up_whoever_inserts_until_the_entry_may_go() -> None:
    # Touched at 0 and kept until 25: the next one starts at 10, the third at 35.
    timeline = _in_turn([1, 2, 3], 1, patience_ps=25)
    assert timeline.start_ps.tolist() == [0, 10, 35]
    assert timeline.end_ps.tolist() == [10, 35, 45]


@pytest.mark.parametrize(("policy", "extra"), [("lru", 15), ("fifo", 5)])
def test_patience_counts_from_the_last_touch_or_from_the_insertion(policy: str, extra: int) -> None:
    # Inserted at 0, hit at 10, to leave at 20: after 25 more picoseconds from then.
    timeline = _in_turn([1, 1, 2], 1, policy, patience_ps=25)
    assert timeline.extra_service_ps.tolist() == [0, 0, extra]


def test_a_dropped_key_is_forgotten_and_makes_room() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    table = builder.table("table", 1)
    tasks = builder.add(8, resource=port, duration_ps=10)
    keys = [1, 1, 2, 1, 2, 1, 1, 2]
    drops = np.array([False, True, False, False, True, True, True, False])
    builder.touch(tasks, table, keys, miss_duration_ps=5, drops=drops)
    timeline = schedule(builder.build())
    assert timeline.touched.tolist() == [
        NEW,  # 1 is in
        HIT,  # and out again
        NEW,  # so 2 finds room,
        NEW_EVICTED,  # 1 is no miss, but sends 2 away
        MISSED,  # 2 was evicted; it only forgets, and takes no entry
        HIT,  # so 1 is still there
        NEW,  # and now is not; nothing is inserted
        NEW,  # 2 was forgotten, and there is room
    ]
    assert timeline.extra_service_ps.tolist() == [0, 0, 0, 0, 5, 0, 0, 0]


def test_whoever_is_charged_pays_for_the_eviction() -> None:
    builder = GraphBuilder(["x"])
    up, down = builder.resource("up", "port"), builder.resource("down", "port")
    table = builder.table("table", 1)
    tasks = builder.add(2, resource=up, duration_ps=10)
    flush = builder.add_one(resource=down, duration_ps=1, after=tasks[1])
    builder.touch(tasks, table, [1, 2], evict_duration_ps=50, charged=flush)
    builder.touch(tasks[1], table, 3, evict_duration_ps=50, charged=flush)
    timeline = schedule(builder.build())
    assert timeline.end_ps.tolist() == [10, 20, 121]
    assert timeline.busy_ps().tolist() == [20, 101]


def test_charging_who_has_started_already_is_an_error() -> None:
    builder = GraphBuilder(["x"])
    up, down = builder.resource("up", "port"), builder.resource("down", "port")
    table = builder.table("table", 1)
    tasks = builder.add(2, resource=up, duration_ps=10)
    flush = builder.add_one(resource=down, duration_ps=1)
    builder.touch(tasks, table, [1, 2], evict_duration_ps=50, charged=flush)
    message = r"task 1 \(x on up\) evicts at the cost of task 2 \(x on down\), which has started"
    with pytest.raises(EngineError, match=message):
        schedule(builder.build())


def test_a_hit_overtakes_a_miss_on_the_way_but_not_in_the_queue() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    table = builder.table("table", 1)
    tasks = builder.add(4, resource=port, duration_ps=10, latency_ps=5)
    builder.touch(tasks, table, [1, 2, 1, 1], miss_latency_ps=1000)
    after = builder.add(4, resource=NULL_RESOURCE, after=tasks)
    timeline = schedule(builder.build())
    assert timeline.end_ps[tasks].tolist() == [10, 20, 30, 40]
    assert timeline.start_ps[after].tolist() == [15, 25, 1035, 45]
    assert timeline.extra_latency_ps[tasks].tolist() == [0, 0, 1000, 0]


@pytest.mark.parametrize("first", [0, 1])
def test_touches_of_one_instant_follow_the_order_of_starts(first: int) -> None:
    """Two ports start at once: the task of the smaller priority finds the last entry."""
    builder = GraphBuilder(["x"])
    ports = [builder.resource(f"port{index}", "port") for index in range(2)]
    table = builder.table("table", 1)
    tasks = builder.add(2, resource=ports, duration_ps=10, priority=[first, 1 - first])
    builder.touch(tasks, table, [1, 2])
    assert schedule(builder.build()).touched.tolist() == ([NEW_EVICTED, NEW] if first else [NEW, NEW_EVICTED])


def test_touches_of_one_task_happen_in_the_order_they_were_added() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    table = builder.table("table", 1)
    task = builder.add_one(resource=port, duration_ps=10)
    for key in (4, 3, 3, 4):
        builder.touch(task, table, key, miss_duration_ps=1, evict_duration_ps=10)
    timeline = schedule(builder.build())
    assert timeline.touched.tolist() == [NEW, NEW_EVICTED, HIT, MISSED_EVICTED]
    assert timeline.extra_service_ps.tolist() == [21]


@pytest.mark.parametrize("key", [7, 2**63 - 1])
def test_tables_do_not_share_their_keys(key: int) -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    tables = [builder.table(f"t{index}", 1, group="tlb") for index in range(2)]
    tasks = builder.add(4, resource=port, duration_ps=10)
    builder.touch(tasks, [tables[0], tables[1], tables[0], tables[1]], key)
    graph = builder.build()
    assert schedule(graph).touched.tolist() == [NEW, NEW, HIT, HIT]
    assert (graph.tables.names, graph.tables.groups) == (("t0", "t1"), ("tlb", "tlb"))


def test_what_touches_add_is_seen_by_all_who_read_the_schedule(tmp_path: Path) -> None:
    builder = GraphBuilder(["x", "y"])
    port = builder.resource("port", "port", owner=0)
    table = builder.table("table", 1)
    tasks = builder.add(3, resource=port, duration_ps=10, latency_ps=2, rank=0)
    builder.touch(tasks, table, [1, 2, 1], miss_duration_ps=30, miss_latency_ps=500)
    last = builder.add_one(resource=port, duration_ps=1, kind=1, rank=0, after=tasks[2])
    graph = builder.build()
    timeline = schedule(graph)
    assert timeline.end_ps.tolist() == [10, 20, 60, 563]
    assert timeline.service_ps.tolist() == [10, 10, 40, 1]
    assert timeline.busy_ps().tolist() == [61]
    assert timeline.visible_ps[:3].max() == 562
    path = critical_path(timeline)
    assert path.task.tolist() == [2, last]
    assert path.by_cause() == {"service": 41, "queueing": 20, "latency": 502, "credits": 0}
    # A bound may not count on evictions: it knows the graph's own times only.
    assert (longest_chain_ps(graph), _busiest_ps(graph)) == (13, {"port": 31})
    assert to_networkx(timeline).nodes[2]["visible_ps"] == 562
    write_chrome(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ports = [event["args"] for event in events if event.get("cat") == "port"]
    inside = [one for args in ports for one in (args, *args.get("with", []))]
    late = next(args for args in inside if args["task"] == 2)
    assert (late["dur_ps"], late["latency_us"]) == (40, 0.000502)
    programs = make_programs(timeline, "schedule")
    assert (programs.end_ps - programs.start_ps)[programs.what == DELAY].max() == 502


def test_a_service_without_duration_that_a_touch_lengthens_is_waited_for() -> None:
    builder = GraphBuilder(["tail", "x"])
    port = builder.resource("port", "port")
    table = builder.table("table", 1)
    tasks = builder.add(3, resource=port)
    builder.touch(tasks, table, [1, 2, 1], miss_duration_ps=30)
    builder.add_one(resource=port, duration_ps=5, kind=1)
    path = critical_path(schedule(builder.build()))
    assert path.by_cause() == {"service": 5, "queueing": 30, "latency": 0, "credits": 0}
    assert path.behind_ps == {"tail": 30}


def _refused(**given: Any) -> Any:
    """Arguments of a touch: one changed."""
    return {"tasks": 1, "table": 0, "key": 3, **given}


@every("drops", [True, [True, True], [1, 1], np.array([1, 1]), np.array([True, False, True])[::2]])
def test_keys_are_dropped_however_that_is_said(drops: Any) -> None:
    builder = GraphBuilder(["x"])
    table = builder.table("table", 1)
    tasks = builder.add(2, resource=builder.resource("port", "port"), duration_ps=10)
    builder.touch(tasks, table, 1, drops=drops)
    touches = builder.build().touches
    assert (touches.drops.tolist(), touches.drops.dtype) == ([True, True], np.bool_)


@every(
    ("given", "message"),
    [
        (_refused(drops=[256, 1]), "drops of touch 0 is 256; possible: 0 to 1"),
        (_refused(drops=np.array([1, 256])), "drops of touch 1 is 256; possible: 0 to 1"),
        (_refused(drops=2), "drops of touch 0 is 2"),
        (_refused(drops=np.array([0.5])), "drops must be whole numbers"),
        (_refused(tasks=0), r"touch 0: task task 0 \(x on \(delay\)\) is a pure delay"),
        (_refused(charged=0), r"touch 0: charged task task 0 .* is a pure delay"),
        (_refused(tasks=9), "touch 0: task 9 does not exist; there are 2"),
        (_refused(charged=9), "touch 0: charged task 9 does not exist; there are 2"),
        (_refused(table=1), "table of touch 0 is 1; possible: 0 to 0"),
        (_refused(key=[3, -1]), "key of touch 1 is -1"),
        (_refused(miss_latency_ps=-1), "miss_latency_ps of touch 0 is -1"),
        (_refused(evict_duration_ps=2**60), "evict_duration_ps of touch 0"),
        (_refused(tasks=[1, 1], key=[1, 2, 3]), "different lengths"),
    ],
)
def test_touches_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    builder.table("table", 1)
    builder.add(resource=[NULL_RESOURCE, port])
    with pytest.raises(GraphError, match=message):
        builder.touch(**given)
        builder.build()


@every(
    ("given", "message"),
    [
        ({"entries": 0}, "table 't' has 0 entries"),
        ({"entries": 1, "policy": "random"}, "unknown policy of table 't': 'random'; known: lru"),
        ({"entries": 1, "patience_ps": -1}, "patience_ps -1"),
    ],
)
def test_tables_that_cannot_be_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GraphError, match=message):
        GraphBuilder(["x"]).table("t", **given)


def test_costs_longer_than_the_clock_are_refused() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    table = builder.table("table", 1)
    task = builder.add_one(resource=port)
    builder.touch([task] * 40, table, list(range(40)), evict_duration_ps=2**58)
    with pytest.raises(EngineError, match="longer than"):
        schedule(builder.build())


# --- Tables that draw from lines ------------------------------------------------------------------


def _cached(keys: list[int], *, servers: int = 1, room: int = 2, **touch: Any) -> Timeline:
    """SMs multiply for 10 ps a tile; a tile reads one block through a cache of two blocks.

    A block that is not there takes 7 ps of the memory, and what comes from it is worked on for 2.
    """
    builder = GraphBuilder(["x"])
    sm = builder.resource("sm", "sm", servers=servers)
    memory = builder.resource("memory", "memory", discipline="line")
    port = builder.resource("port", "port", discipline="line")
    cache = builder.table("cache", room, backing=memory, port=port)
    tiles = builder.add(len(keys), resource=sm, duration_ps=10)
    builder.touch(tiles, cache, keys, **{"miss_duration_ps": 7, "lag_ps": 2, **touch})
    return schedule(builder.build())


def _outcomes(timeline: Timeline) -> list[int]:
    return [value & TouchOutcome.OUTCOME for value in timeline.touched.tolist()]


def test_what_is_not_there_comes_from_memory_and_holds_the_sm_if_it_takes_longer() -> None:
    hidden = _cached([1, 2, 3, 1])
    assert hidden.touched.tolist() == [NEW, NEW, NEW_EVICTED, MISSED_EVICTED]
    assert hidden.end_ps.tolist() == [10, 20, 30, 40]  # 7 + 2 comes before 10
    assert hidden.busy_ps().tolist() == [40, 28, 0]
    exposed = _cached([1, 2, 3, 1], miss_duration_ps=15)
    assert exposed.end_ps.tolist() == [17, 34, 51, 68]
    assert exposed.busy_ps().tolist() == [68, 60, 0]


def test_what_tiles_ask_for_at_once_queues_at_one_memory() -> None:
    timeline = _cached([1, 2, 3, 1, 2], servers=3, room=3, miss_duration_ps=15)
    assert timeline.end_ps.tolist() == [17, 32, 47, 27, 37]  # the last two find theirs
    assert timeline.busy_ps()[1] == 45


def test_tiles_that_run_together_read_a_block_once_even_if_it_had_to_leave() -> None:
    # A cache of one block, and tiles that want blocks 1 and 2 in turn.
    together = _cached([1, 2, 1, 2, 1, 2], servers=6, room=1)
    assert _outcomes(together) == [NEW, NEW, HIT, HIT, HIT, HIT]
    assert together.busy_ps()[1] == 14
    apart = _cached([1, 2, 1, 2, 1, 2], servers=1, room=1)
    assert _outcomes(apart) == [NEW, NEW, MISSED, MISSED, MISSED, MISSED]
    assert apart.busy_ps()[1] == 42


def test_whoever_finds_a_block_on_its_way_waits_for_it() -> None:
    timeline = _cached([1, 1, 1], servers=2, miss_duration_ps=50)
    assert timeline.start_ps.tolist() == [0, 0, 52]
    assert timeline.end_ps.tolist() == [52, 52, 62]
    assert timeline.busy_ps()[1] == 50


def test_a_block_that_is_written_is_not_asked_for() -> None:
    timeline = _cached([1, 1, 2], servers=1, miss_duration_ps=[0, 50, 50])
    assert timeline.end_ps.tolist() == [10, 20, 72]
    assert _busiest_ps(timeline.graph)["memory"] == 50


def test_every_touch_passes_the_port() -> None:
    timeline = _cached([1, 1, 1, 1], servers=4, port_duration_ps=6)
    # Served after 6, 12, 18 and 24, behind which there is no lag; the first still multiplies then.
    assert timeline.end_ps.tolist() == [10, 12, 18, 24]
    assert timeline.busy_ps().tolist() == [10 + 12 + 18 + 24, 7, 24]
    assert _busiest_ps(timeline.graph) == {"sm": 10, "memory": 7, "port": 24}


def test_keys_take_room_by_their_units() -> None:
    sizes = [3, 1, 1, 3]
    timeline = _cached([1, 2, 3, 1], room=4, units=sizes)
    # 1 and 2 fill the cache; 3 sends away 1, and for 1 both others must leave.
    assert timeline.touched.tolist() == [NEW, NEW, NEW_EVICTED, MISSED_EVICTED]
    fits = _cached([1, 2, 3, 1], room=5, units=sizes)
    assert fits.touched.tolist() == [NEW, NEW, NEW, HIT]
    assert _busiest_ps(timeline.graph)["memory"] == 21
    with pytest.raises(GraphError, match="key 2 takes 3 units of table 'cache', which has room for"):
        _cached([1, 2], units=[1, 3])


def test_what_is_drawn_keeps_tasks_of_the_line_waiting_and_the_path_says_so() -> None:
    def copied_after(delay_ps: int) -> Timeline:
        """Three tiles, of which the last asks for a block, and a copy that waits for the second."""
        builder = GraphBuilder(["tile", "copy", "delay"])
        sm = builder.resource("sm", "sm")
        memory = builder.resource("memory", "memory", discipline="line")
        cache = builder.table("cache", 1, backing=memory)
        tiles = builder.add(3, resource=sm, duration_ps=10)
        builder.touch(tiles[2], cache, 1, miss_duration_ps=100)
        later = builder.add(1, resource=NULL_RESOURCE, latency_ps=delay_ps, kind=2, after=tiles[1:2])
        builder.add(1, resource=memory, duration_ps=5, kind=1, after=later)
        return schedule(builder.build())

    # The copy that is ready when the third tile starts comes before what that draws.
    assert copied_after(0).end_ps.tolist() == [10, 20, 125, 20, 25]
    timeline = copied_after(1)
    assert (timeline.start_ps[-1], timeline.end_ps[2]) == (120, 120)
    path = critical_path(timeline)
    assert path.by_cause() == {"service": 15, "queueing": 109, "latency": 1, "credits": 0}
    assert path.behind_ps == {"tile": 10, "(drawn)": 99}


@every(
    ("what", "message"),
    [
        (lambda b, line: b.take(0, b.credit_pool("p", 1)), "takes credits, which a task of a line"),
        (lambda b, line: b.take(1, b.credit_pool("p", 1), released_by=0), "gives credits back"),
        (lambda b, line: b.touch(0, b.table("t", 1), 1), "touches a table"),
        (lambda b, line: b.touch(1, b.table("t", 1), 1, charged=0), "pays for evictions"),
        (lambda b, line: b.add(resource=line, priority=3), "has a priority of its own"),
    ],
)
def test_tasks_of_a_line_only_queue(what: Any, message: str) -> None:
    builder = GraphBuilder(["x"])
    line = builder.resource("line", "line", discipline="line")
    port = builder.resource("port", "port")
    builder.add(resource=[line, port])
    what(builder, line)
    with pytest.raises(GraphError, match=message):
        builder.build()


def test_only_lines_are_drawn_from() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    line = builder.resource("line", "line", discipline="line")
    with pytest.raises(GraphError, match="table 't' draws from resource 0, which is no line"):
        builder.table("t", 1, port=port)
    with pytest.raises(GraphError, match="draws from resource 7, which is no line"):
        builder.table("t", 1, backing=7)
    with pytest.raises(GraphError, match="has patience and a backing"):
        builder.table("t", 1, backing=line, patience_ps=1)
    with pytest.raises(GraphError, match="has 2 servers; a line has one"):
        builder.resource("line", "line", servers=2, discipline="line")


@pytest.mark.parametrize("spread", [1, 1_000_003])
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 9)), min_size=1, max_size=12))
def test_a_backing_brings_each_key_in_once_at_least(spread: int, touches: list[tuple[int, int, int]]) -> None:
    """Whether keys are numbered one by one, or lie far apart."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    lines = [builder.resource(f"line {number}", "line", discipline="line") for number in range(2)]
    tables = np.array([builder.table(f"table {number}", 4, backing=line) for number, line in enumerate(lines)])
    table, key, cost = np.array(touches, np.int64).T
    tasks = builder.add(len(touches), resource=port, duration_ps=10)
    builder.touch(tasks, tables[table], key * spread, miss_duration_ps=cost)
    least: dict[tuple[int, int], int] = {}
    for where, which, costs in touches:
        least[where, which] = min(costs, least.get((where, which), costs))
    of_lines = [sum(cost for (where, _), cost in least.items() if where == line) for line in range(2)]
    assert least_work_ps(builder.build())[lines].tolist() == of_lines
