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

from replay.graph import (
    NULL_RESOURCE,
    EngineError,
    GraphBuilder,
    GraphError,
    Timeline,
    Touched,
    critical_path,
    lower_bounds,
    schedule,
)
from replay.graph.export.chrome import write_chrome
from replay.graph.export.networkx_ import to_networkx
from replay.graph.export.programs import DELAY, make_programs

HIT, NEW, MISSED = Touched.HIT, Touched.NEW, Touched.MISSED
NEW_EVICTED, MISSED_EVICTED = NEW + Touched.EVICTED, MISSED + Touched.EVICTED


def _in_turn(
    keys: list[int], entries: int, policy: str = "lru", patience_ps: int = 0, **costs: Any
) -> Timeline:
    """One port serves a task of 10 ps a key, one after the other."""
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    table = builder.table("table", entries, policy=policy, patience_ps=patience_ps)
    tasks = builder.add(len(keys), resource=port, duration_ps=10)
    builder.touch(tasks, table, keys, **costs)
    return schedule(builder.build())


@pytest.mark.parametrize("policy", ["lru", "fifo"])
@pytest.mark.parametrize("entries", [1, 2, 7])
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
def test_equals_an_ordered_dictionary(
    keys: list[int], entries: int, is_lru: bool, spread: int
) -> None:
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
                expected[-1] += int(Touched.EVICTED)
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
    assert schedule(builder.build()).touched.tolist() == (
        [NEW_EVICTED, NEW] if first else [NEW, NEW_EVICTED]
    )


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
    assert timeline.utilisation() == {"port": 61 / 563}
    assert (timeline.spans()["x"].end_ps, timeline.spans()["x"].busy_ps) == (562, 60)
    path = critical_path(timeline)
    assert path.task.tolist() == [2, last]
    assert path.by_cause() == {"service": 41, "queueing": 20, "latency": 502, "credits": 0}
    # A bound may not count on evictions: it knows the graph's own times only.
    assert lower_bounds(graph).largest_ps == 31
    assert to_networkx(timeline).nodes[2]["visible_ps"] == 562
    write_chrome(timeline, tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    late = next(event for event in events if event["args"].get("task") == 2)
    assert (late["dur"], late["args"]["latency_us"]) == (0.00004, 0.000502)
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


@pytest.mark.parametrize(
    ("given", "message"),
    [
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


@pytest.mark.parametrize(
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
