"""The engine does exactly what its plain-Python twin does, and what its semantics say."""

from __future__ import annotations

import gc
import hashlib
import os
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import engine_oracle as oracle
import pytest
import random_graphs
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every

from replay.engine import (
    NULL_RESOURCE,
    EngineError,
    GraphBuilder,
    TaskGraph,
    TouchOutcome,
    plan,
    schedule,
)
from replay.engine.engine import makespan_ps

_ORACLE = Path(__file__).parents[2] / "oracle"


Recipe = random_graphs.Recipe

RECIPES = {
    "streams": {"max_servers": 1},
    "streams of many latencies": {"max_servers": 1, "latencies": tuple(range(12))},
    "servers": {"latencies": (0, 1, 5)},
    "priorities": {"priorities": (0, 0, 1, 2)},
    "own priorities": {"priorities": tuple(range(100)), "max_servers": 1},
    "no time": {"durations": (0, 0, 1), "latencies": (0, 0, 1)},
    "no time, streams": {"durations": (0, 0, 1), "latencies": (0, 0, 1), "max_servers": 1},
    "shuffled": {"is_shuffled": True, "durations": (0, 1, 1), "max_servers": 1},
    "credits": {"max_pools": 3},
    "credits, no time": {"max_pools": 3, "durations": (0, 0, 1), "latencies": (0, 0, 2)},
    "credits, one resource": {"max_pools": 2, "max_resources": 1, "is_shuffled": True},
    "credits and priorities": {"max_pools": 2, "priorities": (0, 1, 1), "durations": (0, 1, 2)},
    "credits in many rounds": {
        "num_tasks": 70,
        "max_pools": 2,
        "max_resources": 9,
        "max_servers": 1,
        "durations": (0, 0, 0, 5),
        "latencies": (0,),
        "is_shuffled": True,
    },
    "gates": {"max_gates": 4},
    "gates, no time": {"max_gates": 4, "durations": (0, 0, 1), "latencies": (0, 0, 1)},
    "turns": {"disciplines": ("turns",), "max_pools": 4, "max_servers": 2},
    "turns, one server": {
        "disciplines": ("turns",),
        "max_pools": 4,
        "max_servers": 1,
        "max_resources": 2,
        "priorities": (0, 0, 1),
        "num_tasks": 60,
    },
    "turns, no time": {
        "disciplines": ("turns", "turns", "voq"),
        "max_pools": 3,
        "durations": (0, 0, 1),
        "latencies": (0, 0, 1),
    },
    "tables": {"max_tables": 3},
    "tables, streams": {"max_tables": 2, "max_servers": 1, "latencies": tuple(range(12))},
    "tables, no time": {"max_tables": 3, "durations": (0, 0, 1), "latencies": (0, 0, 1)},
    "tables, one resource": {"max_tables": 2, "max_resources": 1, "num_tasks": 60},
    "tables, careless charges": {
        "max_tables": 2,
        "num_tasks": 25,
        "durations": (0, 1, 1),
        "careless_charges": 0.1,
    },
    "lines": {"max_tables": 2, "lines": 1.0, "max_servers": 2},
    "lines, large keys": {
        "max_tables": 1,
        "max_resources": 2,
        "lines": 1.0,
        "most_units": 4,
        "num_keys": 9,
        "num_tasks": 60,
    },
    "lines, no time": {
        "max_tables": 2,
        "lines": 1.0,
        "most_units": 2,
        "durations": (0, 0, 1),
        "latencies": (0, 0, 1),
        "is_shuffled": True,
    },
    "tables and credits": {"max_tables": 2, "max_pools": 2, "priorities": (0, 0, 1)},
    "everything": {
        "max_pools": 3,
        "max_tables": 2,
        "max_gates": 3,
        "lines": 0.5,
        "most_units": 2,
        "durations": (0, 1, 1, 2),
        "priorities": (0, 0, 1),
        "is_shuffled": True,
    },
}


def assert_same_as_oracle(graph: TaskGraph) -> bool:
    """Compare every start, end and landing; returns whether the graph could finish."""
    try:
        expected = oracle.simulate(graph)
    except oracle.OracleDeadlock:
        with pytest.raises(EngineError, match="deadlock"):
            schedule(graph)
        return False
    except oracle.OracleEarlyRelease:
        with pytest.raises(EngineError, match="before"):
            schedule(graph)
        return False
    except oracle.OracleLateCharge:
        with pytest.raises(EngineError, match="started already"):
            schedule(graph)
        return False
    timeline = schedule(graph)
    tasks = range(graph.num_tasks)
    assert timeline.start_ps.tolist() == [expected.start[task] for task in tasks]
    assert timeline.end_ps.tolist() == [expected.end[task] for task in tasks]
    assert timeline.visible_ps.tolist() == [expected.visible[task] for task in tasks]
    assert makespan_ps(graph) == max(expected.visible.values(), default=0)
    found = [
        (TouchOutcome(value & TouchOutcome.OUTCOME).name.lower(), bool(value & TouchOutcome.EVICTED))
        for value in timeline.touched.tolist()
    ]
    assert found == [expected.touched[row] for row in range(len(graph.touches))]
    members = range(graph.gates.num_members)
    assert timeline.landed_tile.tolist() == [expected.landed[row] for row in members]
    return True


