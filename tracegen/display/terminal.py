"""Tables on a screen of any width: columns are left out, cells are never cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.cells import cell_len
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

GAP = 2
"""Characters between two columns, and at either edge of a table."""


def fitting(widths: Sequence[int], ranks: Sequence[int], width: int) -> list[int]:
    """Choose the columns that are shown.

    Parameters
    ----------
    widths, ranks
        Of each column, in characters without the gaps; see `Column.rank`.
    width
        Characters that there are.

    Returns
    -------
    Places of the columns that stay, in order: all, or as many as there is room for.
    """
    kept = list(range(len(widths)))
    for place in sorted(kept, key=lambda one: (-ranks[one], -one)):
        if _width([widths[one] for one in kept]) <= width or ranks[place] == 0:
            break
        kept.remove(place)
    return kept


def _width(widths: Sequence[int]) -> int:
    """Characters of a line of a table with such columns."""
    return sum(widths) + GAP * (len(widths) + 1)


def grid(
    headings: Sequence[str],
    texts: Sequence[Sequence[str]],
    ranks: Sequence[int],
    are_texts: Sequence[bool],
    width: int,
) -> tuple[Table, list[str]]:
    """Draw rows under headings.

    Parameters
    ----------
    headings, texts
        Of each column, and [row][column].
    ranks, are_texts
        Of each column: see `Column.rank`; texts stand to the left, numbers to the right.
    width
        Characters that a line may have. Where even the columns of rank 0 do not fit, their texts
        are broken into lines.

    Returns
    -------
    The table, and the headings of the columns that were left out.
    """
    widths = [
        max(map(cell_len, [heading, *(row[place] for row in texts)]))
        for place, heading in enumerate(headings)
    ]
    kept = fitting(widths, ranks, width)
    fits = _width([widths[one] for one in kept]) <= width
    form = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 1), collapse_padding=True)
    for place in kept:
        form.add_column(
            Text(headings[place]),
            justify="left" if are_texts[place] else "right",
            no_wrap=fits or not are_texts[place],
            overflow="fold",
        )
    for row in texts:
        form.add_row(*(Text(row[place]) for place in kept))
    return form, [heading for place, heading in enumerate(headings) if place not in kept]
