"""Columns are as narrow as their values and lie where they were written; kernels read them all."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from loops import every

from replay.engine import GraphBuilder, TaskGraph, schedule
from replay.engine.columns import GrowingColumn, in_front
from replay.engine.errors import GraphError
from replay.engine.sums import TaskSums, busy_by_window, drawn_waits

WIDTHS = (np.int8, np.int16, np.int32, np.int64)


def span(values: np.ndarray) -> tuple[int, int]:
    return int(values.min()), int(values.max())


@every("dtype", WIDTHS)
@every("edge", ["min", "max"])
def test_a_column_is_as_narrow_as_its_values(dtype: type, edge: str) -> None:
    column = GrowingColumn(np.int8)
    values = np.array([1, int(getattr(np.iinfo(dtype), edge))])
    column.append(values, 2, span(values))
    joined = column.join()
    assert joined.dtype == dtype
    assert joined.tolist() == values.tolist()


def test_one_that_becomes_wider_keeps_its_rows() -> None:
    column = GrowingColumn(np.int8)
    column.append(-7, 3)
    column.append(np.array([1, 2]), 2, (1, 2))
    column.append(300, 1)
    column.append(np.array([-(2**40)]), 1, (-(2**40), -(2**40)))
    column.append(5, 2)
    assert len(column) == 9
    assert column.join().tolist() == [-7, -7, -7, 1, 2, 300, -(2**40), 5, 5]
    assert len(column) == 0


def test_an_array_is_copied() -> None:
    column, values = GrowingColumn(np.int8), np.array([1, 2])
    column.append(values, 2, (1, 2))
    values[:] = 9
    assert column.join().tolist() == [1, 2]


def test_one_value_takes_no_memory() -> None:
    column = GrowingColumn(np.int8)
    column.append(1000, 5)
    column.append(1000, 5)
    joined = column.join(room=8, less=1)
    assert joined.strides == (0,)
    assert joined.dtype == np.int16
    assert joined.tolist() == [999] * 10


def test_rows_of_earlier_parts_come_in_front_where_there_is_room_for_them() -> None:
    column = GrowingColumn(np.int32)
    column.append(np.arange(10, 15), 5, (10, 14))
    first = column.join(room=2)
    both = in_front(np.array([1, 2], np.int32), first)
    assert both.tolist() == [1, 2, 10, 11, 12, 13, 14]
    assert np.shares_memory(both, first)
    # The next part leaves as much room from the beginning, and takes less if it is asked for less.
    for room, shares in ((1, True), (2, True), (3, False)):
        column.append(np.arange(5), 5, (0, 4))
        given = column._rows
        joined = column.join(room)
        assert np.shares_memory(joined, given) is shares
        assert in_front(np.full(room, 9, np.int32), joined).tolist() == [9] * room + [0, 1, 2, 3, 4]
        assert joined.base is not None
        assert joined.base.size <= 2 + 5 or room > 2


def test_a_column_is_no_narrower_in_later_parts() -> None:
    """What is left of the parts before has to fit in front of it."""
    column = GrowingColumn(np.int8)
    column.append(np.array([0, 300]), 2, (0, 300))
    assert column.join().dtype == np.int16
    column.append(np.array([0, 3]), 2, (0, 3))
    assert column.join(room=1).dtype == np.int16
    column.append(3, 2)
    assert column.join().dtype == np.int16


def test_wider_rows_in_front_are_not_cut() -> None:
    column = GrowingColumn(np.int8)
    column.append(np.array([1, 2]), 2, (1, 2))
    both = in_front(np.array([1000], np.int16), column.join(room=1))
    assert both.tolist() == [1000, 1, 2]


def some_graph(far: int = 0) -> TaskGraph:
    """A graph with something in each column; ``far`` is added to times and bytes."""
    rng = np.random.default_rng(1)
    builder = GraphBuilder(["send", "compute"])
    ports = np.array([builder.resource(f"port{i}", group="port", owner=i) for i in range(3)])
    pool = builder.credit_pool("room", 5)
    table = builder.table("memory", 3)
    count = 40
    rows = builder.add(
        resource=ports[rng.integers(0, 3, count)],
        duration_ps=rng.integers(1, 90, count) + far,
        latency_ps=rng.integers(0, 50, count) + far,
        priority=rng.integers(-2, 2, count),
        kind=rng.integers(0, 2, count),
        payload_bytes=rng.integers(0, 99, count) + far,
        wire_bytes=rng.integers(0, 99, count) + far,
        rank=rng.integers(0, 3, count),
        tag=rng.integers(0, 9, count),
    )
    builder.edges(rows[:20], rows[20:])
    builder.take(rows[::2], pool, rng.integers(1, 4, 20))
    builder.touch(
        rows[::3],
        table,
        rng.integers(0, 6, 14),
        units=rng.integers(1, 3, 14),
        miss_latency_ps=rng.integers(0, 9, 14) + far,
        miss_duration_ps=rng.integers(0, 9, 14),
    )
    return builder.build()


FIELDS = (
    "resource",
    "kind",
    "duration_ps",
    "latency_ps",
    "priority",
    "payload_bytes",
    "wire_bytes",
    "rank",
    "tag",
)


def widened(graph: TaskGraph, dtype: type) -> TaskGraph:
    """The same graph with columns of another type."""
    touches = dataclasses.replace(
        graph.touches,
        **{
            name: getattr(graph.touches, name).astype(np.int64)
            for name in ("table", "key", "units", "miss_latency_ps", "miss_duration_ps")
        },
    )
    takes = dataclasses.replace(graph.takes, pool=graph.takes.pool.astype(dtype), units=graph.takes.units.astype(dtype))
    columns = {name: getattr(graph, name).astype(dtype) for name in FIELDS}
    return dataclasses.replace(graph, takes=takes, touches=touches, **columns)


def test_kernels_read_every_width() -> None:
    graph = some_graph()
    narrow, place = schedule(graph), np.arange(3)
    assert {str(getattr(graph, name).dtype) for name in FIELDS} == {"int8", "int32"}
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        wide = widened(graph, dtype)
        timeline = schedule(wide)
        assert timeline.start_ps.tolist() == narrow.start_ps.tolist()
        assert timeline.visible_ps.tolist() == narrow.visible_ps.tolist()
        assert timeline.touched.tolist() == narrow.touched.tolist()
        one, other = (TaskSums.of(of.graph, place, 3, timeline=of) for of in (narrow, timeline))
        for field in dataclasses.fields(TaskSums):
            assert np.array_equal(getattr(one, field.name), getattr(other, field.name))


def test_kernels_divide_by_no_zero() -> None:
    graph = some_graph()
    timeline, parts = schedule(graph), np.array([1, 0, 1])
    role, flags = np.zeros(len(graph.kind_names), np.int64), np.ones(3, np.bool_)
    with pytest.raises(GraphError, match="parts of a resource must be 1 or more, not 0"):
        TaskSums.of(graph, np.arange(3), 3, timeline=timeline, parts=parts)
    with pytest.raises(GraphError, match="parts of a resource must be 1 or more, not 0"):
        drawn_waits(timeline, flags, ~flags, np.zeros(3, np.int64), parts, role, (1, 1), None)
    with pytest.raises(GraphError, match="picoseconds of a window must be 1 or more, not 0"):
        busy_by_window([(graph.resource, timeline.start_ps, timeline.end_ps, None)], 0, np.arange(3), (3, 1))


def test_numbers_beyond_32_bits_are_kept() -> None:
    far = 2**33
    near_graph, far_graph = some_graph(), some_graph(far)
    for name in ("duration_ps", "latency_ps", "payload_bytes", "wire_bytes"):
        assert getattr(near_graph, name).dtype == np.int32
        assert (getattr(far_graph, name) - far).tolist() == getattr(near_graph, name).tolist()
    timeline = schedule(far_graph)
    assert int(timeline.service_ps.min()) > far
    assert int(timeline.visible_ps.min()) > 2 * far
