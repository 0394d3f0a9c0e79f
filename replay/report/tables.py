"""Cells and columns that several tables have."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.run.result import Result

MB = 1e6
GB = 1e9


def row_names(results: Sequence[Result]) -> list[str]:
    """Name each result by its scheme, and by its placement where there are several.

    A star says that the system lacks what the scheme proposes.
    """
    names = [result.scheme.name + ("*" if result.scheme.lacking else "") for result in results]
    if len({result.placement for result in results}) == 1:
        return names
    placed = [placement_name(result.spec.placement) for result in results]
    return [f"{name}, {placement}" for name, placement in zip(names, placed, strict=True)]


def placement_name(spec: str) -> str:
    """A placement's specification without the folder of its file."""
    kind, _, argument = spec.partition(":")
    return PurePath(argument).name if kind == "file" else spec
