"""Times of MoE layers between numbers of tokens that are replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given

from replay.experiments.serve.layers import MOST_CUTS, Moe, ServedLayers
from tests.replay.serve.serving import times

MOST = 1000


class Known(ServedLayers):
    """Layers whose times are a function of the tokens."""

    def __init__(self, time: Callable[[int], float], tolerance: float) -> None:
        nothing = cast("Any", None)
        super().__init__(nothing, nothing, "decode", nothing, 0, tolerance, MOST)
        self.time = time
        self.asked: set[int] = set()

    @property
    def is_interleaved(self) -> bool:
        return False

    def _replay_layers(self, tokens: int, positions: int) -> Moe:
        assert 1 <= tokens <= MOST
        self.asked.add(tokens)
        return Moe(self.time(tokens), 2.0 * self.time(tokens))


@given(st.floats(1, MOST))
def test_a_straight_line_is_met_with_three_replays(tokens: float) -> None:
    line = Known(lambda count: 100.0 + 3 * count, 1e-9)
    assert line.near(tokens, 0).experts == pytest.approx(100 + 3 * tokens)
    assert len(line.asked) <= 3
    assert line.largest_error < 1e-9


@given(st.floats(1, MOST), st.sampled_from([0.001, 0.01, 0.1]))
def test_a_curve_is_met_as_well_as_its_middles_say(tokens: float, tolerance: float) -> None:
    curve = Known(lambda count: float(count) ** 2, tolerance)
    found = curve.near(tokens, 0).experts
    # A line is off by a quarter of its width squared in the middle of a parabola, and by a quarter
    # of that where the middle is exact too.
    low = 1 << int(tokens).bit_length() - 1
    assert -1e-6 <= found - tokens**2 <= curve.largest_error * (2 * low) ** 2 / 4 + 0.5
    if low >= 2**6:  # wide enough to be cut as often as it may be
        assert curve.largest_error <= 1.1 * max(tolerance, 1 / 4 / 4**MOST_CUTS)


def test_finer_lines_take_more_replays_and_name_smaller_errors() -> None:
    errors, replays = [], []
    for tolerance in (0.5, 0.01, 0.001):
        curve = Known(lambda count: float(count) ** 2, tolerance)
        curve.near(700, 0)
        errors.append(curve.largest_error)
        replays.append(len(curve.asked))
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 4 * errors[-1] > 0
    assert replays[0] == 3 < replays[-1] <= 3 + MOST_CUTS


def test_no_replay_has_more_tokens_than_there_are_or_none() -> None:
    curve = Known(float, 0.01)
    assert curve.near(0.25, 0) == curve.at(1, 0)
    assert curve.near(5000.0, 0) == curve.at(MOST, 0)
    assert max(curve.asked) == MOST
    curve.most = 600
    assert curve.near(600.0, 0) == curve.at(600, 0)


def test_exact_replays_lie_on_the_line_of_their_neighbours_where_they_are_cut() -> None:
    layers = times(most=256).layers["decode"]
    middle, end = layers.at(96, 0), layers.at(128, 0)
    found = layers.near(112, 0)
    assert found.experts == pytest.approx((middle.experts + end.experts) / 2)
    assert layers.replays == len({64, 96, 128} | {tokens for tokens, _ in layers._exact})
