"""Bounds bound, the critical path adds up, and sums are exact."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from loops import every

from replay.engine import (
    EngineError,
    GraphBuilder,
    Timeline,
    critical_path,
    least_work_ps,
    longest_chain_ps,
    schedule,
)
from replay.engine.timeline import sum_by


def _random_graphs() -> ModuleType:
    """Import the generator by path: tests are not a package."""
    if "random_graphs" not in sys.modules:
        path = Path(__file__).parents[2] / "oracle" / "random_graphs.py"
        spec = importlib.util.spec_from_file_location("random_graphs", path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules["random_graphs"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["random_graphs"])
    return sys.modules["random_graphs"]


random_graphs = _random_graphs()
EVERYTHING = {
    "max_pools": 2,
    "max_tables": 2,
    "max_gates": 3,
    "durations": (0, 1, 2, 7),
    "latencies": (0, 1, 4),
    "priorities": (0, 0, 1),
    "is_shuffled": True,
}


@every("seed", range(150))
def test_bounds_hold_and_path_adds_up(seed: int) -> None:
    graph = random_graphs.random_graph(random_graphs.Recipe(seed=seed, **EVERYTHING))
    try:
        timeline = schedule(graph)
    except EngineError:
        return
    busiest_ps = -(-least_work_ps(graph) // np.maximum(graph.resources.servers, 1))
    assert max(longest_chain_ps(graph), busiest_ps.max(initial=0)) <= timeline.makespan_ps
    path = critical_path(timeline)
    assert sum(path.by_cause().values()) == timeline.makespan_ps
    assert sum(path.behind_ps.values()) == path.by_cause()["queueing"]
    for causes in (path.by_kind(), path.by_group()):
        total = sum(time for row in causes.values() for time in row.values())
        assert total == timeline.makespan_ps
    assert min(path.queueing_ps.min(), path.credits_ps.min()) >= 0
    # Each link is ready exactly when the one before becomes visible.
    begin = timeline.start_ps[path.task] - path.queueing_ps - path.credits_ps
    assert begin[0] == 0
    assert begin[1:].tolist() == timeline.visible_ps[path.task[:-1]].tolist()


def test_chain_is_exact_when_nobody_is_in_the_way() -> None:
    builder = GraphBuilder(["work"])
    many = builder.resource("many", group="sm", servers=100)
    first = builder.add(10, resource=many, duration_ps=range(10), latency_ps=3)
    second = builder.add(resource=many, duration_ps=5, after=first)
    builder.join(second, duration_ps=1)
    graph = builder.build()
    assert longest_chain_ps(graph) == 9 + 3 + 5 + 1 == schedule(graph).makespan_ps


def test_chain_through_a_gate_holds_for_every_arrival() -> None:
    builder = GraphBuilder(["row", "tile", "combine"])
    rows = builder.add(4, resource=-1, duration_ps=[1, 10, 20, 30])
    tiles = builder.add(2, resource=-1, duration_ps=100, kind=1)
    combined = builder.add(4, resource=-1, duration_ps=5, kind=2)
    builder.gate(rows, combined, [2, 2], tiles, tiles)
    graph = builder.build()
    # The second tile cannot be full before the last row, and is done 100 later.
    assert longest_chain_ps(graph) == 130
    assert schedule(graph).makespan_ps == 135


def test_waiting_for_credits_is_told_from_queueing() -> None:
    builder = GraphBuilder(["hold", "wait", "ahead"])
    port = builder.resource("port", group="port")
    other = builder.resource("other", group="port")
    pool = builder.credit_pool("slots", 1)
    holder = builder.add_one(resource=other, duration_ps=50)
    ahead = builder.add_one(resource=port, duration_ps=20, kind=2)
    waiter = builder.add_one(resource=port, duration_ps=10, kind=1)
    builder.take([holder, waiter], pool)
    path = critical_path(schedule(builder.build()))
    assert ahead < waiter
    assert path.by_cause() == {"service": 10, "queueing": 20, "latency": 0, "credits": 30}
    assert path.behind_ps == {"ahead": 20}
    assert path.behind_by_kind() == {"wait": path.behind_ps}


def test_timeline_sums_by_resource() -> None:
    builder = GraphBuilder(["send", "other"])
    up = builder.resource("up", group="uplink")
    down = builder.resource("down", group="downlink", servers=2)
    huge = 2**53 + 1  # not a double
    sends = builder.add(2, resource=up, duration_ps=10, payload_bytes=huge)
    builder.add(resource=down, duration_ps=30, latency_ps=4, kind=1, payload_bytes=3, after=sends)
    timeline = schedule(builder.build())
    assert sum_by(timeline.graph.resource, timeline.graph.payload_bytes, 2).tolist() == [
        2 * huge,
        6,
    ]
    assert timeline.busy_ps().tolist() == [20, 60]
    assert timeline.makespan_ps == 54


@pytest.mark.parametrize(("scale", "bits"), [(10**6, 32), (2**50, 63)])
def test_order_of_service_is_exact_beyond_words(scale: int, bits: int) -> None:
    """Two queues one after another; the last resource's number times the time needs more bits."""
    builder = GraphBuilder(["first", "second"])
    ports = [builder.resource(f"port {number}", group="port") for number in range(12)]
    ahead = builder.add(2, resource=ports[1], duration_ps=200 * scale)
    builder.add(resource=ports[11], duration_ps=900 * scale, kind=1)
    builder.add(resource=ports[11], duration_ps=7, kind=1, after=ahead[1:])
    timeline = schedule(builder.build())
    assert timeline.makespan_ps < 2**bits < 12 * timeline.makespan_ps
    path = critical_path(timeline)
    assert path.queueing_ps.tolist() == [200 * scale, 500 * scale]
    assert path.behind_ps == {"first": 200 * scale, "second": 500 * scale}
    assert path.by_cause()["credits"] == 0


def three_in_a_queue() -> Timeline:
    builder = GraphBuilder(["send"])
    port = builder.resource("port", group="port")
    sends = builder.add(3, resource=port, duration_ps=10, latency_ps=5)
    builder.join(sends, duration_ps=7)
    return schedule(builder.build())


@pytest.mark.parametrize(
    ("more_queueing", "more_behind", "message"),
    [
        (4, 4, r"task 2 \(send on port\) on the critical path has -4 ps of credits$"),
        (-24, -24, r"task 2 \(send on port\) on the critical path has -4 ps of queueing$"),
        (0, -1, "adds up to 42 ps of 42, its queueing by kind to 19 ps of 20$"),
    ],
)
def test_a_wait_that_cannot_be_is_a_defect(
    more_queueing: int, more_behind: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = three_in_a_queue()
    assert critical_path(timeline).queueing_ps.tolist() == [20, 0]
    module = importlib.import_module("replay.engine.critical_path")
    right = module.ServedTasks.waits

    def wrong(*arguments: Any) -> Any:
        queueing, behind = right(*arguments)
        queueing[0] += more_queueing
        behind[0]["send"] += more_behind
        return queueing, behind

    monkeypatch.setattr(module.ServedTasks, "waits", wrong)
    with pytest.raises(AssertionError, match=f"^defect of moereplay: .*{message}"):
        critical_path(timeline)


def test_a_chain_that_begins_late_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = three_in_a_queue()
    module = importlib.import_module("replay.engine.critical_path")
    right = module._walk_back
    monkeypatch.setattr(module, "_walk_back", lambda *arguments: right(*arguments)[1:])
    with pytest.raises(AssertionError, match=r"^defect of moereplay: .* 7 ps of 42, "):
        critical_path(timeline)
