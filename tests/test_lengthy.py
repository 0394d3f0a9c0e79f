"""The list of test functions that are extended for their time alone."""

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
