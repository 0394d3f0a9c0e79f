"""Tables on a screen of any width: columns are left out, cells are never cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from rich import box
from rich.align import Align
from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

GAP = 2
"""Characters between two columns."""

READABLE = 24
"""Characters of a line of text that is still read easily."""

NARROWEST = 8
"""Characters of a line of text where there is no room for more."""


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


def share_width(least: Sequence[int], most: Sequence[int], width: int) -> list[int]:
    """Share a line among columns.

    Parameters
    ----------
    least, most
        Characters that each column must have, and that it has a use for.
    width
        Characters that there are, at least `least` with the gaps.

    Returns
    -------
    Characters of each column. Those that lack least get all they have a use for first.
    """
    found = list(least)
    room = width - _width(least)
    for place in sorted(range(len(least)), key=lambda one: most[one] - least[one]):
        given = min(room, most[place] - least[place])
        found[place] += given
        room -= given
    return found


def _width(widths: Sequence[int]) -> int:
    """Characters of a line of a table with such columns."""
    return sum(widths) + GAP * (len(widths) - 1)


def grid(
    headings: Sequence[str],
    texts: Sequence[Sequence[str]],
    ranks: Sequence[int],
    are_texts: Sequence[bool],
    width: int,
) -> tuple[RenderableType, list[str]]:
    """Draw rows under headings.

    Where there is no room, headings are broken into lines first, then long texts, then columns are
    left out, and at last rows are written as lists.

    Parameters
    ----------
    headings, texts
        Of each column, and [row][column].
    ranks, are_texts
        Of each column: see `Column.rank`; texts stand to the left, numbers to the right.
    width
        Characters that a line may have.

    Returns
    -------
    The table, and the headings of the columns that were left out.
    """
    cells = [max((_longest(row[place]) for row in texts), default=0) for place in _of(headings)]
    words = [max(map(cell_len, heading.split()), default=0) for heading in headings]
    most = [max(*both) for both in zip(map(cell_len, headings), cells, strict=True)]
    for line in (READABLE, NARROWEST):
        least = [
            max(words[place], min(cells[place], line) if are_texts[place] else cells[place]) for place in _of(headings)
        ]
        kept = fitting(least, ranks, width)
        if _width([least[one] for one in kept]) <= width:
            break
    missing = [headings[place] for place in _of(headings) if place not in kept]
    least, cells, most = ([of[place] for place in kept] for of in (least, cells, most))
    if _width(least) > width:
        return _lists([headings[place] for place in kept], texts, kept), missing
    form = Table(box=box.SIMPLE_HEAD, padding=(0, GAP - 1, 0, 0), show_edge=False, pad_edge=False)
    whole = [max(*both) for both in zip(least, cells, strict=True)]
    widths = share_width(share_width(least, whole, width), most, width)
    for place, given in zip(kept, widths, strict=True):
        side: Literal["left", "right"] = "left" if are_texts[place] else "right"
        form.add_column(
            Align(Text(headings[place], justify=side), side, vertical="bottom"),
            justify=side,
            width=given,
            overflow="fold",
        )
    for row in texts:
        form.add_row(*(Text(row[place]) for place in kept))
    return form, missing


def _of(columns: Sequence[str]) -> range:
    return range(len(columns))


def _longest(text: str) -> int:
    """Characters of its longest line."""
    return max(map(cell_len, text.splitlines()), default=0)


def _lists(headings: Sequence[str], texts: Sequence[Sequence[str]], places: Sequence[int]) -> RenderableType:
    """Rows as lists of headings with cells, for a screen on which no table has room."""
    return Group(
        *(
            Text("\n".join(f"{heading}: {row[place]}" for heading, place in pairs) + "\n")
            for pairs in [list(zip(headings, places, strict=True))]
            for row in texts
        )
    )
