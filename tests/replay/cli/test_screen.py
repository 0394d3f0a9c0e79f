"""What is said while the engine is compiled, and to whom."""

from __future__ import annotations

import sys

import pytest

from replay.cli.screen import progress
from replay.engine import compilation


@pytest.mark.parametrize("is_watched", [True, False])
def test_compiling_is_announced_once_to_someone_who_watches(
    is_watched: bool, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(compilation, "_listeners", [])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_watched)
    progress(1, "layer").close()
    assert capsys.readouterr().err == ""  # nothing is compiled yet
    compilation.announce()
    compilation.announce()
    assert capsys.readouterr().err.count(compilation.NOTICE) == is_watched
