"""The options that every command with a result has: what is asked for is written, and no more."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from tracegen.cli.delivery import Delivery, delivers
from tracegen.shared.display.content import BarPart, Bars, Column, Page, Section, Table
from tracegen.shared.errors import UserError

pytest.importorskip("matplotlib")

app = typer.Typer()
MADE: list[str] = []


@app.command()
@delivers
def show(
    tables: Annotated[list[str], typer.Argument(help="Its own parameter of such a name.")],
    *,
    deliver: Delivery,
) -> None:
    """Say what it was given."""
    typer.echo(" ".join(tables))

    def make() -> Page:
        MADE.append("page")
        items = [Table(one, one, [Column("a")], [("b",)]) for one in tables if one != "none"]
        bars = [Bars("bars", "Bars", ["a"], [BarPart("p", [1])], "us")] if items else []
        return Page("A page", "of a test", [Section("All", [*items, *bars])])

    deliver(make)


def run(*arguments: object):
    MADE.clear()
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_the_page_is_made_only_where_it_is_asked_for(tmp_path: Path) -> None:
    done = run("one", "two")
    assert done.stdout == "one two\n" and not MADE
    done = run("one", "--html", tmp_path / "x.html", "--plots", tmp_path / "p", "--tables", tmp_path)
    assert done.exit_code == 0 and done.output == "one\n" and len(MADE) == 1
    assert "A page" in (tmp_path / "x.html").read_text()
    assert {one.name for one in (tmp_path / "p").iterdir()} == {"bars.svg", "bars.pdf", "bars.png"}
    assert (tmp_path / "one.csv").read_text() == "a\nb\n"


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    done = run("none", "--plots", tmp_path)
    assert done.exit_code == 0 and done.stderr == "There is nothing to draw.\n"


def test_what_cannot_be_done_is_said_before_the_work(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    done = run("one", "--tables", tmp_path / "file")
    assert isinstance(done.exception, UserError) and "one" not in done.stdout
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run("one", "--plots", tmp_path)
    assert isinstance(done.exception, UserError) and "one" not in done.stdout
    assert "moereplay[plots]" in str(done.exception)


def test_without_pyarrow_tables_are_written_and_that_is_said(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run("one", "--tables", tmp_path)
    assert done.exit_code == 0 and "moereplay[parquet]" in done.stderr
    assert {one.name for one in tmp_path.iterdir()} == {"one.csv", "one.md", "one.tex"}
