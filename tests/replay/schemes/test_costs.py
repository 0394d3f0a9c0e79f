"""COSTS.md: a row for every scheme, a reason for every cell, and what a graph shows of them."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
from loops import every

import hwmodel
from replay.chains.layer import build_layer
from replay.engine import TaskGraph
from replay.model.machine.kinds import Kind
from replay.model.work.layer import ExpertShape
from replay.model.work.precision import Precision
from replay.schemes import SCHEMES
from replay.schemes.contract import layers as small_layers
from replay.schemes.registry import EXAMPLES

DOCUMENT = Path(__file__).parents[3] / "replay" / "schemes" / "COSTS.md"
ALL = [*SCHEMES, *EXAMPLES]
LAST = "Assumptions and what they decide"

Cells = dict[tuple[str, str], dict[str, str]]


@cache
def sections() -> dict[str, str]:
    parts = re.split(r"^## (.*)\n", DOCUMENT.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


@cache
def cells() -> Cells:
    """Cells (scheme) of each (section, cost)."""
    found: Cells = {}
    for section, text in sections().items():
        table = [line for line in text.splitlines() if line.startswith("|")]
        if section == LAST:
            continue
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table)
        assert [row[0] for row in rows] == [f"`{name}`" for name in ALL], section
        assert head[0] == "scheme"
        for cost, *column in zip(head[1:], *(row[1:] for row in rows), strict=True):
            found[section, cost] = dict(zip(ALL, column, strict=True))
    return found


def reasons(section: str, cost: str) -> dict[str, str]:
    """What the list below a table says of each name in the cells of a cost."""
    listed = sections()[section].partition(f"\n**{cost}**\n")[2].partition("\n**")[0]
    entries = re.findall(r"^- \*(.+?)\*: (.+(?:\n  .+)*)", listed, flags=re.MULTILINE)
    return dict(entries)


def test_every_cell_is_explained_and_nothing_else() -> None:
    assert len(cells()) > 40
    for (section, cost), row in cells().items():
        explained = reasons(section, cost)
        assert set(row.values()) == set(explained), (section, cost)
        assert all(explained.values()), (section, cost)


def test_every_file_is_there() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", DOCUMENT.read_text(encoding="utf-8"))
    assert len(links) > 20
    assert [link for link in links if not (DOCUMENT.parent / link).is_file()] == []


BEFORE, DISPATCH, LINKS, COMBINE = list(sections())[1:5]
PAID = frozenset(name for row in cells().values() for name in row.values() if not name.startswith("no "))

EXCHANGES = frozenset(
    ("all-gather", "all-reduce", "all-to-all", "all flags", "multicast", "notify", "reservation", "stores")
)
SHOWN: dict[Kind, list[tuple[str, str, frozenset[str]]]] = {
    Kind.LAYOUT: [(BEFORE, "layout", PAID)],
    Kind.COUNT_UP: [
        (
            BEFORE,
            "exchange of counts",
            EXCHANGES,
        ),
    ],
    Kind.SIGNAL_UP: [(BEFORE, "exchange of counts", frozenset({"flags", "reservation", "signals"}))],
    Kind.TOKEN_CAST: [(BEFORE, "cast to FP8 before the dispatch", PAID - {"staging"})],
    Kind.DISPATCH_SEND: [(DISPATCH, "reads at the source, SMs", PAID)],
    Kind.DISPATCH_MEMORY: [(DISPATCH, "staging copies", PAID)],
    Kind.DISPATCH_UP: [(LINKS, "headers, packets, requests", PAID)],
    Kind.DISPATCH_ACK_UP: [
        (DISPATCH, "reads at the source, SMs", PAID - {"reader"}),
        (BEFORE, "exchange of counts", frozenset({"all-gather", "all flags", "multicast"})),
    ],
    Kind.ACTIVATION: [("Experts", "activation", PAID)],
    Kind.UNPERMUTE: [
        (COMBINE, "permute before the combine", PAID),
        (
            COMBINE,
            "sums at the expert's GPU",
            frozenset({"stack", "scatter-add", "by token", "dense"}),
        ),
        (COMBINE, "sums at the owner, time", frozenset({"kernel"})),
    ],
    Kind.COMBINE_MEMORY: [
        (COMBINE, "staging copies", PAID),
        (COMBINE, "reads of results, HBM", PAID),
        (COMBINE, "sums at the owner, HBM", frozenset({"stream", "sums"})),
    ],
    Kind.NOTIFY_UP: [
        (
            COMBINE,
            "flags",
            frozenset({"expert", "tile", "notice", "message", "peer", "every peer"}),
        ),
    ],
}
"""Kinds of task that a graph has where a cell of a cost has one of these names, and only there."""


@cache
def graph_of(name: str) -> TaskGraph:
    scheme = (SCHEMES | EXAMPLES)[name]
    gemm, rows = ("fp8" if "fp8" in of else "bf16" for of in (scheme.gemm_types, scheme.dispatch_types))
    ids = np.array([[0, 1], [0, 1], [0, 2], [2, 3], [1, 3], [0, 3]], np.int32)
    layers = (
        small_layers.work(
            ids,
            2,
            4,
            shape=ExpertShape(256, 128),
            precision=Precision(gemm, dispatch=rows, combine=back),
        )
        for back in ("bf16", "fp8")
    )
    layer = next(one for one in layers if not scheme.refuses(one))
    return build_layer(layer, hwmodel.load("dgx-h100"), scheme)[0]


@every("kind", SHOWN, ids=lambda kind: kind.name)
@every("name", ALL)
def test_a_graph_has_what_the_cells_say(name: str, kind: Kind) -> None:
    said = any(cells()[section, cost][name] in names for section, cost, names in SHOWN[kind])
    assert (graph_of(name).kind == kind).any() == said


@every("name", ALL)
def test_hosts_wait_and_switches_add_where_a_cell_says_so(name: str) -> None:
    graph = graph_of(name)
    used = set(np.array([*graph.resources.groups, ""])[graph.resource].tolist())
    assert ("host" in used) == (cells()[BEFORE, "host waits"][name] in PAID)
    assert ("switch-merge" in used) == (cells()[LINKS, "adders"][name] in PAID)
