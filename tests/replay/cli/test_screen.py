"""What is said while the engine is compiled, and to whom."""

from __future__ import annotations

import sys

import pytest

from replay.cli.screen import progress
from replay.engine import compilation, engine


@pytest.mark.parametrize("is_watched", [True, False])
def test_compiling_is_announced_once_to_someone_who_watches(
    is_watched: bool, monkeypatch, capsys
) -> None:
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
