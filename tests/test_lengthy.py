"""The lists of tests that CI alone runs, or nobody before a release, for their time."""

from __future__ import annotations

from pathlib import Path

import cpu_times

HERE = Path(__file__).parent


def test_all_that_are_left_out_exist() -> None:
    lines = (HERE / "lengthy.txt").read_text("utf-8").split()
    assert lines == sorted(set(lines)) and len(lines) > 50 and cpu_times.KEPT.isdisjoint(lines)
    for name in (*lines, *cpu_times.KEPT):
        file, *_, function = name.split("::")
        assert f"def {function}(" in (HERE.parent / file).read_text("utf-8"), name


def test_cases_that_wait_for_a_release_are_of_functions_that_exist() -> None:
    lines = (HERE / "costly.txt").read_text("utf-8").splitlines()
    assert lines == sorted(set(lines)) and len(lines) > 50
    for function in {line.partition("[")[0] for line in lines}:
        file, *_, name = function.split("::")
        assert f"def {name}(" in (HERE.parent / file).read_text("utf-8"), function


def test_the_cheapest_cases_of_a_function_stay_and_one_alone_stays_longer() -> None:
    cases = [("f[a]", 5.0), ("f[b]", 1.0), ("f[c]", 3.0), ("g", 19.0), ("h", 21.0), ("k[x]", 19.0), ("k[y]", 19.5)]
    assert cpu_times.costly(cases) == ["f[a]", "h", "k[y]"]
