"""Scales: ticks are round, within the ends and few; places go with values."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loops import every

from tracegen.shared.display.html.scales import figures, linear_ticks, log_ticks, scale, tick_labels

FEW = settings(max_examples=40)
NUMBERS = st.floats(-1e12, 1e12).map(lambda x: round(x, 6))
COUNTS = st.integers(2, 12)


def is_round(value: float) -> bool:
    """Whether a positive number is 1, 2 or 5 times a power of ten, to a double's precision."""
    power = math.floor(math.log10(value) + 1e-9)
    return any(math.isclose(value, one * 10.0**power, rel_tol=1e-9) for one in (1, 2, 5))


@FEW
@given(NUMBERS, NUMBERS, COUNTS)
def test_linear_ticks_lie_within_and_are_round_and_few(a: float, b: float, most: int) -> None:
    low, high = sorted((a, b))
    assume(high - low > 1e-6 * max(abs(low), abs(high)))
    ticks = linear_ticks(low, high, most)
    slack = 1e-8 * (high - low)
    assert 1 <= len(ticks) <= most
    assert all(low - slack <= one <= high + slack for one in ticks)
    steps = [after - before for before, after in itertools.pairwise(ticks)]
    if steps:
        step = min(steps)
        assert all(math.isclose(one, step, rel_tol=1e-3) for one in steps)
        whole = Fraction(f"{step:.3g}")
        assert is_round(float(whole))
        assert all(abs(one / float(whole) - round(one / float(whole))) < 1e-3 for one in ticks)


@FEW
@given(NUMBERS, st.floats(1e-3, 1e9), COUNTS)
def test_no_finer_round_step_would_do(low: float, span: float, most: int) -> None:
    assume(span > 1e-6 * abs(low))
    ticks = linear_ticks(low, low + span, most)
    if len(ticks) > 1:
        step = ticks[1] - ticks[0]
        # The next finer step is at least 2 and at most 2.5 times finer.
        assert span / (step / 2) + 1 > most - 1


@FEW
@given(st.floats(-15, 15), st.floats(0.01, 20), COUNTS)
def test_logarithmic_ticks_lie_within_and_are_few(power: float, decades: float, most: int) -> None:
    low, high = 10.0**power, 10.0 ** (power + decades)
    ticks = log_ticks(low, high, most)
    assert 1 <= len(ticks) <= most
    assert all(low * (1 - 1e-6) <= one <= high * (1 + 1e-6) for one in ticks)
    assert ticks == sorted(set(ticks))
    if decades >= 1:
        assert all(is_round(one) for one in ticks)


def test_ticks_of_a_few_decades() -> None:
    assert log_ticks(1, 100, 9) == [1, 2, 5, 10, 20, 50, 100]
    assert log_ticks(1, 1e4, 6) == [1, 10, 100, 1000, 1e4]
    assert log_ticks(1, 1e12, 5) == [1, 1e3, 1e6, 1e9, 1e12]


@FEW
@given(st.lists(NUMBERS, min_size=1, max_size=20), COUNTS, st.booleans())
def test_a_scale_shows_all_values(values: list[float], most: int, from_zero: bool) -> None:
    across = scale(values, 10, 210, most, from_zero=from_zero)
    slack = 1e-8 * (across.high - across.low)
    assert across.low - slack <= min(values) <= max(values) <= across.high + slack
    assert all(10 - 1e-6 <= across(one) <= 210 + 1e-6 for one in [*values, *across.ticks])
    if from_zero:
        assert across.low <= 0 <= across.high


@FEW
@given(st.lists(st.floats(1e-12, 1e12), min_size=1), COUNTS)
def test_equal_factors_are_equally_far_apart_on_a_logarithmic_scale(values, most) -> None:
    across = scale([*values, 0.0, -1.0], 200, 0, most, is_log=True)
    one, other = across.low, across.high
    middle = math.sqrt(one) * math.sqrt(other)
    assert across(middle) == pytest.approx(100, abs=1e-6)
    assert not across.has(0.0) and not across.has(-1.0)


@every("values", [[], [math.nan], [math.inf], [0.0], [5.0], [-5.0, -5.0]])
@every("is_log", [False, True])
@every("from_zero", [False, True])
def test_a_scale_of_nothing_or_of_one_value_is_a_scale(values, is_log, from_zero) -> None:
    across = scale(values, 0, 100, 5, is_log=is_log, from_zero=from_zero)
    assert across.high > across.low
    assert all(0 <= across(one) <= 100 for one in across.ticks)


@FEW
@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=9), st.booleans(), COUNTS)
def test_every_label_says_its_tick(values: list[float], is_log: bool, most: int) -> None:
    across = scale(values, 0, 1, most, is_log=is_log)
    raised = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")
    labels = across.labels()
    assert len(set(labels)) == len(across.ticks)
    for value, label in zip(across.ticks, labels, strict=True):
        factor, ten, power = label.replace(",", "").replace("×", "").partition("10")
        read = (
            float(label.replace(",", ""))
            if "⁻" not in label and not _has_power(label)
            else (float(factor or 1) * 10.0 ** int(power.translate(raised)))
        )
        assert read == pytest.approx(value, rel=1e-6), (ten, label)


def _has_power(label: str) -> bool:
    return any(one in label for one in "⁰¹²³⁴⁵⁶⁷⁸⁹")


def test_labels_of_one_axis_have_the_same_digits() -> None:
    assert tick_labels([0, 0.25, 0.5, 0.75]) == ["0", "0.25", "0.50", "0.75"]
    assert tick_labels([0, 50_000, 100_000]) == ["0", "50,000", "100,000"]
    assert tick_labels([0.1, 1, 10], is_log=True) == ["0.1", "1", "10"]
    assert tick_labels([-2e7, 0]) == ["-2×10⁷", "0"]


@every(
    ("values", "written"),
    [
        ([120.34], "120.3"),
        ([12.34, 1], "12.3"),
        ([0.1234], "0.123"),
        ([12345.6], "12,346"),
        ([], "0"),
        ([math.inf, 2.0], "2.00"),
    ],
)
def test_numbers_have_three_figures_or_four(values: list[float], written: str) -> None:
    largest = max((one for one in values if math.isfinite(one)), default=0)
    assert format(largest, figures(values)) == written
