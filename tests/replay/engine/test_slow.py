"""The same graph with slower tasks."""

from __future__ import annotations

import numpy as np
import pytest

from replay.engine import GraphBuilder, schedule
from replay.engine.taskgraph import slow_down


def graph():
    """Two kinds of task on one server, and a table whose misses take time."""
    builder = GraphBuilder(["send", "compute"])
    port = builder.resource("port", group="port", owner=0)
    memory = builder.table("table", group="table", entries=1)
    sends = builder.add(3, resource=port, duration_ps=10, latency_ps=7, kind=0)
    tiles = builder.add(2, resource=port, duration_ps=100, latency_ps=3, kind=1, after=sends[2])
    # The second key evicts the first, which the third look-up so misses.
    builder.touch(np.append(tiles, tiles[1]), memory, [1, 2, 1], miss_latency_ps=20, miss_duration_ps=40)
    return builder.build()


def test_without_factors_it_is_the_same_graph():
    one = graph()
    assert slow_down(one, np.ones(2)) is one


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_all_kinds_slower_take_so_many_times_as_long(factor):
    one, other = schedule(graph()), schedule(slow_down(graph(), np.full(2, factor)))
    assert other.makespan_ps == factor * one.makespan_ps
    assert np.array_equal(other.visible_ps, factor * one.visible_ps)


def test_a_kind_slower_is_that_kind_alone():
    one, other = graph(), slow_down(graph(), np.array([1.0, 2.5]))
    is_send = one.kind == 0
    for name in ("duration_ps", "latency_ps"):
        before, after = getattr(one, name), getattr(other, name)
        assert np.array_equal(before[is_send], after[is_send])
        assert np.array_equal(np.rint(2.5 * before[~is_send]), after[~is_send])
    # Look-ups are those of tiles: what a miss costs is stretched as the tile is.
    assert other.touches.miss_latency_ps.tolist() == [50, 50, 50]
    assert other.touches.miss_duration_ps.tolist() == [100, 100, 100]
    assert one.touches.miss_latency_ps.tolist() == [20, 20, 20]


def test_times_are_whole_picoseconds():
    other = slow_down(graph(), np.array([1.0, 1.004]))
    assert other.duration_ps.dtype == np.int64
    assert other.duration_ps.tolist() == [10, 10, 10, 100, 100]
