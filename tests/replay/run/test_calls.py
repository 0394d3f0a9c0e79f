"""What a small layer costs in counts: calls of functions and memories of kernels, not times.

Bounds are a tenth above what was counted on CPython 3.11 and NumPy 2; tests/bench/README.md has a
table of all schemes.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any

import pytest

import replay
import tracegen
from replay.engine.kernels.memory import IS_PLAIN
from tracegen import RoutingTrace

pytestmark = pytest.mark.skipif(IS_PLAIN, reason="kernels that are not compiled call functions")


@pytest.fixture(scope="module")
def trace() -> RoutingTrace:
    return tracegen.load("gpt-oss-20b-decode")


def counted(action: Callable[[], object]) -> tuple[int, int]:
    """Calls of functions, those in C included, and memories of kernels, of a second time."""
    action()
    profile = cProfile.Profile()
    profile.runcall(action)
    found: Any = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    memories = sum(
        of[1]
        for (file, _, function), of in found.items()
        if file.endswith("kernels/memory.py") and function == "__init__"
    )
    return sum(of[1] for of in found.values()), memories


@pytest.mark.parametrize(
    ("scheme", "most_calls", "most_memories"),
    [("ideal", 48_000, 46), ("deepep-ll", 73_000, 60), ("dysharp", 75_000, 64)],
)
def test_a_layer_that_is_asked_for(
    trace: RoutingTrace, scheme: str, most_calls: int, most_memories: int
) -> None:
    calls, memories = counted(lambda: replay.run(trace, scheme=scheme, layer=12, tune=False))
    assert calls <= most_calls
    assert memories <= most_memories


@pytest.mark.parametrize(
    ("scheme", "most_calls", "most_memories"),
    [("ideal", 14_200, 51), ("deepep-ll", 32_000, 61), ("dysharp", 41_000, 68)],
)
def test_a_further_layer_of_a_chain(
    trace: RoutingTrace, scheme: str, most_calls: int, most_memories: int
) -> None:
    two, five = (
        counted(lambda: replay.run(trace, scheme=scheme, layer=layers, tune=False))  # noqa: B023
        for layers in ((0, 1), (0, 1, 2, 3, 4))
    )
    assert (five[0] - two[0]) / 3 <= most_calls
    assert (five[1] - two[1]) / 3 <= most_memories
