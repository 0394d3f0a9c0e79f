"""Levels over time, against a walk over every instant."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.levels import Block, Levels

OWNERS = 3
CHANGES = st.lists(st.tuples(st.integers(-1, OWNERS - 1), st.integers(0, 40), st.integers(-4, 5)), max_size=40)


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    """Columns of rows of three; the first as numbers of owners."""
    first, second, third = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return [first.astype(np.int32), second, third]


def highest(rows: list[tuple[int, int, int]], owner: int) -> int:
    """Most that an owner had at the end of an instant."""
    most = level = 0
    for instant in range(41):
        level += sum(change for whose, time, change in rows if (whose, time) == (owner, instant))
        most = max(most, level)
    return most


@pytest.mark.parametrize("scale", [1, 10**9])
@given(CHANGES)
def test_highest_is_the_most_at_the_end_of_an_instant(scale: int, rows: list[tuple[int, int, int]]) -> None:
    owner, time, change = columns(rows)
    found = Levels(OWNERS, [Block(owner, time * scale, change)])
    alone = [highest(rows, one) for one in range(OWNERS)]
    assert found.highest().tolist() == alone
    assert found.highest(np.array([0, 1, 0])).tolist() == [max(alone[0], alone[2]), alone[1]]
    # Nothing is looked for above what an owner cannot have more of.
    assert found.highest(limit=np.array(alone)).tolist() == alone


@given(CHANGES)
def test_times_may_stand_with_tasks(rows: list[tuple[int, int, int]]) -> None:
    owner, time, change = columns(rows)
    task = np.arange(len(rows), dtype=np.int32)[::-1]
    blocks = [Block(owner, time[::-1], -change, sign=-1, task=task)]
    straight = [Block(owner, time, change)]
    assert Levels(OWNERS, blocks).highest().tolist() == Levels(OWNERS, straight).highest().tolist()


def test_many_changes_may_lie_in_one_short_time() -> None:
    # One change long after makes windows long: nearly all changes lie in the first.
    rng = np.random.default_rng(0)
    start = rng.permutation(2000)
    end = start + rng.integers(1, 40, start.size)
    time, sign = np.concatenate([start, end, [10**9]]), np.repeat([1, -1, 1], [2000, 2000, 1])
    found = Levels(1, [Block(np.zeros(time.size, np.int32), time, sign)])
    under_way = [int(((start <= now) & (end > now)).sum()) for now in range(2040)]
    assert found.highest().tolist() == [max(under_way)]
