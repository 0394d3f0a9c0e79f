"""What is said while the engine is compiled, and to whom."""

from __future__ import annotations

import sys
import time

import pytest

from replay.cli.screen import progress
from replay.engine import compilation, engine


@pytest.mark.parametrize("is_watched", [True, False])
def test_compiling_is_announced_once_to_someone_who_watches(is_watched: bool, monkeypatch, capsys) -> None:
    monkeypatch.setattr(compilation, "_listeners", [])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_watched)
    compiled = []

    def compile_ahead(say_how_far=None) -> None:
        compiled.append(True)
        for number in (1, 2) if say_how_far is not None else ():
            say_how_far(number, 2)

    monkeypatch.setattr(engine, "compile_ahead", compile_ahead)
    progress(1, "layer").close()
    assert capsys.readouterr().err == ""  # nothing is compiled yet
    compilation.announce()
    compilation.announce()
    said = f"{compilation.NOTICE}\n\r1 of 2 parts\r2 of 2 parts\n"
    assert capsys.readouterr().err == (said if is_watched else "")
    assert compiled == [True]


def test_where_nobody_watches_a_line_a_minute_says_how_far_it_is_and_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    with progress(100, "step") as bar:
        bar.resume(40, 100)  # in no time
        for _ in range(25):
            now += 5
            bar.update()
    said = capsys.readouterr().err.splitlines()
    assert said == ["52/100 steps, about 04:00 left", "64/100 steps, about 03:00 left"]
