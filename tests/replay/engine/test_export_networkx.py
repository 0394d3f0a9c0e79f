"""networkx graphs of small parts of a schedule."""

from __future__ import annotations

from pathlib import Path

import networkx as nx
import pytest

from replay.engine import GraphBuilder, Timeline, UserError, schedule
from replay.engine.export import export
from replay.engine.export.networkx_ import to_networkx


@pytest.fixture
def gated() -> Timeline:
    """Two rows that land in two tiles of one slot each, the second first."""
    builder = GraphBuilder(["row", "tile", "back"])
    port = builder.resource("uplink", group="uplink", owner=0)
    rows = builder.add(2, resource=-1, duration_ps=[20, 10], payload_bytes=7)
    tiles = builder.add(2, resource=port, duration_ps=5, kind=1, rank=0)
    back = builder.add(2, resource=port, duration_ps=1, latency_ps=2, kind=2)
    builder.gate(rows, back, [1, 1], tiles, tiles)
    return schedule(builder.build())


def test_gates_are_edges_to_the_tile_a_row_landed_in(gated: Timeline) -> None:
    graph = to_networkx(gated)
    assert set(graph.edges) == {(1, 2), (0, 3), (2, 5), (3, 4)}
    assert graph.nodes[5] == {
        "kind": "back",
        "resource": "uplink",
        "group": "uplink",
        "rank": -1,
        "start_ps": 15,
        "end_ps": 16,
        "visible_ps": 18,
        "payload_bytes": 0,
        "wire_bytes": 0,
    }
    assert graph.nodes[0]["resource"] == "(delay)"
    assert nx.is_directed_acyclic_graph(graph)


def test_window_and_limit(gated: Timeline) -> None:
    graph = to_networkx(gated, window_ps=(10, 16))
    assert set(graph.nodes) == {0, 2, 5}
    assert set(graph.edges) == {(2, 5)}
    assert graph.graph["left_out"] == 3
    with pytest.raises(UserError, match=r"6 tasks are too many for networkx \(limit 5\): cut a win"):
        to_networkx(gated, max_tasks=5)


def test_graphml_reads_back(gated: Timeline, tmp_path: Path) -> None:
    written = export(gated, "networkx", tmp_path / "part.graphml", window_ps=(0, 16))
    assert written.num_events == 4
    assert written.notes == ("2 tasks lie outside the window and are left out",)
    graph = nx.read_graphml(tmp_path / "part.graphml", node_type=int)
    expected = to_networkx(gated, window_ps=(0, 16))
    assert dict(graph.nodes(data=True)) == dict(expected.nodes(data=True))
    assert set(graph.edges) == set(expected.edges)
    export(gated, "networkx", tmp_path / "again.graphml", window_ps=(0, 16))
    again = (tmp_path / "again.graphml").read_bytes()
    assert again == (tmp_path / "part.graphml").read_bytes()
