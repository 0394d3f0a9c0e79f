"""Tables as files for other programs: CSV, Markdown, LaTeX and Parquet.

CSV and Parquet have every digit; Markdown and LaTeX are for people, and have the digits of the
screen. A text stays a text in each of them: none becomes a formula of a spreadsheet, a command of
LaTeX or markup.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegen.shared.display.escape import latex, line, markdown, spreadsheet
from tracegen.shared.display.names import stems
from tracegen.shared.managed_folder import ManagedFolder
from tracegen.shared.screen import plain

if TYPE_CHECKING:
    from tracegen.shared.display.content import Cell, Column, Page, Table

WITHOUT_PARQUET = "tables were written without Parquet, which needs pyarrow: pip install 'moereplay[parquet]'"
LARGEST = 2**63
"""First whole number that a column of Parquet cannot have."""


@dataclass(frozen=True)
class WrittenFiles:
    """Files that were written.

    Attributes
    ----------
    files
        In the order of the tables.
    left_out
        A sentence that says which format was left out and how to get it; empty if none was.
    """

    files: Sequence[Path]
    left_out: str = ""


def write(page: Page, folder: str | Path) -> WrittenFiles:
    """Write every table of a page in each format.

    Parameters
    ----------
    page
        What there is to see.
    folder
        Made if it does not exist; files of the same names are replaced.

    Raises
    ------
    UserError
        If a file cannot be written.
    """
    tables = list(page.tables())
    has_parquet = importlib.util.find_spec("pyarrow") is not None
    files, written = ManagedFolder(folder), []
    for table, stem in zip(tables, stems([table.name for table in tables]), strict=True):
        for ending, make in _TEXTS.items():
            path = Path(folder, f"{stem}.{ending}")
            with files.present():
                files.write_text(path.name, make(table))
            written.append(path)
        if has_parquet:
            path = Path(folder, f"{stem}.parquet")
            with files.writer(path.name) as file:
                file.write(as_parquet(table))
            written.append(path)
    return WrittenFiles(written, "" if has_parquet or not tables else WITHOUT_PARQUET)


def headings(table: Table) -> list[str]:
    """Name and unit of each column, such as ``time (us)``; a second one of a name has a number."""
    found: list[str] = []
    for column in table.columns:
        unit = f" ({column.unit})" if column.unit else ""
        heading = name = line(f"{column.name}{unit}")
        number = 1
        while name in found:
            number += 1
            name = f"{heading} {number}"
        found.append(name)
    return found


def as_csv(table: Table) -> str:
    """Write a table as CSV: a number with every digit, nothing where there is no value."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([spreadsheet(heading) for heading in headings(table)])
    writer.writerows([_csv_cell(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def as_markdown(table: Table) -> str:
    """Write a table as GitHub's Markdown, with its title and its notes."""
    names = [markdown(heading) for heading in headings(table)]
    lines = [[markdown(text) for text in row] for row in table.texts()]
    widths = [max(3, *map(len, column)) for column in zip(names, *lines, strict=True)]
    rules = [
        "-" * width if column.is_text else "-" * (width - 1) + ":"
        for column, width in zip(table.columns, widths, strict=True)
    ]
    rows = [
        "| "
        + " | ".join(
            text.ljust(width) if column.is_text else text.rjust(width)
            for text, column, width in zip(row, table.columns, widths, strict=True)
        )
        + " |"
        for row in (names, *lines)
    ]
    rows.insert(1, "| " + " | ".join(rules) + " |")
    notes = [markdown(note) for note in table.notes]
    parts = [f"**{markdown(table.title)}**" if table.title else "", "\n".join(rows), *notes]
    return "\n\n".join(part for part in parts if part) + "\n"


def as_latex(table: Table) -> str:
    """Write a table as LaTeX for the package ``booktabs``; title and notes are remarks in it."""
    form = "".join("l" if column.is_text else "r" for column in table.columns)
    lines = [f"% {line(text)}" for text in (table.title, *table.notes) if text]
    lines += [rf"\begin{{tabular}}{{{form}}}", r"  \toprule"]
    lines += [rf"  {' & '.join(map(latex, headings(table)))} \\", r"  \midrule"]
    for row in table.texts():
        cells = map(_latex_cell, row, table.columns)
        lines.append(rf"  {' & '.join(cells)} \\")
    return "\n".join([*lines, r"  \bottomrule", r"\end{tabular}", ""])


def as_parquet(table: Table) -> bytes:
    """Write a table as Parquet: whole numbers, numbers, yes or no, or texts, by column.

    Title and notes stand in the metadata of its schema; pyarrow must be installed.
    """
    import pyarrow
    from pyarrow import parquet

    names = headings(table)
    columns = [[_value(row[place]) for row in table.rows] for place in range(len(names))]
    arrays = [_array(column) for column in columns]
    metadata = {
        "title": plain(table.title),
        "notes": json.dumps([plain(one) for one in table.notes]),
    }
    schema = pyarrow.schema(
        [pyarrow.field(name, array.type) for name, array in zip(names, arrays, strict=True)],
        metadata,
    )
    out = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_arrays(arrays, schema=schema), out)
    return out.getvalue()


def _array(values: Sequence[Cell]) -> Any:
    """A column of one type; of mixed values, and of numbers too large, one of texts."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pyarrow.array(values, pyarrow.bool_())
    if kinds == {int} and all(-LARGEST <= int(one) < LARGEST for one in values if one is not None):
        return pyarrow.array(values, pyarrow.int64())
    if kinds and kinds <= {int, float}:
        return pyarrow.array([None if one is None else float(one) for one in values], pyarrow.float64())
    return pyarrow.array([None if one is None else _exact(one) for one in values], pyarrow.string())


def _value(cell: Any) -> Cell:
    """A cell as a value of Python; numbers of numpy are such, too."""
    cell = cell.item() if hasattr(cell, "item") else cell
    return plain(cell) if isinstance(cell, str) else cell


def _exact(value: Cell) -> str:
    """Write a value with every digit."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def _csv_cell(cell: Cell) -> str:
    value = _value(cell)
    if value is None:
        return ""
    return spreadsheet(value) if isinstance(value, str) else _exact(value)


def _latex_cell(text: str, column: Column) -> str:
    """A cell; the sign of a number is a minus and no hyphen."""
    if not column.is_text and text.startswith("-") and text != "-":
        return f"$-${latex(text[1:])}"
    # A row that begins with a bracket would be read as the distance from the row before.
    found = latex(text)
    return f"{{}}{found}" if found.startswith(("[", "*")) else found


_TEXTS: dict[str, Callable[[Table], str]] = {
    "csv": as_csv,
    "md": as_markdown,
    "tex": as_latex,
}
