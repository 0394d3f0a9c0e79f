"""Tables as HTML: headings that a script can make sort, values that it can sort by."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracegen.shared.display.content import Cell, Column, Table
from tracegen.shared.display.html.markup import prose, shape, tag, text

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW = 8
"""Rows up to which a table has no box to filter them."""
BROAD = 11
"""Columns up to which a table has letters of the usual size on paper."""
LONG, LONG_WORD = 32, 44
"""Letters from which on a text, and a word without a space, breaks over lines."""
TALL = 30
"""Rows up to which a table is there whole; on a screen, more scroll below their headings."""
SCROLLS = "{} rows; they scroll."
ON_PAPER = "A table of {} columns, in small print; --tables writes it as a file of its own."


def table(content: Table, identity: str, *, is_main: bool = False) -> str:
    """Write a table of the page.

    Parameters
    ----------
    content
        What is in it.
    identity
        Of its element; no other has the same.
    is_main
        Whether it is printed on paper even in a folded section.
    """
    is_broad = len(content.columns) > BROAD
    count = tag("output", class_="count", for_=identity)
    box = shape("input", type="search", aria_controls=identity, placeholder="rows with this text")
    sift = tag(
        "label",
        tag("span", "Filter"),
        box,
        count,
        class_="filter",
        hidden=True,
    )
    return tag(
        "div",
        tag("h3", prose(content.title), id=f"{identity}-title"),
        sift if len(content.rows) > FEW else "",
        _scroll_box(_grid(content, identity), content.title, is_tall=len(content.rows) > TALL),
        tag("p", text(SCROLLS.format(len(content.rows))), class_="note screen") if len(content.rows) > TALL else "",
        *(tag("p", prose(note), class_="note") for note in content.notes),
        tag("p", text(ON_PAPER.format(len(content.columns))), class_="note paper") if is_broad else "",
        class_="sheet" + " broad" * is_broad + " main" * is_main,
    )


def plain_table(content: Table) -> str:
    """Write a table for reading alone: it cannot be sorted."""
    return _scroll_box(tag("table", *_rows(content, is_sortable=False)), f"Numbers: {content.title}")


def _scroll_box(grid: str, title: str, *, is_tall: bool = False) -> str:
    """A box that scrolls, also by keyboard, where the table is wider than the page or very long."""
    kind = "scroll tall" if is_tall else "scroll"
    return tag("div", grid, class_=kind, role="region", tabindex="0", aria_label=title)


def _grid(content: Table, identity: str) -> str:
    return tag(
        "table",
        *_rows(content, is_sortable=True),
        id=identity,
        class_="sortable",
        aria_labelledby=f"{identity}-title",
    )


def _rows(content: Table, *, is_sortable: bool) -> list[str]:
    heads = "".join(_heading(column) for column in content.columns)
    texts = content.texts()
    lengths = [_length(column, [row[k] for row in texts]) for k, column in enumerate(content.columns)]
    body = "".join(
        tag(
            "tr",
            *(
                _cell(column, row[k], written[k], lengths[k], is_first=k == 0, has_key=is_sortable)
                for k, column in enumerate(content.columns)
            ),
        )
        + "\n"
        for row, written in zip(content.rows, texts, strict=True)
    )
    return [tag("thead", tag("tr", heads)), tag("tbody", body)]


def _heading(column: Column) -> str:
    unit = f" {tag('small', text(column.unit))}" if column.unit else ""
    return tag(
        "th",
        text(column.name) + unit,
        scope="col",
        class_=None if column.is_text else "n",
        data_says=column.says or None,
        title=column.says or None,
    )


def _length(column: Column, texts: Sequence[str]) -> str:
    """Class of the column's long texts: where only few are long, it leaves the width to others."""
    is_short = column.is_text and sum(map(len, texts)) < LONG * len(texts)
    return "long few" if is_short else "long"


def _cell(column: Column, value: Cell, written: str, long: str, *, is_first: bool, has_key: bool) -> str:
    """Write a cell; a number that is to be sorted has its value beside its text."""
    if column.is_text:
        length = long if len(written) > (LONG if " " in written else LONG_WORD) else None
        if is_first:
            return tag("th", text(written), scope="row", class_=length)
        return tag("td", text(written), class_=length or "t")
    key = None
    if has_key and isinstance(value, int | float) and math.isfinite(value):
        key = f"{value:.6g}"
    return tag("td", text(written), data_v=key)
