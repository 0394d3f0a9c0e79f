"""``moereplay words``: headings of tables, explained."""

from __future__ import annotations

from typing import Annotated

import typer


def words(
    word: Annotated[
        list[str] | None, typer.Argument(help="Headings to explain; one of several words in quotes [all].")
    ] = None,
) -> None:
    """Explain the headings of tables, one line each."""
    from replay.errors import unknown
    from replay.report.words import WORDS, meanings

    found: dict[str, str] = {}
    for one in word or WORDS:
        lines = meanings(one)
        if not lines:
            raise unknown("word", one, [each for each in WORDS if " " not in each])
        found |= lines
    for name, meaning in found.items():
        print(f"{name}: {meaning}.")
