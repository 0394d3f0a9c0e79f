"""Costs: what the graph of a layer shows of each scheme, and a declared reason for what it does not."""

from __future__ import annotations

import re
from pathlib import Path

from loops import every

from replay.chains.host_program import can_be_captured, typical_program
from replay.report.scheme_costs import COSTS, costs_of, schemes

DOCUMENT = Path(__file__).parents[3] / "replay" / "schemes" / "COSTS.md"
NAMES = list(schemes())


@every("name", NAMES)
def test_what_is_not_paid_has_a_reason(name: str) -> None:
    for cost, is_paid, why in costs_of(schemes()[name]):
        assert is_paid or cost.is_choice or why, cost.name


@every("name", NAMES)
def test_reasons_are_for_what_is_not_paid(name: str) -> None:
    scheme = schemes()[name]
    unpaid = {cost.name for cost, is_paid, _ in costs_of(scheme) if not is_paid and not cost.is_choice}
    assert set(scheme.spares) <= unpaid


@every("name", NAMES)
def test_hosts_wait_and_switches_add_where_schemes_say_so(name: str) -> None:
    scheme = schemes()[name]
    found = {cost.name for cost, is_paid, _ in costs_of(scheme) if is_paid}
    assert ("host waits" in found) == (not can_be_captured(typical_program(scheme)) and name != "ideal")
    assert ("switch adds" in found) == ("reduction" in scheme.needs)
    assert ("activation kernel" in found) == (not scheme.fuses_activation and name not in ("ideal", "flashdmoe"))


def test_costs_are_told_apart() -> None:
    assert len({cost.name for cost in COSTS}) == len(COSTS)
    marks = {
        cost.name: {is_paid for scheme in schemes().values() for is_paid in [_paid(scheme, cost.name)]}
        for cost in COSTS
    }
    assert all(found == {True, False} for found in marks.values()), marks


def _paid(scheme, name: str) -> bool:
    return next(is_paid for cost, is_paid, _ in costs_of(scheme) if cost.name == name)


def test_every_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", DOCUMENT.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (DOCUMENT.parent / link).is_file()] == []
