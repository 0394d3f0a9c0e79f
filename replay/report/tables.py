"""Form of a table, and cells that several tables have."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.run.result import Result


def text_table(title: str, columns: Sequence[str], num_left: int = 1) -> Table:
    """Make an empty table.

    Parameters
    ----------
    title
        Line above the table.
    columns
        Headings, with units.
    num_left
        Number of first columns that are aligned to the left; the others are to the right.
    """
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index < num_left else "right", no_wrap=True)
    return table


def mb(nbytes: float) -> str:
    """Megabytes (10^6 bytes) with two decimals."""
    return f"{nbytes / 1e6:,.2f}"


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
