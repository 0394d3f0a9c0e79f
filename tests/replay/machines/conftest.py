"""Commands, as tests of this folder call them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
from command_line import end_of


class Said(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run a command in this process."""

    def run(words: str) -> Said:
        capsys.readouterr()
        end = end_of(*words.split())
        said = capsys.readouterr()
        code = end
        assert isinstance(code, int)
        return Said(code, said.out, said.err)

    return run
