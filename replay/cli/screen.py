"""Printing for people."""

from __future__ import annotations

import sys
from typing import Any


def show(content: Any) -> None:
    """Print as wide as the terminal, and wide enough for the tables where there is none."""
    from rich.console import Console

    from replay.report.text import WIDTH

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    console.print(content)


def progress(total: int, unit: str) -> Any:
    """Make a bar over replays, if someone is watching and it takes longer than a second.

    It also says when the engine has to be compiled first, which no bar would show.
    """
    from tqdm import tqdm

    announce_compiling()
    return tqdm(total=total, unit=unit, delay=1, leave=False, disable=not sys.stderr.isatty())


def announce_compiling() -> None:
    """Say, where somebody is watching, that the engine is being compiled, if it has to be."""
    from replay.graph import compilation

    if sys.stderr.isatty():
        compilation.when_compiling(lambda: print(compilation.NOTICE, file=sys.stderr))
