"""Least squares on relative errors: what is found, what lines determine, how well."""

from __future__ import annotations

import numpy as np
import pytest

from replay.studies.machines import least_squares

SIZES = np.array([1.0, 4.0, 16.0, 64.0])


def errors_of(true):
    """Errors of a time that has a start and a rate, and of a share that none can exceed."""

    def predicted(values):
        time = values["a.start_us"] + SIZES / values["a.rate"]
        return np.append(time, 1 / values["a.efficiency"])

    measured = predicted(true)
    return lambda values: predicted({**true, **values}) / measured - 1


def test_constants_are_found_again():
    true = {"a.start_us": 3.0, "a.rate": 5.0, "a.efficiency": 0.8}
    found = least_squares.fit_values({"a.start_us": 4.0, "a.rate": 3.5, "a.efficiency": 0.9}, errors_of(true), rounds=8)
    assert found == pytest.approx(true, rel=0.01)


def test_a_share_stays_one():
    errors = errors_of({"a.start_us": 3.0, "a.rate": 5.0, "a.efficiency": 1.2})
    assert least_squares.fit_values({"a.efficiency": 0.98}, errors) == {"a.efficiency": 1.0}


def test_slopes_by_hand():
    # A time 1/e moves by 1/1.05 - 1 with 5 % more, so by 20 times that with all of it.
    errors = errors_of({"a.start_us": 3.0, "a.rate": 5.0, "a.efficiency": 0.5})
    values = {"a.efficiency": 0.5}
    found = least_squares.slopes(errors, values, errors(values))
    assert found[:, 0] == pytest.approx([0, 0, 0, 0, 20 * (1 / 1.05 - 1)])


def test_deviations_by_hand():
    matrix = np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 2.0]])
    assert least_squares.deviations(matrix, 0.1) == pytest.approx([0.1, 0.1 / 8**0.5])
    both = np.array([[1.0, 1.0], [1.0, 1.0]])  # nothing tells them apart
    assert not np.isfinite(least_squares.deviations(both, 0.1)).any()


def test_what_lines_determine():
    # One line that is 5 % off leaves a constant 5 % / slope off: 20 % with a slope of a quarter.
    for slope, kept in ((0.26, ["x"]), (0.24, []), (-0.26, ["x"]), (0.0, [])):
        assert least_squares.keep_determined(["x"], np.array([[slope]])) == kept
    # Ten such lines know it by a third of that.
    assert least_squares.keep_determined(["x"], np.full((10, 1), 0.1)) == ["x"]
    # Of two that move together the one that lines show more is kept.
    twins = np.array([[0.5, 1.0], [0.5, 1.0]])
    assert least_squares.keep_determined(["x", "y"], twins) == ["y"]
    # What no line shows goes, whatever the others are.
    assert least_squares.keep_determined(["x", "y"], np.array([[1.0, 0.0], [0.9, 0.0]])) == ["x"]
    assert least_squares.keep_determined(["x"], np.zeros((0, 1))) == []