@every("name", RECIPES)
def test_equals_twin_on_seeded_graphs(name: str) -> None:
    finished = sum(
        assert_same_as_oracle(random_graphs.random_graph(Recipe(seed=seed, **RECIPES[name]))) for seed in range(30)
    )
    assert finished > 7


@pytest.mark.release
@pytest.mark.parametrize("name", RECIPES)
def test_equals_twin_on_many_graphs(name: str) -> None:
    for seed in range(1000, 1150):
        recipe = Recipe(seed=seed, **{"num_tasks": 20 + seed % 60, **RECIPES[name]})
        assert_same_as_oracle(random_graphs.random_graph(recipe))


times = st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple)


@settings(max_examples=150)
@given(
    recipe=st.builds(
        Recipe,
        seed=st.integers(0, 10**6),
        num_tasks=st.integers(1, 25),
        max_resources=st.integers(1, 4),
        max_servers=st.integers(1, 3),
        max_pools=st.integers(0, 2),
        max_gates=st.integers(0, 3),
        max_tables=st.integers(0, 2),
        lines=st.sampled_from([0.0, 1.0]),
        most_units=st.integers(1, 3),
        durations=times,
        latencies=times,
        priorities=times,
        is_shuffled=st.booleans(),
    )
)
def test_equals_twin(recipe: object) -> None:
    assert_same_as_oracle(random_graphs.random_graph(recipe))


def _digest() -> str:
    """Fingerprint of the schedules of some graphs."""
    digest = hashlib.sha256()
    for seed in range(40):
        graph = random_graphs.random_graph(Recipe(seed=seed, **RECIPES["everything"]))
        try:
            timeline = schedule(graph)
        except EngineError as error:
            digest.update(str(error).encode())
        else:
            digest.update(timeline.start_ps.tobytes() + timeline.end_ps.tobytes())
            digest.update(timeline.touched.tobytes() + timeline.visible_ps.tobytes())
    return digest.hexdigest()


