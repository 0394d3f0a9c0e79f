"""Tests that go through many cases: which of them ran, failed and were skipped."""

from __future__ import annotations

import pytest
from loops import every


def test_cases_behind_a_skipped_one_run() -> None:
    ran = []

    @every("case", [1, 2, 3])
    def test(case: int) -> None:
        if case == 1:
            pytest.skip("not this one")
        ran.append(case)
        assert case != 3, "three"

    with pytest.raises(pytest.fail.Exception, match=r"1 of 3 cases\n\[3\] AssertionError: three"):
        test()
    assert ran == [2, 3]


def test_all_cases_skipped_are_a_skipped_test() -> None:
    @every("case", [1, 2])
    def test(case: int) -> None:
        pytest.skip(f"not {case}")

    with pytest.raises(pytest.skip.Exception, match=r"\[1\] not 1; \[2\] not 2"):
        test()
