"""Printing for people."""

from __future__ import annotations

import sys
from typing import Any

from replay.cli.progress import Progress
from tracegen.shared import screen


def show(*contents: Any) -> None:
    """Print one below the other, as wide as the terminal or `screen.piped_width`."""
    screen.show(*contents, sep="\n")


def tell(line: str) -> None:
    """Print a line beside what a command prints."""
    print(line, file=sys.stderr, flush=True)


def progress(total: int, unit: str) -> Progress:
    """Make a bar over replays that take longer than a second; parameters as of `Progress`.

    It also says when the engine has to be compiled first, which no bar would show.
    """
    announce_compiling()
    return Progress(total, unit)


def announce_compiling() -> None:
    """Say, where somebody is watching, that the engine is being compiled, if it has to be.

    Whether somebody is or not, say which folder of compiled kernels cannot be trusted.
    """
    from replay.engine import compilation

    compilation.when_left_aside(tell)
    if sys.stderr.isatty():
        compilation.when_compiling(lambda: print(compilation.NOTICE, file=sys.stderr))
