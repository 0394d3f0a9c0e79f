"""Levels that are carried from piece to piece, and units that several tasks give back."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replay.engine import GraphBuilder, schedule
from replay.engine.levels import Block, HighWater
from replay.measure.mechanisms import _SharedTakes, _takes
from replay.measure.progress import TaskProgress

CHANGES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(-3, 4), st.integers(0, 3)),
    max_size=30,
)
GROUPS = ("a", "b", "a")


@given(CHANGES, st.lists(st.integers(0, 30), min_size=3, max_size=3))
def test_levels_are_the_same_however_they_are_cut(rows: list[tuple[int, int, int, int]], closed: list[int]) -> None:
    owner, time, change, piece = (np.array([row[i] for row in rows], np.int64) for i in range(4))
    whole, cut = HighWater(), HighWater()
    whole.add([Block(owner.astype(np.int32), time, change)], GROUPS)
    closed = sorted(closed)
    for number, closed_ps in enumerate([*closed, 2**63 - 1]):
        # A change may be told late, but not when it is before what is closed.
        due = np.searchsorted(closed, time, "right")
        own = np.flatnonzero(np.minimum(piece, due) == number)
        blocks = [Block(owner[own].astype(np.int32), time[own], change[own])]
        cut.add(blocks, GROUPS, closed_ps=closed_ps)
    assert cut.result() == whole.result()


def test_what_is_told_early_waits_for_what_comes_before_it() -> None:
    room = HighWater()
    for time, change, closed_ps in ((10, 3, 5), (6, -2, 2**63 - 1)):
        block = Block(np.zeros(1, np.int32), np.array([time]), np.array([change]))
        room.add([block], ["room"], closed_ps=closed_ps)
    assert room.result() == {"room": 1}


def test_units_come_back_when_the_last_of_several_has_left() -> None:
    builder = GraphBuilder(["take", "give"])
    port, pool = builder.resource("port", "port", servers=4), builder.credit_pool("room", 9, "room")
    taker = builder.add(2, resource=port, duration_ps=1)
    short = builder.add(2, resource=port, duration_ps=5, kind=1, after=taker)
    long = builder.add(2, resource=port, duration_ps=50, kind=1, after=taker)
    of = np.array([0, 1, 0, 1])
    builder.take_until_last(taker, pool, 4, of, np.concatenate([short, long]))
    late = builder.add(1, resource=port, duration_ps=1, after=int(short[0]))
    builder.take(late, pool)
    progress = TaskProgress(schedule(builder.build()))
    buffers = HighWater()
    buffers.add([*_takes(progress), *_SharedTakes().over(progress)], ["room"])
    assert buffers.result() == {"room": 9}
