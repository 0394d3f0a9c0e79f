"""The documents' tables of schemes are those of the registry."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import replay.schemes.deepep.normal
import replay.schemes.traffic
from replay.contract.examine import LONGEST_SUMMARY
from replay.report.scheme_tables import TABLES, scheme_table, traffic_table, with_tables
from replay.schemes import SCHEMES
from replay.schemes.options import about
from replay.schemes.registry import EXAMPLES

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("file", "name"), [("README.md", "schemes"), ("replay/schemes/MECHANISMS.md", "traffic")]
)
def test_the_table_is_the_present_one(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    assert text.count(begin) == text.count(end) == 1
    table = text.split(begin)[1].split(end)[0]
    assert table == TABLES[name](), "run: python scripts/tables.py"


def test_every_scheme_has_a_row() -> None:
    for name in SCHEMES:
        assert scheme_table().count(f"\n| `{name}` |") == 1
        assert traffic_table().count(f"`{name}`") == 1


def test_only_what_is_marked_is_written() -> None:
    text = "before\n<!-- traffic -->\nold\n<!-- /traffic -->\n<!-- other -->\nkept\n"
    written = with_tables(text)
    assert written == text.replace("old", traffic_table())
    assert with_tables(written) == written


@pytest.mark.parametrize("scheme", [*SCHEMES.values(), *EXAMPLES.values()], ids=lambda s: s.name)
def test_every_option_says_what_it_is_and_where_its_default_is_from(scheme) -> None:
    assert len(scheme.summary) <= LONGEST_SUMMARY
    for one in about(scheme.options):
        assert one.help.endswith("."), one.name
        assert one.source, one.name
        if isinstance(one.default, int) and not isinstance(one.default, bool):
            assert one.least is not None, one.name
        if isinstance(one.default, str):
            assert one.default in one.choices, one.name


def test_deepeps_formula_stands_where_one_looks() -> None:
    for module in (replay.schemes.traffic, replay.schemes.deepep.normal):
        text = inspect.getdoc(module) or ""
        assert "r(t)" in text and "In(g)" in text
    assert "deepep" in (inspect.getdoc(replay.schemes) or "")
