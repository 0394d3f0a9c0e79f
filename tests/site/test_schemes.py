"""Every scheme has a page by being in the registry, and its graph is that of its tasks."""

from __future__ import annotations

import re
from functools import cache
from xml.etree import ElementTree

import networkx
import numpy as np
import pytest
from loops import every
from made import schemes
from made.drawing import svg
from made.merged import drawn_as, merged

from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES, Kind
from replay.schemes.ep.nvls import Nvls
from replay.schemes.options import about
from replay.schemes.registry import TENSOR_SCHEMES as OF_TENSOR
from replay.studies.validate.catalog import TABLES

NAMES = list(schemes.schemes())


@cache
def pages() -> dict[str, str]:
    """All pages of schemes by their paths; what they draw is replayed."""
    return {page.path: page.text for page in schemes.pages()}


@every("name", NAMES)
def test_every_scheme_has_a_page_that_says_everything(name: str) -> None:
    scheme, page = schemes.schemes()[name], pages()[f"schemes/{name}.md"]
    shown = re.sub(r"\\(.)", r"\1", page)
    for text in (scheme.summary, scheme.source, scheme.assumes, scheme.validity):
        assert text in shown
    for capability in scheme.proposes:
        assert capability in shown
    for option in about(scheme.options):
        assert f"[`{option.name}`]" in page
        assert option.help in shown
        assert option.source in shown
    for heading in ("Graph", "Traffic", "How it works", "Options", "Costs", "How it is validated"):
        assert f"\n## {heading}\n" in page
    for text in (scheme.wins, scheme.loses, *scheme.spares.values()):
        assert text in shown
    assert "\n## Kernels\n" in page or name == "ideal"
    assert "\n## Golden numbers\n" in page or name in ("plain", "nccl-allgather", "mok")
    assert ("| place of " in page) == (name in schemes._study()[1])
    assert f"]({name}.md)" in pages()["schemes/index.md"] or name == "plain"


def test_the_page_of_a_new_scheme_needs_nothing_but_the_scheme(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class New(Nvls):
        name = "brand-new"
        summary = "nothing that a document says"

    monkeypatch.setattr(schemes, "schemes", lambda: {"brand-new": New()})
    page = schemes.page_of(New())
    assert page.startswith("# brand-new\n\nnothing that a document says.\n")
    assert "<svg" in page
    assert "| host waits | no |" in page


def test_measured_schemes_have_their_errors() -> None:
    names = {name for table in TABLES.values() for name in table.schemes}
    assert names <= set(NAMES)
    errors = {row[0] for row in schemes.errors()}
    assert errors == set(TABLES)
    for name in NAMES:
        says_none = "No measurement of its communication" in pages()[f"schemes/{name}.md"]
        assert says_none == (name not in names)


def test_schemes_of_tensor_parallelism_are_on_one_page() -> None:
    page = re.sub(r"\\(.)", r"\1", pages()["schemes/tensor.md"])
    for scheme in OF_TENSOR.values():
        assert f"\n## {scheme.name}" in page
        assert scheme.source in page


@every("name", NAMES)
def test_a_drawn_graph_is_well_formed_and_can_be_read_aloud(name: str) -> None:
    graph, _ = schemes.graph_of(name)
    picture = ElementTree.fromstring(svg(graph, "a <title>", "g")).find("{http://www.w3.org/2000/svg}svg")
    assert picture is not None
    ids = {element.get("id"): element for element in picture.iter() if element.get("id")}
    title, description = (ids[one] for one in picture.attrib["aria-labelledby"].split())
    assert title.text == "a <title>"
    assert (description.text or "").count(";") == len(graph.steps) - 1
    boxes = [one for one in picture.iter() if (one.get("class") or "").startswith("step")]
    assert len(boxes) == len(graph.steps)
    places = [(box[1].get("x"), box[1].get("y")) for box in boxes]
    assert len(set(places)) == len(places)


@every("name", NAMES)
def test_a_merged_graph_is_small_and_an_order(name: str) -> None:
    graph, num_tasks = schemes.graph_of(name)
    assert 2 <= len(graph.steps) <= 50
    assert 0 < sum(step.num_tasks for step in graph.steps) <= num_tasks
    assert all(one < other for one, other in graph.arrows)
    assert all(one > other for one, other in graph.returns)
    followed = {one for one, _ in [*graph.arrows, *graph.returns]}
    experts = {place for place, step in enumerate(graph.steps) if step.does == "second GEMM"}
    assert experts <= followed or name == "ideal"  # gates count: results wait for their experts
    arrows = networkx.DiGraph(graph.arrows)
    assert networkx.transitive_reduction(arrows).edges == arrows.edges


def test_merging_keeps_every_task_that_takes_part_and_every_way_between_them() -> None:
    """Two GPUs: send, travel and a launch, wait; the wait comes again behind the GEMM."""
    builder = GraphBuilder(KIND_NAMES)
    servers = [builder.resource(f"r{number}", "x", 1) for number in range(2)]

    def add(kind: Kind, after: np.ndarray | None) -> np.ndarray:
        ids = builder.add(2, resource=np.array(servers), duration_ps=10, kind=kind, rank=np.arange(2))
        if after is not None:
            builder.edges(after, ids)
        return ids

    sent = add(Kind.DISPATCH_SEND, None)
    out = add(Kind.DISPATCH_UP, sent)
    landed = add(Kind.DISPATCH_DOWN, out)
    add(Kind.DISPATCH_ACK_UP, landed)
    seen = add(Kind.DISPATCH_SYNC, landed[::-1])
    done = add(Kind.GEMM1, add(Kind.LAUNCH, seen))
    add(Kind.DISPATCH_SYNC, done)
    graph = builder.build()
    found = merged(graph, schedule(graph))
    assert [(step.does, step.number, step.num_tasks) for step in found.steps] == [
        ("send", 0, 2),
        ("rows travel", 0, 4),
        ("meet, wait", 0, 2),
        ("first GEMM", 0, 2),
        ("meet, wait", 1, 2),
    ]
    assert found.arrows == [(0, 1), (1, 2), (2, 3), (3, 4)]
    assert found.returns == []


def test_what_is_left_out_is_what_nobody_waits_for_or_takes_no_place() -> None:
    left_out = {kind.name for kind in Kind if drawn_as(kind) is None}
    acknowledgements = {kind.name for kind in Kind if "_ACK_" in kind.name}
    assert left_out == {"MARK", "LAUNCH", "HOST", "DELAY"} | acknowledgements
