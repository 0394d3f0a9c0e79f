"""The documents' tables of schemes are those of the registry."""

from __future__ import annotations

import inspect
import re
from copy import copy
from pathlib import Path

import pytest
from loops import every

import replay.schemes.ep.deepep.normal
import replay.schemes.ep.traffic
from replay.report.scheme_tables import (
    TABLES,
    facts_of,
    scheme_table,
    traffic_table,
    with_tables,
)
from replay.schemes import SCHEMES
from replay.schemes.contract.examine import LONGEST_SUMMARY
from replay.schemes.options import about
from replay.schemes.registry import EXAMPLES

ROOT = Path(__file__).parents[3]


@every(
    ("file", "name"),
    [
        ("scripts/site/pages/schemes.md", "schemes"),
        ("replay/schemes/MECHANISMS.md", "traffic"),
        ("replay/schemes/MECHANISMS.md", "network"),
        ("replay/schemes/COSTS.md", "costs"),
        ("replay/schemes/COSTS.md", "spared"),
    ],
)
def test_the_table_is_the_present_one(file: str, name: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"\n<!-- /{name} -->"
    assert text.count(begin) == text.count(end) == 1
    table = text.split(begin)[1].split(end)[0]
    assert table == TABLES[name](), "run: python scripts/tables.py"


@pytest.mark.extended
def test_every_scheme_has_a_row() -> None:
    schemes, traffic = scheme_table(), traffic_table()
    for name in SCHEMES:
        assert schemes.count(f"\n| `{name}` |") == 1
        assert traffic.count(f"`{name}`") == 1


def test_facts_in_words() -> None:
    found = facts_of(SCHEMES["deepep-ll"])
    assert (found.sms, found.graph, found.gradients) == ("132", "yes", "no")
    assert found.types == "bf16, fp8; back bf16"
    assert found.limits == SCHEMES["deepep-ll"].validity
    flux = facts_of(SCHEMES["flux"])
    assert (flux.sms, flux.kernels, flux.graph, flux.gradients) == ("26", "20", "no", "yes")
    assert facts_of(SCHEMES["ideal"])[:4] == ("0", "0", "yes", "any but FP4")
    few = copy(SCHEMES["ideal"])
    few.most_ranks, few.dispatch_types = 64, frozenset({"bf16"})
    assert facts_of(few).limits == "at most 64 GPUs"
    assert facts_of(few).types == "GEMMs any but FP4; rows bf16; back any but FP4"


def test_only_what_is_marked_is_written() -> None:
    text = "before\n<!-- traffic -->\nold\n<!-- /traffic -->\n<!-- other -->\nkept\n"
    written = with_tables(text)
    assert written == text.replace("old", traffic_table())
    assert with_tables(written) == written


@every("scheme", [*SCHEMES.values(), *EXAMPLES.values()], ids=lambda s: s.name)
def test_every_option_says_what_it_is_and_where_its_default_is_from(scheme) -> None:
    assert len(scheme.summary) <= LONGEST_SUMMARY
    for one in about(scheme.options):
        assert one.help.endswith("."), one.name
        assert one.source, one.name
        if isinstance(one.default, int) and not isinstance(one.default, bool):
            assert one.least is not None, one.name
        if isinstance(one.default, str):
            assert one.is_choice(str(one.default)), one.name


def test_deepeps_formula_stands_where_one_looks() -> None:
    for module in (replay.schemes.ep.traffic, replay.schemes.ep.deepep.normal):
        text = inspect.getdoc(module) or ""
        assert "r(t)" in text and "In(g)" in text
    assert "deepep" in (inspect.getdoc(replay.schemes) or "")


@every("name", [name for name in SCHEMES if name != "ideal"])
def test_it_is_said_of_every_scheme_where_it_wins_and_loses(name: str) -> None:
    scheme = SCHEMES[name]
    assert scheme.wins and scheme.loses
    assert not re.search(r"\b\d{3,}\b", scheme.wins + scheme.loses), "times are those of the study"
