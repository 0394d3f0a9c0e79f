"""Printing for people."""

from __future__ import annotations

import sys
from typing import Any

from replay.cli.progress import ProgressBar
from tracegen.shared import screen


def show(*contents: Any) -> None:
    """Print one below the other, as wide as the terminal or `screen.piped_width`."""
    screen.show(*contents, sep="\n")


def tell(line: str) -> None:
    """Print a line beside what a command prints."""
    print(line, file=sys.stderr, flush=True)


def progress(total: int, unit: str) -> ProgressBar:
    """Make a bar over replays that take longer than a second; parameters as of `ProgressBar`.

    It also says when the engine has to be compiled first, which no bar would show.
    """
    announce_compiling()
    return ProgressBar(total, unit)


def announce_compiling() -> None:
    """Have the engine compiled on all processors, once it has to be; say so if somebody watches.

    In any case, name a folder of compiled kernels that cannot be trusted.
    """
    from replay.engine import compilation

    compilation.when_left_aside(tell)
    compilation.when_compiling(_compile)


def _compile() -> None:
    from replay.engine import compilation, engine

    if not sys.stderr.isatty():
        engine.compile_ahead()
        return
    tell(compilation.NOTICE)
    engine.compile_ahead(
        lambda number, total: print(f"\r{number} of {total} parts", end="", file=sys.stderr, flush=True)
    )
    print(file=sys.stderr)
