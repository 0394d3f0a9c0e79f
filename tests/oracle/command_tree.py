"""Every command of an application, however deep."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def commands(group: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(words, command) of a group of click's, depth first."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*before, name))
        else:
            yield (*before, name), one
