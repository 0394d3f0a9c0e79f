"""Tables as files: what is read back is what was written, and no text becomes a command."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from html import unescape
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tracegen.shared.display import files
from tracegen.shared.display.content import Column, Page, Section, Table
from tracegen.shared.display.names import stems

COLUMNS = (
    Column("scheme"),
    Column("time", "us", ",.1f"),
    Column("bytes", form=",d"),
    Column("fits", form=""),
)
HOSTILE = (
    "=1+1",
    "+cmd|'/c calc'!A0",
    "-2",
    "@SUM(A1)",
    "\t=1",
    "a|b",
    "`x`",
    "<script>alert(1)</script>",
    "[a](javascript:x)",
    "100% & $5 #1 _x_ {y} ~ ^ \\input{/etc/passwd}",
    "two\nlines",
    "\"q\",'q'",
    "\x1b[2J",
    "\x00",
    "\ud800",
    "--",
    "[3cm]",
    "*",
    "",
    "wide \u4e2d",
)


def table(rows: list[tuple[Any, ...]], columns: tuple[Column, ...] = COLUMNS) -> Table:
    return Table("times", "Times & more", columns, rows, ["a note | with a bar"])


def hostile() -> Table:
    return table([(text, 1.0, 2, "x") for text in HOSTILE])


NUMBERS = table(
    [("a", 1 / 3, 2**62, True), ("b", None, None, False), ("c", 1e-300, -5, None)],
    (*COLUMNS[:3], Column("fits", form="d")),
)


def without_escape(cell: str) -> str:
    return cell.removeprefix("'")


texts = st.text(alphabet=st.characters(codec="utf-8", exclude_categories=["C"]), max_size=8)
cells = st.tuples(
    st.one_of(texts, st.sampled_from([one for one in HOSTILE if one.isprintable()])),
    st.one_of(st.none(), st.floats(allow_nan=False)),
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.just("x"),
)


@given(st.lists(cells, min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_csv_is_read_back_with_every_digit(rows: list[tuple[Any, ...]]) -> None:
    head, *lines = csv.reader(io.StringIO(files.as_csv(table(rows))))
    assert head == ["scheme", "time (us)", "bytes", "fits"]
    found = [(without_escape(a), float(b) if b else None, int(c) if c else None, d) for a, b, c, d in lines]
    assert found == rows


@given(st.lists(cells, min_size=1, max_size=5))
@settings(max_examples=30, deadline=None)
def test_parquet_is_read_back_equal(rows: list[tuple[Any, ...]]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(io.BytesIO(files.as_parquet(table(rows))))
    assert [tuple(row.values()) for row in found.to_pylist()] == rows


def test_parquet_has_types_and_says_what_it_is() -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    found = parquet.read_table(io.BytesIO(files.as_parquet(NUMBERS)))
    assert [str(one) for one in found.schema.types] == ["string", "double", "int64", "bool"]
    assert found.schema.metadata[b"title"] == b"Times & more"
    assert json.loads(found.schema.metadata[b"notes"]) == ["a note | with a bar"]
    mixed = table([("a", 2**70, "more", 1), ("b", 1.5, 3, "x")])
    found = parquet.read_table(io.BytesIO(files.as_parquet(mixed)))
    assert found.column("time (us)").to_pylist() == [float(2**70), 1.5]
    assert found.column("bytes").to_pylist() == ["more", "3"]


def test_numbers_of_numpy_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    made = table([("a", numpy.float64(0.1), numpy.int64(7), "x")])
    assert files.as_csv(made).splitlines()[1] == "a,0.1,7,x"


def test_no_text_is_a_formula_of_a_spreadsheet() -> None:
    _, *lines = csv.reader(io.StringIO(files.as_csv(hostile())))
    for text, (cell, *_) in zip(HOSTILE, lines, strict=True):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r"))
        assert cell.endswith(text) or not text.isprintable()
    assert "\x1b" not in files.as_csv(hostile()) and "\x00" not in files.as_csv(hostile())
    # A negative number is a number.
    assert files.as_csv(table([("a", -1.5, -2, "x")])).splitlines()[1] == "a,-1.5,-2,x"


def test_markdown_has_one_cell_for_each_value_and_no_markup() -> None:
    title, head, rule, *rows = [line for line in files.as_markdown(hostile()).splitlines() if line]
    assert title == r"**Times \& more**" and rows.pop() == r"a note \| with a bar"
    assert re.fullmatch(r"\| -+ \| -+: \| -+: \| -+ \|", rule)
    assert len(rows) == len(HOSTILE)
    for row in (head, *rows):
        assert len(re.findall(r"(?<!\\)\|", row)) == len(COLUMNS) + 1
        assert not re.search(r"(?<!\\)[<>`*_\[\]$]", row)
    # A reader of Markdown takes the backslashes away, and has the text.
    shown = [re.sub(r"\\(.)", r"\1", re.split(r"(?<!\\)\|", row)[1]).strip() for row in rows]
    for text, found in zip(HOSTILE, shown, strict=True):
        if text.isprintable():
            assert found == text


def test_a_reader_of_markdown_has_the_texts_and_nothing_else() -> None:
    markdown = pytest.importorskip("markdown_it")  # rich needs it
    html = markdown.MarkdownIt("commonmark").enable("table").render(files.as_markdown(hostile()))
    body = html.partition("<tbody>")[2].partition("</tbody>")[0]
    rows = [re.findall("<td[^>]*>(.*?)</td>", row) for row in body.split("</tr>")[:-1]]
    for text, (first, *others) in zip(HOSTILE, rows, strict=True):
        assert others == ["1.0", "2", "x"] and "<" not in first
        if text.isprintable():
            assert unescape(first) == text
    assert "<a" not in html and "<code" not in html and "<script" not in html


UNTEX = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textless{}": "<",
    r"\textgreater{}": ">",
    r"\textbar{}": "|",
    r"\textquotesingle{}": "'",
    r"\textasciigrave{}": "`",
    **{f"\\{mark}": mark for mark in "&%$#_{}"},
    "{}": "",
}


def typeset(source: str) -> str:
    """What LaTeX would set of a cell that has only these commands."""
    return re.sub("|".join(map(re.escape, UNTEX)), lambda found: UNTEX[found[0]], source)


def test_latex_has_only_commands_of_its_own() -> None:
    lines = files.as_latex(hostile()).splitlines()
    assert lines[:4] == ["% Times & more", "% a note | with a bar", r"\begin{tabular}{lrrl}", r"  \toprule"]
    assert lines[4] == r"  scheme & time (us) & bytes & fits \\" and lines[5] == r"  \midrule"
    assert lines[-2:] == [r"  \bottomrule", r"\end{tabular}"]
    for text, line in zip(HOSTILE, lines[6:-2], strict=True):
        first, *others = re.split(r"(?<!\\)&", line.removesuffix(r" \\"))
        assert len(others) == 3
        rest = re.sub("|".join(map(re.escape, UNTEX)), " ", first)
        assert not re.search(r"[\\&%$#_{}~^]|--", rest)
        assert not first.strip().startswith(("[", "*"))  # what \\ before would take for its own
        if text.isprintable():
            assert typeset(first).strip() == text
    assert files.as_latex(table([("a", -1.5, -2, "x")])).splitlines()[6] == r"  a & $-$1.5 & $-$2 & x \\"


def page(*tables: Table) -> Page:
    return Page("t", "s", [Section("x", tables)])


def test_every_table_is_written_in_every_format_the_same_each_time(tmp_path) -> None:
    pytest.importorskip("pyarrow")
    other = Table("../../etc/x", "o", [Column("a")], [("b",)])
    shown = page(NUMBERS, other)
    done = files.write(shown, tmp_path / "new" / "folder")
    assert not done.left_out
    assert [path.name for path in done.files] == [
        f"{stem}.{form}" for stem in ("times", "etc-x") for form in ("csv", "md", "tex", "parquet")
    ]
    assert {path.parent for path in done.files} == {tmp_path / "new" / "folder"}
    before = [path.read_bytes() for path in done.files]
    assert [path.read_bytes() for path in files.write(shown, tmp_path / "again").files] == before
    assert not files.write(page(), tmp_path).files


def test_without_pyarrow_a_sentence_says_what_is_missing(tmp_path, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setattr(files.importlib.util, "find_spec", lambda name: None)
    done = files.write(page(NUMBERS), tmp_path)
    assert [path.suffix for path in done.files] == [".csv", ".md", ".tex"]
    assert "moereplay[parquet]" in done.left_out
    assert not files.write(page(), tmp_path).left_out


@given(st.lists(st.text(max_size=6), max_size=6))
@settings(max_examples=50, deadline=None)
def test_names_of_files_are_different_and_stay_in_their_folder(names: list[str]) -> None:
    found = stems(names)
    assert len({one.casefold() for one in found}) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", one) for one in found)
