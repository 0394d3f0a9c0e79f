"""Tables on screens of any width: whole cells, sensible columns, no blanks at the end of a line."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import every
from rich.console import Console

from tracegen.shared.display.content import Column, Table
from tracegen.shared.display.terminal import GAP, fitting, share_width

WIDTHS = st.lists(st.tuples(st.integers(1, 30), st.integers(0, 4)), min_size=1, max_size=9)


def drawn(table: Table, width: int) -> list[str]:
    """Lines of a table on a screen of so many characters."""
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, markup=False).print(table)
    return out.getvalue().splitlines()


def taken(widths: list[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


@given(columns=WIDTHS, width=st.integers(1, 200))
def test_the_columns_that_stay_are_those_that_matter_most(columns: list[tuple[int, int]], width: int) -> None:
    widths, ranks = [one for one, _ in columns], [rank for _, rank in columns]
    kept = fitting(widths, ranks, width)
    assert kept == sorted(set(kept))
    gone = [place for place in range(len(columns)) if place not in kept]
    assert all(ranks[place] > 0 for place in gone)
    # No column left that matters more than one that stays, and of equals the last left.
    for one in gone:
        for other in kept:
            assert (ranks[one], one) > (ranks[other], other)
    room = taken([widths[one] for one in kept])
    assert room <= width or all(ranks[one] == 0 for one in kept)
    if gone:  # with the one that left last there was no room
        last = min(gone, key=lambda one: (ranks[one], one))
        assert taken([widths[one] for one in [*kept, last]]) > width


@given(columns=WIDTHS, more=st.integers(0, 60))
def test_a_line_is_shared_until_nobody_lacks_or_nothing_is_left(columns: list[tuple[int, int]], more: int) -> None:
    least = [one for one, _ in columns]
    most = [one + lack for one, lack in columns]
    found = share_width(least, most, taken(least) + more)
    assert all(a <= b <= c for a, b, c in zip(least, found, most, strict=True))
    assert sum(found) == min(sum(most), sum(least) + more)


WORDS = st.text(alphabet="abcxyz", min_size=1, max_size=9)
"""Names that fit the narrowest screen with a number beside them."""


@settings(max_examples=60, deadline=None)
@given(
    names=st.lists(WORDS, min_size=1, max_size=4, unique=True),
    numbers=st.lists(st.integers(0, 10**9), min_size=4, max_size=4),
    ranks=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    width=st.integers(14, 130),
)
def test_no_cell_is_cut_on_a_screen_of_any_width(
    names: list[str], numbers: list[int], ranks: list[int], width: int
) -> None:
    columns = [
        Column("scheme of a name"),
        *(Column(f"n{n}", "MB", ",.1f", rank) for n, rank in enumerate(ranks)),
    ]
    table = Table("t", "A title", columns, [[name, *numbers] for name in names])
    lines = drawn(table, width)
    text = "\n".join(lines)
    assert "…" not in text
    assert max(map(len, lines)) <= width
    missing = "".join(lines).partition("Not shown for want of room")[2].replace(" ", "")
    for n, number in enumerate(numbers):
        assert (f"{number:,.1f}" in text) or f"n{n}MB" in missing
    for name in names:
        assert name in text


def test_headings_are_broken_before_a_column_leaves_and_texts_too() -> None:
    table = Table(
        "t",
        "T",
        [Column("what"), Column("time on the wire", "us", ",.1f", rank=1)],
        [["a text of words that is quite long for one line", 12.5]],
    )
    whole = drawn(table, 100)
    assert whole[2].split("  ")[0] == "what" and whole[2].endswith("time on the wire us")
    narrow = drawn(table, 36)
    assert "Not shown" not in "\n".join(narrow)
    assert max(map(len, narrow)) <= 36
    assert narrow[-1].endswith("12.5") or any(line.endswith("  12.5") for line in narrow)
    text = " ".join(line[:24].strip() for line in narrow)
    assert "a text of words" in text and "the wire us" not in narrow[2]


def test_headings_break_rather_than_texts() -> None:
    text = "a text of words that has forty-one letter"
    columns = [Column("what"), Column("number of GPUs", form="d")]
    lines = drawn(Table("t", "T", columns, [[text, 1]]), len(text) + GAP + len("number"))
    assert lines[-1].startswith(text) and lines[-1].endswith(" 1")


def test_a_row_becomes_a_list_where_no_table_has_room() -> None:
    columns = [Column("what"), Column("size", "MB", ",.1f"), Column("time", "us", ",.1f")]
    lines = drawn(Table("t", "T", columns, [["a b", 1234567.8, 7654321.0]]), 24)
    assert lines[2:5] == ["what: a b", "size MB: 1,234,567.8", "time us: 7,654,321.0"]


@every(("value", "text"), [(None, "-"), ("a", "a"), (1234.56, "1,234.6")])
def test_a_value_is_written_by_its_column(value: object, text: str) -> None:
    assert Column("x", "us", ",.1f").text(value) == text  # type: ignore[arg-type]  # any cell


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="2 cells under 1 columns"):
        Table("t", "T", [Column("x")], [["a", "b"]])
