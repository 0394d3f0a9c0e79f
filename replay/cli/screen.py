"""Printing for people."""

from __future__ import annotations

from typing import Any


def show(content: Any) -> None:
    """Print as wide as the terminal, and wide enough for the tables where there is none."""
    from rich.console import Console

    from replay.report.text import WIDTH

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH)
    console.print(content)
