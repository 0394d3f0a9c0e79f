"""Proposed hardware that a machine lacks: a star behind names, and what it means."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.experiments.base.names import LACKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pydantic import JsonValue


def lacking_of(scheme: Mapping[str, JsonValue]) -> list[str]:
    """List the hardware that a scheme proposes and the machine of its result lacks.

    Parameters
    ----------
    scheme
        The scheme as `replay.schemes.base.AnyScheme.describe` gave it. Older results do not say
        what their machines lacked; all that they propose counts.
    """
    found = scheme.get("lacking", scheme.get("proposes"))
    return [str(one) for one in found] if isinstance(found, list) else []


def starred(name: str, *schemes: Mapping[str, JsonValue]) -> str:
    """Put a star behind the name of what needs hardware that its machine lacks."""
    return name + (LACKING if any(map(lacking_of, schemes)) else "")


def star_notes(system: str, lacking: Iterable[str]) -> list[str]:
    """Say what the star means, in one line; none where nothing is lacking."""
    found = sorted(set(lacking))
    return [f"* proposed hardware, which {system} lacks: {', '.join(found)}."] if found else []
