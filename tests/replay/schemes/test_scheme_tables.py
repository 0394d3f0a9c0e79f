"""The documents' tables of schemes are those of the registry."""

from __future__ import annotations

import inspect
import re
from copy import copy
from pathlib import Path

import numpy as np
import pytest
from loops import every

import hwmodel
import replay.schemes.ep.deepep.normal
import replay.schemes.ep.traffic
from replay.chains.host_program import num_kernels, program, typical_program
from replay.model.work.precision import Precision
from replay.report.scheme_tables import (
    TABLES,
    facts_of,
    limits_table,
    scheme_table,
    traffic_table,
    with_tables,
)
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.contract.examine import LONGEST_SUMMARY
from replay.schemes.options import about
from replay.schemes.registry import EXAMPLES

ROOT = Path(__file__).parents[3]


@every(
    ("file", "name"),
    [
        ("scripts/site/pages/schemes.md", "schemes"),
        ("replay/schemes/MECHANISMS.md", "traffic"),
        ("replay/schemes/MECHANISMS.md", "limits"),
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
    for name in SCHEMES:
        assert scheme_table().count(f"\n| `{name}` |") == 1
        assert traffic_table().count(f"`{name}`") == 1
        assert limits_table().count(f"\n| `{name}` |") == 1


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


def rows_below(heading: str) -> dict[str, list[str]]:
    """Cells behind the first of a table of MECHANISMS.md, by each scheme that the first names."""
    text = (ROOT / "replay/schemes/MECHANISMS.md").read_text("utf-8")
    found = {}
    for line in text.partition(heading)[2].partition("\n\n")[0].splitlines()[2:]:
        first, *rest = (cell.strip() for cell in line.strip("|").split("|"))
        found.update(dict.fromkeys(re.findall(r"`([^`]+)`", first), rest))
    return found


def launches(name: str, precision: Precision, busy_experts: int) -> int:
    ids = 8 * np.arange(8, dtype=np.int32) + np.arange(busy_experts, dtype=np.int32)[:, None]
    work = small_layers.work(ids, 8, 64, precision=precision)
    return num_kernels(program(SCHEMES[name], work, hwmodel.load("dgx-h100")))


def test_documented_kernels_are_those_launched() -> None:
    """What is launched has these numbers."""
    documented = rows_below("| scheme | kernels of a layer | waits | a graph holds |")
    assert set(documented) == set(SCHEMES) - {"ideal"}
    for name, (kernels, waits, _) in documented.items():
        bf16 = launches(name, Precision("bf16"), 0)
        if name == "fastermoe":  # whose parts of two steps and eight experts are told beside it
            bf16 -= 6 * 2 * 8
        if with_fp8 := re.match(r"(\d+) with FP8", kernels):
            assert int(with_fp8[1]) == launches(name, Precision("fp8"), 0), name
            assert (f"{bf16} without" in kernels) or "without" not in kernels, name
        else:
            assert int(re.match(r"\d+", kernels)[0]) == bf16, name
        waiting = [one for one in typical_program(SCHEMES[name]) or () if not one.launches]
        assert (waits == "none") == (not waiting), name
    fp8 = Precision("fp8", dispatch="bf16")
    assert [launches("megatron", fp8, busy) for busy in (0, 1)] == [26, 26 + 4]
    assert "FP8: 26 and four for each" in documented["megatron"][0]


def test_it_is_said_of_every_scheme_where_it_wins_and_loses() -> None:
    said = rows_below("| scheme | wins | loses |")
    assert set(said) == set(SCHEMES) - {"ideal"}
    assert all(len(cells) == 2 and all(cells) for cells in said.values())