def test_same_without_compiler_and_in_another_process() -> None:
    program = (
        "import importlib.util, sys\n"
        f"spec = importlib.util.spec_from_file_location('t', {__file__!r})\n"
        "module = importlib.util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n"
        "print(module._digest())\n"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": paths}
    answer = subprocess.run(
        [sys.executable, "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert answer.stdout.strip() == _digest()


# --- The semantics, one sentence each -----------------------------------------------------------


def _starts(builder: GraphBuilder) -> list[int]:
    graph = builder.build()
    assert_same_as_oracle(graph)
    return schedule(graph).start_ps.tolist()


def test_queue_goes_by_priority_then_ready_time_then_id() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    builder.add_one(resource=port, duration_ps=10)
    delay = builder.add(4, resource=NULL_RESOURCE, duration_ps=[3, 2, 2, 5])
    builder.add(resource=port, duration_ps=10, priority=[1, 1, 1, 0], after=delay)
    # Priority 0 first though ready last; then ready 2 before 3; equal ready times by id.
    assert _starts(builder)[5:] == [40, 20, 30, 10]


def test_predecessors_are_visible_a_latency_after_they_leave() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    sends = builder.add(2, resource=port, duration_ps=10, latency_ps=7)
    builder.add(resource=NULL_RESOURCE, after=sends)
    assert _starts(builder) == [0, 10, 17, 27]


def test_fifo_blocks_and_voq_passes() -> None:
    starts = {}
    for discipline in ("fifo", "voq"):
        builder = GraphBuilder(["x"])
        port = builder.resource("port", "port", discipline=discipline)
        pool = builder.credit_pool("slot", 1)
        other = builder.resource("other", "other")
        holder = builder.add_one(resource=other, duration_ps=50)
        blocked = builder.add_one(resource=port, duration_ps=10)
        builder.add_one(resource=port, duration_ps=10)
        builder.take([holder, blocked], pool)
        starts[discipline] = _starts(builder)
    assert starts == {"fifo": [0, 50, 60], "voq": [0, 50, 0]}


def test_credits_come_back_when_the_named_task_leaves_its_server() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", servers=9)
    pool = builder.credit_pool("slot", 1)
    first = builder.add_one(resource=port, duration_ps=10)
    later = builder.add_one(resource=NULL_RESOURCE, duration_ps=20, latency_ps=99, after=first)
    second = builder.add_one(resource=port, duration_ps=10)
    builder.take([first, second], pool, released_by=[later, second])
    assert _starts(builder) == [0, 10, 30]


def test_a_task_takes_all_its_pools_or_none() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port", servers=9, discipline="voq")
    a, b = builder.credit_pool("a", 1), builder.credit_pool("b", 1)
    tasks = builder.add(3, resource=port, duration_ps=[10, 10, 5])
    builder.take([tasks[0], tasks[1], tasks[1], tasks[2]], [a, a, b, b])
    # The second lacks ``a``, so it does not keep ``b`` from the third.
    assert _starts(builder) == [0, 10, 0]


def test_units_too_few_for_the_first_are_offered_to_the_next() -> None:
    builder = GraphBuilder(["x"])
    ports = [builder.resource(f"port{index}", "port") for index in range(4)]
    pool = builder.credit_pool("p", 2)
    tasks = builder.add(4, resource=ports, duration_ps=[10, 20, 5, 5])
    builder.take(tasks, pool, [1, 1, 2, 1])
    # One unit comes back after 10: not enough for the third, enough for the fourth.
    assert _starts(builder) == [0, 0, 20, 10]


def test_a_smaller_id_of_a_later_round_goes_before_a_blocked_head() -> None:
    builder = GraphBuilder(["x"])
    port, other = builder.resource("port", "port"), builder.resource("other", "other")
    instant = builder.resource("instant", "other")
    pool = builder.credit_pool("p", 1)
    first = builder.add_one(resource=port, duration_ps=3)
    holder = builder.add_one(resource=other, duration_ps=50)
    blocked = builder.add_one(resource=port, duration_ps=3)
    builder.edges(builder.add_one(resource=instant), first)
    builder.take([holder, blocked], pool)
    assert _starts(builder) == [0, 0, 50, 0]


@every("rounds", range(1, 7))
@every("overtaken", range(8))
def test_waiting_lanes_stay_in_order_when_one_is_overtaken(overtaken: int, rounds: int) -> None:
    """Eight heads share one unit, one round each; meanwhile a smaller id comes before one."""
    builder = GraphBuilder(["x"])
    ports = [builder.resource(f"port{index}", "port") for index in range(8)]
    instant = builder.resource("instant", "other", servers=9)
    newcomer = builder.add_one(resource=ports[overtaken], duration_ps=1)
    heads = builder.add(8, resource=ports)
    builder.take(heads, builder.credit_pool("p", 1))
    chain = builder.add(rounds, resource=instant)
    builder.edges(chain[:-1], chain[1:])
    builder.edges(chain[-1], newcomer)
    assert_same_as_oracle(builder.build())


def test_arrivals_take_slots_in_order_of_arrival() -> None:
    builder = GraphBuilder(["row", "tile", "back"])
    rows = builder.add(4, resource=NULL_RESOURCE, duration_ps=[40, 10, 30, 20])
    tiles = builder.add(2, resource=NULL_RESOURCE, duration_ps=100, kind=1)
    back = builder.add(4, resource=NULL_RESOURCE, kind=2)
    builder.gate(rows, back, [2, 2], tiles, tiles)
    graph = builder.build()
    assert_same_as_oracle(graph)
    timeline = schedule(graph)
    assert timeline.landed_tile.tolist() == [1, 0, 1, 0]
    assert timeline.start_ps[tiles].tolist() == [20, 40]
    assert timeline.start_ps[back].tolist() == [140, 120, 140, 120]


def test_simultaneous_arrivals_go_by_id_whatever_the_order_of_the_list() -> None:
    builder = GraphBuilder(["row", "tile"])
    rows = builder.add(3, resource=NULL_RESOURCE, duration_ps=10)
    tiles = builder.add(3, resource=NULL_RESOURCE, duration_ps=[1, 2, 3], kind=1)
    builder.gate(rows[::-1], [-1, -1, -1], [1, 1, 1], tiles, tiles)
    graph = builder.build()
    assert graph.gates.member_task.tolist() == rows.tolist()
    assert (schedule(graph).landed_tile == [0, 1, 2]).all()


def test_deadlock_names_who_waits_for_what_and_who_holds_it() -> None:
    builder = GraphBuilder(["send", "copy out"])
    up = builder.resource("gpu3.uplink", "uplink")
    ring = builder.credit_pool("ring 3->5", 1)
    sends = builder.add(2, resource=up, duration_ps=10, rank=3)
    copy = builder.add_one(resource=NULL_RESOURCE, kind=1, after=sends[1])
    builder.take(sends, ring, released_by=copy)
    with pytest.raises(EngineError) as refusal:
        schedule(builder.build())
    message = str(refusal.value)
    assert "task 1 (send of rank 3 on gpu3.uplink) waits for 1 of pool 'ring 3->5'" in message
    assert "0 of 1 free" in message
    assert "held by task 0 (send of rank 3 on gpu3.uplink) until task 2 ends" in message


def test_giving_back_too_early_is_an_error() -> None:
    builder = GraphBuilder(["x"])
    port = builder.resource("port", "port")
    tasks = builder.add(2, resource=port, duration_ps=10)
    builder.take(tasks[1], builder.credit_pool("p", 1), released_by=tasks[0])
    with pytest.raises(EngineError, match=r"task 0 .* gives back credits before task 1"):
        schedule(builder.build())


@pytest.mark.parametrize("fields", [{"duration_ps": 2**62}, {"latency_ps": 2**62}])
def test_a_task_longer_than_the_clock_is_refused(fields: dict[str, int]) -> None:
    builder = GraphBuilder(["x"])
    builder.add_one(resource=builder.resource("port", "port"), **fields)
    with pytest.raises(EngineError, match="longer than the clock"):
        schedule(builder.build())


@every("servers", [0, 1, 2])
def test_a_schedule_longer_than_the_clock_is_refused(servers: int) -> None:
    builder = GraphBuilder(["x"])
    where = builder.resource("port", "port", servers=servers) if servers else NULL_RESOURCE
    ids = builder.add(40, resource=where, duration_ps=2**58)
    builder.edges(ids[:-1], ids[1:])
    with pytest.raises(EngineError, match="longer than 2305843 s"):
        schedule(builder.build())


def test_incast_with_finite_buffers_holds_up_others_under_fifo_only() -> None:
    ends = {}
    for discipline in ("fifo", "voq"):
        builder = GraphBuilder(["up", "down"])
        up = [builder.resource(f"up{g}", "uplink", discipline=discipline) for g in range(4)]
        down = [builder.resource(f"down{g}", "downlink") for g in range(2)]
        buffers = [builder.credit_pool(f"buffer{g}", 2) for g in range(2)]
        victims = []
        for row in range(50):
            for gpu in range(4):
                # All send to port 0; the last one sends every other row to port 1.
                target = 1 if gpu == 3 and row % 2 else 0
                sent = builder.add_one(resource=up[gpu], duration_ps=10, rank=gpu)
                received = builder.add_one(resource=down[target], duration_ps=10, after=sent)
                builder.take(sent, buffers[target], released_by=received)
                if target == 1:
                    victims.append(received)
        graph = builder.build()
        assert_same_as_oracle(graph)
        timeline = schedule(graph)
        ends[discipline] = int(timeline.end_ps[victims].max())
        # The port that all want is never idle once the first row is there.
        assert timeline.makespan_ps == 10 + 175 * 10
    # Alone, port 1 would have its 25 rows after 260; a few rows to port 0 go between.
    assert ends["voq"] <= 300
    assert ends["fifo"] > 1000


def test_a_plan_is_given_up_before_the_result_takes_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kept: list[Any] = []
    make, read = plan.make_plan, plan.read_times

    def make_plan(graph: TaskGraph) -> Any:
        made, laid = make(graph)
        kept.extend(weakref.ref(made.arrays[name]) for name in ("slots", "channels", "lanes"))
        return made, laid

    def read_times(*given: Any) -> Any:
        gc.collect()  # kernels as plain Python refer to their arrays in circles
        assert [of() for of in kept] == [None] * 3
        return read(*given)

    monkeypatch.setattr(plan, "make_plan", make_plan)
    monkeypatch.setattr(plan, "read_times", read_times)
    builder = GraphBuilder(["x"])
    builder.add(3, resource=builder.resource("port", "port"), duration_ps=4)
    assert schedule(builder.build()).start_ps.tolist() == [0, 4, 8]
    assert kept


@every("field", ["duration_ps", "latency_ps"])
@every("times", [[3, 2**62], 2**62])
def test_what_takes_longer_than_the_clock_can_count_is_refused(field: str, times: int | list[int]) -> None:
    builder = GraphBuilder(["send"])
    builder.add(2, resource=builder.resource("port", "port"), **{field: times})
    slow = 0 if isinstance(times, int) else 1
    with pytest.raises(EngineError, match=rf"^task {slow} \(send on port\) takes longer than"):
        schedule(builder.build())
