"""A graph given in parts has the schedule of the whole, to the picosecond."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loops import every

from replay.engine import (
    NULL_RESOURCE,
    EngineError,
    GraphBuilder,
    GraphError,
    TaskGraph,
    critical_path,
    longest_chain_ps,
    schedule,
)
from replay.engine.bounds import LongestChain
from replay.engine.critical_path import last_met
from replay.engine.history import History
from replay.engine.piece import Piece
from replay.engine.scheduler import OutOfOrderError, Scheduler
from replay.engine.taskgraph import GraphPart

_PATH = Path(__file__).parents[2] / "oracle" / "random_parts.py"
_SPEC = importlib.util.spec_from_file_location("random_parts", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
random_parts: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["random_parts"] = random_parts
_SPEC.loader.exec_module(random_parts)

CONTENTS = list(itertools.product([False, True], repeat=4))
a_few_seeds = pytest.mark.parametrize(
    "seeds", [range(2), pytest.param(range(2, 5), marks=pytest.mark.extended)], ids=str
)


def recipe(seed: int, contents: tuple[bool, ...]) -> Any:
    pools, tables, gates, instants = contents
    return random_parts.PartsRecipe(seed, pools=pools, tables=tables, gates=gates, instants=instants)


def parts_of(one: Any, whole: TaskGraph) -> list[GraphPart]:
    """The parts of a graph, each looking out for all that the next one waits for."""
    bounds = [0]
    random_parts.build_in_parts(one, lambda builder: bounds.append(builder.num_tasks))
    source, target = whole.edges()
    of_source, of_target = (np.searchsorted(bounds, ends, "right") for ends in (source, target))
    parts: list[GraphPart] = []

    def close(builder: GraphBuilder) -> None:
        awaited = source[(of_source == len(parts) + 1) & (of_target > of_source)]
        parts.append(builder.part(np.unique(awaited)))

    random_parts.build_in_parts(one, close)
    return parts


def pieces_of(parts: list[GraphPart]) -> Iterator[Piece]:
    scheduler = Scheduler()
    for part in parts:
        scheduler.add(part)
        yield scheduler.run()
    while not scheduler.is_over:
        yield scheduler.run()


@a_few_seeds
@every("contents", CONTENTS, ids=str)
def test_parts_are_scheduled_as_the_whole(contents: tuple[bool, ...], seeds: range) -> None:
    for seed in seeds:
        one = recipe(seed, contents)
        whole = random_parts.build_in_parts(one).build()
        try:
            expected = schedule(whole)
        except EngineError:  # units that wait for one another
            with pytest.raises(EngineError):
                list(pieces_of(parts_of(one, whole)))
            continue
        met, _ = last_met(expected)
        num_seen = np.zeros(whole.num_tasks, np.int64)
        for piece in pieces_of(parts_of(one, whole)):
            done = np.flatnonzero(piece.is_done)
            ids, timeline = piece.ids[done], piece.timeline
            num_seen[ids] += 1
            for name in ("start_ps", "end_ps", "visible_ps", "service_ps", "extra_latency_ps"):
                np.testing.assert_array_equal(getattr(timeline, name)[done], getattr(expected, name)[ids], name)
            np.testing.assert_array_equal(piece.met.ready_ps[done], met.ready_ps[ids])
            np.testing.assert_array_equal(piece.met.cause[done], met.cause[ids])
            touches = piece.is_done[timeline.graph.touches.task]
            np.testing.assert_array_equal(timeline.touched[touches], expected.touched[piece.touch_ids[touches]])
        assert (num_seen == 1).all()


@a_few_seeds
@every("contents", CONTENTS, ids=str)
def test_the_critical_path_is_that_of_the_whole(contents: tuple[bool, ...], seeds: range) -> None:
    for seed in seeds:
        one = replace(recipe(seed, contents), num_parts=6, most_tasks=10)
        whole = random_parts.build_in_parts(one).build()
        try:
            expected = critical_path(schedule(whole))
        except EngineError:
            continue
        history, chain, scheduler = History(), LongestChain(), Scheduler()
        for part in parts_of(one, whole):
            history.begin(part)
            chain.add(part)
            scheduler.add(part)
            history.add(scheduler.run())
        while not scheduler.is_over:
            history.add(scheduler.run())
        path = history.path()
        assert path.task.tolist() == expected.task.tolist()
        for name in ("queueing_ps", "credits_ps", "service_ps", "latency_ps"):
            np.testing.assert_array_equal(getattr(path, name), getattr(expected, name), name)
        assert list(path.behind_ps.items()) == list(expected.behind_ps.items())
        assert list(path.by_kind().items()) == list(expected.by_kind().items())
        assert list(path.by_group().items()) == list(expected.by_group().items())
        assert chain.length_ps == longest_chain_ps(whole)


def chain_of_two(latency_ps: int = 1) -> GraphBuilder:
    builder = GraphBuilder(["a"])
    builder.resource("r", "r")
    builder.add(1, resource=0, duration_ps=10, latency_ps=latency_ps)
    return builder


def test_what_waits_only_for_the_past_is_scheduled_there() -> None:
    builder = chain_of_two()
    other = builder.resource("host", "host")
    first = builder.add_one(resource=other, duration_ps=2)
    last = builder.add_one(resource=0, duration_ps=100, after=0)
    parts = [builder.part([last])]
    builder.add(1, resource=other, duration_ps=3, after=first)  # could begin at 2
    parts.append(builder.part())
    pieces = list(pieces_of(parts))
    assert pieces[0].now_ps == 111
    done = pieces[1].is_done
    assert pieces[1].timeline.start_ps[done].tolist() == [2]


def test_a_past_in_which_something_else_happened_is_refused() -> None:
    builder = chain_of_two()
    first = builder.add_one(resource=0, duration_ps=2)
    last = builder.add_one(resource=0, duration_ps=100, after=first)
    parts = [builder.part([last])]
    builder.add(1, resource=0, duration_ps=3, after=first)  # would have gone between
    parts.append(builder.part())
    with pytest.raises(OutOfOrderError, match="before its part was added"):
        list(pieces_of(parts))


def test_what_reaches_back_is_refused() -> None:
    builder = chain_of_two()
    pool = builder.credit_pool("p", 1)
    table = builder.table("t", 1)
    builder.part()
    task = builder.add_one(resource=0)
    builder.edges(task, 0)
    with pytest.raises(GraphError, match="an edge leads to a task before 1"):
        builder.part()
    builder.take(0, pool, released_by=task)
    with pytest.raises(GraphError, match="a take names task 0"):
        builder.part()
    del table


def test_tasks_that_are_long_over_cannot_be_waited_for() -> None:
    builder = chain_of_two()
    parts = [builder.part([0])]
    for _ in range(3):
        last = builder.add_one(resource=0, duration_ps=1, after=builder.num_tasks - 1)
        parts.append(builder.part([last]))
    builder.add(1, resource=0, after=0)
    parts.append(builder.part())
    with pytest.raises(GraphError, match="task 0, which is long over"):
        list(pieces_of(parts))


def test_what_every_part_asks_for_again_is_remembered() -> None:
    builder = chain_of_two()
    parts = [builder.part([0])]
    for _ in range(4):
        last = builder.add_one(resource=0, duration_ps=1, after=builder.num_tasks - 1)
        builder.edges(0, last)
        parts.append(builder.part([last]))
    ends = [int(piece.timeline.end_ps[piece.is_done].max()) for piece in pieces_of(parts)]
    assert ends == [10, 12, 13, 14, 15]


def test_windows_hold_only_what_is_not_over() -> None:
    builder = chain_of_two()
    parts = [builder.part([0])]
    for _ in range(50):
        ids = builder.add(100, resource=0, duration_ps=1, after=builder.num_tasks - 1)
        parts.append(builder.part([int(ids[-1])]))
    assert max(len(piece.ids) for piece in pieces_of(parts)) <= 102


def test_of_those_visible_last_the_smallest_number_is_waited_for_in_parts_too() -> None:
    """Task 0 is visible in the second round of the moment at which task 1 stops the run."""
    builder = GraphBuilder(["a"])
    server = builder.resource("r", "r")
    late = builder.add_one(resource=server)
    watched = builder.add_one(resource=NULL_RESOURCE, duration_ps=10)
    before = builder.add_one(resource=NULL_RESOURCE, duration_ps=10)
    builder.edges(before, late)
    parts = [builder.part([watched])]
    last = builder.join([late, watched])
    parts.append(builder.part())
    pieces = list(pieces_of(parts))
    assert late not in pieces[0].ids[pieces[0].is_done]
    place = int(np.flatnonzero(pieces[-1].ids == last)[0])
    assert (pieces[-1].met.ready_ps[place], pieces[-1].met.cause[place]) == (10, late)


def test_what_was_waited_behind_is_told_when_it_is_over_not_before() -> None:
    """A task of the first part waits behind one of the second, which is under way for long."""
    builder = GraphBuilder(["link", "ahead", "other"])
    server = builder.resource("r", "r")
    first = builder.add_one(resource=NULL_RESOURCE, duration_ps=10, kind=2)
    ready = builder.add_one(resource=NULL_RESOURCE, duration_ps=12, kind=2)
    link = builder.add_one(resource=server, duration_ps=1, after=ready)
    parts = [builder.part([first])]
    builder.add_one(resource=server, duration_ps=5, latency_ps=1000, kind=1, after=first)
    builder.add_one(resource=NULL_RESOURCE, duration_ps=2000, kind=2, after=link)
    watched = builder.add_one(resource=NULL_RESOURCE, duration_ps=10, kind=2, after=first)
    parts.append(builder.part([watched]))
    for _ in range(3):
        watched = builder.add_one(resource=NULL_RESOURCE, duration_ps=1, kind=2, after=watched)
        parts.append(builder.part([watched]))
    history, scheduler = History(), Scheduler()
    for part in parts:
        history.begin(part)
        scheduler.add(part)
        history.add(scheduler.run())
    while not scheduler.is_over:
        history.add(scheduler.run())
    path = history.path()
    assert path.task.tolist() == [ready, link, link + 2]
    assert path.behind_ps == {"ahead": 3}
