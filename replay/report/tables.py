"""Tables whose columns say what stands in them, and units that several have."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from replay.report.words import WORDS
from tracegen.shared.display.content import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tracegen.shared.display.content import Cell

MB = 1e6
GB = 1e9
US_PER_MS = 1e3

Thing = TypeVar("Thing")


def time_unit(longest_us: float) -> tuple[str, float]:
    """Unit in which times up to the longest have few digits, and its microseconds."""
    return ("s", 1e6) if longest_us >= 1e6 else ("ms", US_PER_MS)


def word_column(name: str, unit: str = "", form: str = "", rank: int = 0, word: str = "") -> Column:
    """Make a column that is explained by the line in `WORDS` of its name, or of another word that is there."""
    return Column(name, unit, form, rank, WORDS[word or name])


def named_table(
    name: str,
    title: str,
    columns: Sequence[Column],
    rows: Iterable[tuple[str, Iterable[Cell]]],
    notes: Sequence[str] = (),
    head: str = "scheme",
) -> Table:
    """Make a table of rows with a name, which stands under the head, and the cells behind it."""
    cells = [(label, *row) for label, row in rows]
    return Table(name, title, [Column(head), *columns], cells, notes)


def table(
    name: str,
    title: str,
    things: Iterable[Thing],
    *columns: tuple[Column, Callable[[Thing], Cell]],
    labels: Sequence[str] | None = None,
    notes: Sequence[str] = (),
    head: str = "scheme",
) -> Table:
    """Make a table with a row for each thing.

    Parameters
    ----------
    name, title, notes
        As `Table` has them.
    columns
        Each with what stands in it: a function of the thing.
    labels
        Names of the things, which stand first; None for no such column.
    head
        What the labels are.
    """
    heads = [column for column, _ in columns]
    rows = [tuple(cell(thing) for _, cell in columns) for thing in things]
    if labels is None:
        return Table(name, title, heads, rows, notes)
    return named_table(name, title, heads, zip(labels, rows, strict=True), notes, head)
