"""Commands as a shell runs them, in this process, and all that there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from replay.cli.app import app, main


def end_of(*words: object) -> int:
    """The exit code of a command; what it prints is the process's."""
    with pytest.raises(SystemExit) as end:
        main([str(word) for word in words])
    return int(end.value.code or 0)


def invoke(*words: object) -> Any:
    """What click says of a command: exit code, output, exception."""
    return CliRunner().invoke(app, [str(word) for word in words])


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of a group of click's, depth first."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*before, name))
        else:
            yield (*before, name), one
