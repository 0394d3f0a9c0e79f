"""Proposed hardware that a machine lacks: a star behind names, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import LACKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from replay.experiments.base.result import SchemeDescription


def starred(name: str, *schemes: SchemeDescription) -> str:
    """Put a star behind the name of what needs hardware that its machine lacks."""
    return name + (LACKING if any(one.lacking for one in schemes) else "")


def star_notes(system: str, schemes: Iterable[SchemeDescription]) -> list[str]:
    """Say what the star means, in one line; none where nothing is lacking."""
    found = sorted({what for one in schemes for what in one.lacking})
    return [f"* proposed hardware, which {system} lacks: {', '.join(found)}."] if found else []


def proposed_text(scheme: SchemeDescription) -> str:
    """List what a scheme proposes, with a star behind each that the machine lacks."""
    marks = (f"{what} {LACKING}" if what in scheme.lacking else what for what in scheme.proposes)
    return ", ".join(marks)
