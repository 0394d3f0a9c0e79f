"""The engine does exactly what its plain-Python twin does, and what its semantics say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from replay.graph import EngineError, TaskGraph, schedule

_ORACLE = Path(__file__).parents[2] / "oracle"


def _load(name: str) -> ModuleType:
    """Import a twin by path: tests are not a package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, _ORACLE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


oracle = _load("engine_oracle")
random_graphs = _load("random_graphs")
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
    "gates": {"max_gates": 4},
    "gates, no time": {"max_gates": 4, "durations": (0, 0, 1), "latencies": (0, 0, 1)},
    "everything": {
        "max_pools": 3,
        "max_gates": 3,
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
    timeline = schedule(graph)
    tasks = range(graph.num_tasks)
    assert timeline.start_ps.tolist() == [expected.start[task] for task in tasks]
    assert timeline.end_ps.tolist() == [expected.end[task] for task in tasks]
    members = range(graph.gates.num_members)
    assert timeline.landed_tile.tolist() == [expected.landed[row] for row in members]
    return True


@pytest.mark.parametrize("name", RECIPES)
def test_equals_twin_on_seeded_graphs(name: str) -> None:
    finished = sum(
        assert_same_as_oracle(random_graphs.random_graph(Recipe(seed=seed, **RECIPES[name])))
        for seed in range(60)
    )
    assert finished > 20
