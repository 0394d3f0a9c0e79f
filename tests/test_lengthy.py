"""The list of lengthy tests, which `check.sh quick` leaves out."""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent


def test_all_that_are_left_out_exist() -> None:
    lines = (HERE / "lengthy.txt").read_text("utf-8").split()
    named = [line.removeprefix("--deselect=").split("::") for line in lines]
    assert named == sorted(named) and len(named) > 50
    gone = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (HERE.parent / file).read_text("utf-8")]
    assert not gone
