"""What the builder makes of blocks, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from loops import every

from replay.engine import NULL_RESOURCE, GraphBuilder, GraphError, TaskGraph, columns, schedule


def _builder() -> GraphBuilder:
    builder = GraphBuilder(["send", "compute"])
    builder.resource("uplink", group="uplink")
    return builder


def test_blocks_become_columns_in_order() -> None:
    builder = _builder()
    first = builder.add(2, resource=0, duration_ps=5, tag=9)
    second = builder.add(resource=[0, NULL_RESOURCE, 0], duration_ps=[1, 2, 3], kind=1, after=first[0])
    last = builder.add_one(resource=0, rank=3)
    graph = builder.build()
    assert first.tolist() == [0, 1]
    assert second.tolist() == [2, 3, 4]
    assert last == 5
    assert graph.duration_ps.tolist() == [5, 5, 1, 2, 3, 0]
    assert graph.resource.tolist() == [0, 0, 0, -1, 0, 0]
    assert graph.kind.tolist() == [0, 0, 1, 1, 1, 0]
    assert graph.rank.tolist() == [-1, -1, -1, -1, -1, 3]
    assert graph.tag.tolist() == [9, 9, -1, -1, -1, -1]
    sources, targets = graph.edges()
    assert (sources.tolist(), targets.tolist()) == ([0, 0, 0], [2, 3, 4])


def test_a_column_of_one_value_takes_no_memory() -> None:
    builder = _builder()
    builder.add(1000, resource=0, duration_ps=7)
    builder.add(1000, resource=0, duration_ps=7)
    graph = builder.build()
    assert graph.duration_ps.strides == (0,)
    assert graph.duration_ps.tolist() == [7] * 2000


def test_tasks_of_kinds_that_are_left_out_pass_on_what_they_wait_for() -> None:
    builder = GraphBuilder(["mark", "send", "compute"], left_out=[2])
    port = builder.resource("uplink", group="uplink")
    sent = builder.add(2, resource=port, duration_ps=5, kind=1)
    both = builder.add(resource=port, duration_ps=[7, 8], latency_ps=2, kind=[2, 1], after=sent)
    given = {"duration_ps": 9, "priority": 1, "payload_bytes": 3, "wire_bytes": 4, "tag": 6}
    last = builder.add(resource=port, rank=1, kind=2, after=both[:1], **given)
    assert builder.leaves_out(np.concatenate((sent, both, last))).tolist() == [False, False, True, False, True]
    graph = builder.build()
    assert graph.kind.tolist() == [1, 1, 0, 1, 0]
    assert graph.resource.tolist() == [port, port, NULL_RESOURCE, port, NULL_RESOURCE]
    assert graph.duration_ps.tolist() == [5, 5, 0, 8, 0]
    assert graph.latency_ps.tolist() == [0, 0, 0, 2, 0]
    assert (graph.rank[last[0]], graph.tag[last[0]]) == (1, 6)
    assert graph.payload_bytes[last[0]] == graph.wire_bytes[last[0]] == graph.priority[last[0]] == 0
    assert schedule(graph).visible_ps.tolist() == [5, 10, 5, 20, 5]


def test_callers_arrays_are_copied() -> None:
    builder = _builder()
    durations = np.array([1, 2])
    before = builder.add(2, resource=0)
    after = before.copy()
    builder.add(resource=0, duration_ps=durations, after=after)
    durations[:] = 99
    after[:] = 0
    graph = builder.build()
    assert graph.duration_ps.tolist() == [0, 0, 1, 2]
    assert graph.edges()[0].tolist() == [0, 1]


@every("count", [0, 1, 3])
def test_after_is_one_for_each_or_one_for_all(count: int) -> None:
    builder = _builder()
    roots = builder.add(count, resource=0)
    each = builder.add(resource=0, after=roots)
    assert each.size == count
    gate = builder.add_one(resource=0)
    alone = builder.add(count, resource=0, after=gate)
    as_array = builder.add(count, resource=0, after=np.array([gate]))
    edges = set(zip(*(ends.tolist() for ends in builder.build().edges()), strict=True))
    expected = {(int(a), int(b)) for a, b in zip(roots, each, strict=True)}
    expected |= {(gate, int(task)) for block in (alone, as_array) for task in block}
    assert edges == expected


def test_edges_broadcast_and_joins_wait_for_all() -> None:
    builder = _builder()
    tasks = builder.add(3, resource=0, duration_ps=10)
    end = builder.join(tasks)
    builder.edges(end, builder.add(2, resource=0))
    empty = builder.join([])
    graph = builder.build()
    assert graph.num_predecessors.tolist() == [0, 0, 0, 3, 1, 1, 0]
    assert schedule(graph).start_ps[[end, empty]].tolist() == [30, 0]


def test_successors_keep_the_order_they_were_added_in() -> None:
    builder = _builder()
    tasks = builder.add(4, resource=0)
    for target in (3, 1, 2):
        builder.edges(tasks[0], tasks[target])
    graph = builder.build()
    assert graph.successors[graph.indptr[0] : graph.indptr[1]].tolist() == [3, 1, 2]


@every("end", [-1, 2**31, 2**32 + 1])
@every(
    ("make", "what"),
    [
        (lambda b, some: b.add(3, resource=0, after=some), "after of task 4"),
        (lambda b, some: b.edges(some, some[::-1]), "src of edge 1"),
        (lambda b, some: b.edges(some * 0, some), "dst of edge 1"),
    ],
)
def test_refuses_ends_of_edges_at_once(
    make: Callable[[GraphBuilder, npt.NDArray[np.int64]], object], what: str, end: int
) -> None:
    """Nobody is no task, nor are numbers that a narrower type would turn into tasks."""
    builder = _builder()
    builder.add(3, resource=0)
    with pytest.raises(GraphError, match=f"{what} is {end}; possible: 0 to 2147483647"):
        make(builder, np.array([0, end, 1]))


@every(
    ("make", "what"),
    [
        (lambda b: b.add(2, resource=0, duration_ps=[1, -5]), "duration_ps of task 4 is -5"),
        (lambda b: b.add(resource=0, latency_ps=-1), "latency_ps of task 3 is -1"),
        (lambda b: b.add(resource=[0, 7]), "resource of task 4 is 7"),
        (lambda b: b.add(resource=0, kind=2), "kind of task 3 is 2"),
        (lambda b: b.add(resource=0, duration_ps=1.5), "whole numbers"),
        (lambda b: b.add(resource=0, duration_ps=[[1]]), "one-dimensional"),
        (lambda b: b.add(2, resource=0, duration_ps=[1, 2, 3]), "duration_ps"),
        (lambda b: b.add(resource=0, duration_ps=[1, 2], tag=[1, 2, 3]), "different lengths"),
        (lambda b: b.add(-1, resource=0), "count is -1"),
        (lambda b: b.edges([0, 1], [0, 1, 2]), "different lengths"),
        (lambda b: b.edges(-1, 0), "src of edge 0 is -1"),
        (lambda b: b.resource("x", "g", servers=0), "'x' has 0 servers"),
        (lambda b: b.resource("x", "g", discipline="lifo"), "known: fifo, voq"),
        (lambda b: b.credit_pool("p", -1), "capacity -1"),
        (lambda b: b.take(0, 5), "pool of take 0 is 5"),
        (lambda b: b.take(0, b.credit_pool("p", 3), 0), "units of take 0 is 0"),
        (lambda b: b.gate([0], [1], [2], [1], [1]), "2 slots in its tiles for 1 members"),
        (lambda b: b.gate([0], [1, 2], [1], [1], [1]), "2 waiters for 1 members"),
    ],
)
def test_refuses_at_once(make: Callable[[GraphBuilder], object], what: str) -> None:
    builder = _builder()
    builder.add(3, resource=0)
    with pytest.raises(GraphError, match=what):
        make(builder)


@every(
    ("make", "what"),
    [
        (lambda b: b.edges(0, 9), "edge 0 -> 9 names a task that does not exist"),
        (lambda b: b.edges([0, 8], 1), "edge 8 -> 1 names a task that does not exist"),
        (lambda b: b.add(resource=0, after=7), "edge 7 -> 3"),
        (lambda b: b.take(9, b.credit_pool("p", 1)), "take 0: task 9 does not exist"),
        (lambda b: b.take(0, b.credit_pool("ring", 2), 3), "3 units of credit pool 'ring'"),
        (lambda b: b.take([0, 0], b.credit_pool("ring", 3), 2), "4 units of credit pool 'ring'"),
        (lambda b: b.gate([0], [9], [1], [1], [1]), "member_waiter 9 does not exist"),
        (lambda b: b.edges(1, 1), r"cycle: task 1 \(send on uplink\) -> task 1"),
        (lambda b: b.edges([0, 1, 2], [1, 2, 0]), "cycle: task 0 .* -> task 1 .* -> task 2"),
        # The waiter of a gate leads back to a member of it: which tile it waits for is not known.
        (lambda b: (b.gate([0], [2], [1], [1], [1]), b.edges(2, 0)), "cycle: .*gate 0"),
    ],
)
def test_refuses_when_built(make: Callable[[GraphBuilder], object], what: str) -> None:
    builder = _builder()
    builder.add(3, resource=0)
    make(builder)
    with pytest.raises(GraphError, match=what):
        builder.build()


def _steps(builder: GraphBuilder, count: int, *, repeats: bool) -> TaskGraph:
    """Steps of which each waits for the one before and takes credits until its own end."""
    pool = builder.credit_pool("ring", 2)
    builder.add(1, resource=0, tag=3)
    at = builder.add(2, resource=[0, NULL_RESOURCE], duration_ps=7, rank=[0, 1])
    for _ in range(1 if repeats else count):
        begin = builder.position
        sent = builder.add(2, resource=0, duration_ps=[300, 2], wire_bytes=8, kind=1, after=at)
        builder.take(sent, pool, released_by=sent)
        at = builder.add(2, resource=NULL_RESOURCE, latency_ps=4, after=sent[::-1])
        builder.edges(at[0], at[1])
    later = builder.repeat(begin, count - 1) if repeats else 0
    builder.join(at + later, tag=5)
    return builder.build()


@every("few", (1, 4096))
def test_steps_that_are_repeated_are_those_of_a_loop(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """However edges lie, in blocks of their own or together."""
    monkeypatch.setattr(columns, "FEW_EDGES", few)
    one, other = (_steps(_builder(), 5, repeats=repeats) for repeats in (True, False))
    assert one.num_tasks == 24
    for name in ("resource", "kind", "duration_ps", "latency_ps", "wire_bytes", "rank", "tag"):
        column, wanted = getattr(one, name), getattr(other, name)
        assert (column.tolist(), column.dtype, column.strides) == (wanted.tolist(), wanted.dtype, wanted.strides)
    for mine, its in zip(one.edges(), other.edges(), strict=True):
        assert mine.tolist() == its.tolist()
    for name in ("task", "pool", "units", "released_by"):
        assert getattr(one.takes, name).tolist() == getattr(other.takes, name).tolist()


def test_repeats_tasks_that_are_left_out() -> None:
    builder = GraphBuilder(["mark", "send"], left_out=[1])
    builder.add(2, resource=-1)
    begin = builder.position
    builder.add(1, resource=-1, kind=1)
    assert builder.repeat(begin, 2) == 2
    assert builder.leaves_out(np.arange(5)).tolist() == [False, False, True, True, True]


def test_does_not_repeat_less_than_nothing() -> None:
    builder = _builder()
    begin = builder.position
    builder.add(2, resource=0)
    with pytest.raises(GraphError, match="times is -1; possible: 0 or more"):
        builder.repeat(begin, -1)
    assert (builder.repeat(begin, 0), builder.num_tasks) == (0, 2)


def test_does_not_repeat_edges_from_before_the_tasks_that_come_right_before() -> None:
    """A later step would wait for a task that is none of its own kind."""
    builder = _builder()
    early, at = builder.add(2, resource=0)
    begin = builder.position
    builder.add(1, resource=0, after=early)
    with pytest.raises(GraphError, match="an edge from task 0 cannot be repeated; possible: from 1 on"):
        builder.repeat(begin, 1)
    builder = _builder()
    early, at = builder.add(2, resource=0)
    builder.edges(early, at)  # lies before the position
    begin = builder.position
    builder.add(1, resource=0, after=at)
    assert builder.repeat(begin, 2) == 2
    sources, targets = builder.build().edges()
    assert (sources.tolist(), targets.tolist()) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_repeats_tasks_without_edges() -> None:
    builder = _builder()
    builder.edges(*builder.add(2, resource=0))
    begin = builder.position
    builder.add(1, resource=0)
    builder.repeat(begin, 3)
    graph = builder.build()
    assert (graph.num_tasks, graph.num_edges) == (6, 1)


def test_does_not_repeat_from_a_position_before_a_part() -> None:
    """Its numbers of edges and takes are those of the part that is gone, whether tasks follow or not."""
    builder = _builder()
    builder.edges(*builder.add(2, resource=0))
    begin = builder.position
    builder.part()
    with pytest.raises(GraphError, match="an earlier part"):
        builder.repeat(begin, 1)
    builder.edges(*builder.add(2, resource=0))
    with pytest.raises(GraphError, match="an earlier part"):
        builder.repeat(begin, 1)


def test_does_not_repeat_what_is_shared_or_gone() -> None:
    builder = _builder()
    begin = builder.position
    builder.add(2, resource=0)
    with pytest.raises(GraphError, match="a graph holds at most"):
        builder.repeat(begin, 2**30)
    table = builder.table("t", 1)
    builder.touch(0, table, 0)
    with pytest.raises(GraphError, match="touches, gates and credits"):
        builder.repeat(begin, 1)
    builder.part()
    begin = builder.position
    builder.add(1, resource=0, tag=4)
    builder.repeat(begin, 3)
    assert builder.part().graph.tag.tolist() == [4] * 4


def test_a_builder_builds_once() -> None:
    builder = _builder()
    builder.build()
    with pytest.raises(GraphError, match="start a new GraphBuilder"):
        builder.add(1, resource=0)


def test_graph_without_tasks() -> None:
    timeline = schedule(_builder().build())
    assert timeline.makespan_ps == 0
