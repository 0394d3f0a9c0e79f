"""Covers of intervals, against every instant that lies in one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.engine.covers import coverage

OWNERS = 3
INTERVALS = st.lists(st.tuples(st.integers(-1, OWNERS - 1), st.integers(0, 40), st.integers(0, 6)), max_size=30)


def columns(rows: list[tuple[int, int, int]]) -> list[np.ndarray]:
    """Columns of rows of three; the first as numbers of owners."""
    first, second, third = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return [first.astype(np.int32), second, third]


@pytest.mark.parametrize("scale", [1, 10**9])
@given(INTERVALS)
def test_the_coverage_is_every_instant_in_an_interval(scale: int, rows: list[tuple[int, int, int]]) -> None:
    owner, start, length = columns(rows)
    end = start + length
    found = coverage(OWNERS, owner, start * scale, end * scale)
    units: list[set[int]] = [set() for _ in range(OWNERS)]
    for whose, first, last in zip(owner.tolist(), start.tolist(), end.tolist(), strict=True):
        if whose >= 0:
            units[whose].update(range(first, last))
    parts: list[list[int]] = [[] for _ in range(OWNERS)]
    for whose, first, last in zip(*(column.tolist() for column in found), strict=True):
        assert parts[whose][-1:] != [first // scale - 1]  # intervals do not touch
        parts[whose] += range(first // scale, last // scale)
    assert parts == [sorted(of) for of in units]


def test_many_intervals_may_lie_in_one_short_time() -> None:
    # One interval long after makes windows long: nearly all lie in the first, in no order.
    start = 3 * np.random.default_rng(0).permutation(2000)
    end = start + np.where(start % 2, 2, 3)
    found = coverage(1, np.zeros(start.size + 1, np.int32), np.append(start, 10**9), np.append(end, 10**9 + 1))
    assert found.start.tolist() == [*range(0, 6000, 6), 10**9]
    assert found.end.tolist() == [*range(5, 6000, 6), 10**9 + 1]
