"""From a page to the text of an HTML file."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tracegen.display.content import Page, Table


def document(page: Page) -> str:
    """Write a page as one HTML file.

    Parameters
    ----------
    page
        What there is to see. Its texts may come from strangers; none of them becomes markup.
    """
    return "".join(_lines(page))


def _lines(page: Page) -> Iterator[str]:
    title = escape(page.title)
    yield '<!doctype html>\n<html lang="en">\n'
    yield f'<head><meta charset="utf-8"><title>{title}</title></head>\n'
    yield f"<body><h1>{title}</h1>\n<p>{escape(page.summary)}</p>\n"
    for table in page.tables():
        yield _table(table)
    yield "</body></html>\n"


def _table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column.heading)}</th>' for column in table.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>\n"
        for row in table.texts()
    )
    return f"<table><caption>{escape(table.title)}</caption><tr>{head}</tr>\n{rows}</table>\n"
