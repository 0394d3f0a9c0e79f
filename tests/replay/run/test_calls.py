"""What a small layer costs in counts: calls of functions and memories of kernels, not times.

Bounds are a tenth above what was counted on CPython 3.11 and NumPy 2; those of all
schemes are printed by tests/bench/test_bench_small_layers.py.
"""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest

import replay
import tracegen
from replay.chains import preparation
from replay.chains.replay import Replay
from replay.engine.backend.memory import IS_PLAIN
from replay.model.compute import calls
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
        if file.endswith("backend/memory.py") and function == "__init__"
    )
    return sum(of[1] for of in found.values()), memories


@pytest.mark.parametrize(
    ("scheme", "most_calls", "most_memories"),
    [("ideal", 17_000, 39), ("deepep-ll", 34_400, 48), ("dysharp", 36_100, 62)],
)
def test_a_layer_that_is_asked_for(trace: RoutingTrace, scheme: str, most_calls: int, most_memories: int) -> None:
    found, memories = counted(lambda: replay.run(trace, scheme=scheme, layer=12, tune=False))
    assert found <= most_calls
    assert memories <= most_memories


@pytest.mark.parametrize(
    ("scheme", "most_calls", "most_memories"),
    [("ideal", 12_700, 38), ("deepep-ll", 20_500, 45), ("dysharp", 31_200, 62)],
)
def test_a_further_layer_of_a_chain(trace: RoutingTrace, scheme: str, most_calls: int, most_memories: int) -> None:
    two, five = (
        counted(lambda: replay.run(trace, scheme=scheme, layer=layers, tune=False))  # noqa: B023
        for layers in ((0, 1), (0, 1, 2, 3, 4))
    )
    assert (five[0] - two[0]) / 3 <= most_calls
    assert (five[1] - two[1]) / 3 <= most_memories


@pytest.mark.parametrize(
    ("scheme", "most_calls", "most_memories"),
    [("deepep-ll", 32_400, 48), ("megatron", 29_200, 35), ("fastermoe", 52_000, 39)],
)
def test_a_further_scheme_of_a_comparison(
    trace: RoutingTrace, scheme: str, most_calls: int, most_memories: int
) -> None:
    one, two = (
        counted(lambda: replay.compare(trace, schemes=schemes, layer=12, tune=False))  # noqa: B023
        for schemes in (["deepep"], ["deepep", scheme])
    )
    assert two[0] - one[0] <= most_calls
    assert two[1] - one[1] <= most_memories


def test_schemes_that_are_compared_share_a_layer(trace: RoutingTrace) -> None:
    """Work and lead are those of one layer, whoever replays it; launches by graph lead others."""
    made, found = preparation.make_work, Replay._lead_found
    with (
        mock.patch.object(preparation, "make_work", side_effect=made) as works,
        mock.patch.object(Replay, "_lead_found", autospec=True, side_effect=found) as leads,
    ):
        together = replay.compare(trace, schemes=["ideal", "nvls", "deepep", "tutel"], layer=12, tune=False)
    assert works.call_count == 1
    assert {one.launch for one in together.results} == {"eager", "graph"}
    assert leads.call_count == 2
    for one in together.results:
        alone = replay.run(trace, scheme=one.scheme.name, layer=12, tune=False)
        assert one.layers == alone.layers


@pytest.mark.parametrize("scheme", ["megatron", "fastermoe"])
def test_calls_of_a_gemm_are_planned_together(trace: RoutingTrace, scheme: str) -> None:
    planned = calls.plan_tiles
    with mock.patch.object(calls, "plan_tiles", side_effect=planned) as plans:
        replay.run(trace, scheme=scheme, layer=12, tune=False, launch="eager")
    assert plans.call_count == 2
