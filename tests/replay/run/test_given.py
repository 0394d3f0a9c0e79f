"""What the functions of Python take, and what they refuse by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hwmodel
import replay
import tracegen
from replay.errors import UserError
from replay.schemes import SCHEMES

Make = Callable[..., tracegen.RoutingTrace]


@pytest.fixture(scope="module")
def trace(synthetic: Make) -> tracegen.RoutingTrace:
    return synthetic(layers=1)


RANKS = [expert // 16 for expert in range(64)]


@pytest.fixture
def map_file(tmp_path: Path) -> Path:
    path = tmp_path / "map.json"
    path.write_text(json.dumps(RANKS))
    return path


def test_what_is_taken(trace: tracegen.RoutingTrace, map_file: Path, tmp_path: Path) -> None:
    plain = replay.run(trace, scheme="ideal", system="dgx-h100", options={}, ranks=4)
    file = tmp_path / "trace.h5"
    tracegen.write(trace, file)
    same = [
        replay.run(file, scheme="ideal", ranks=np.int64(4)),
        replay.run(str(file), scheme=SCHEMES["ideal"], system=hwmodel.load("dgx-h100"), ranks=4),
    ]
    assert {one.run_id for one in same} == {plain.run_id}
    assert replay.run("toy-zipf", scheme="ideal", layer=0, system="dgx-h100").layers
    placed = replay.run(trace, scheme="ideal", ranks=4, placement=map_file)
    assert placed.spec.placement == f"file:{map_file}"
    assert placed.totals == plain.totals, "the map is the contiguous placement"
    eight = replay.run(trace, scheme="ideal", overrides={"link.links_per_gpu": np.int64(8)})
    assert eight.system.values["link.links_per_gpu"] == 8


@pytest.mark.parametrize("one", ["ideal", SCHEMES["ideal"]])
def test_one_is_a_list_of_one(trace: tracegen.RoutingTrace, map_file: Path, one: Any) -> None:
    several = replay.compare(trace, ["ideal"], placements=["contiguous", f"file:{map_file}"])
    assert replay.compare(trace, one, placements=["contiguous", map_file]) == several
    assert len(replay.compare(trace, one, placements=map_file).results) == 1
    assert len(replay.compare(trace, one, placements="round-robin").results) == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"scheme": None},
            "no scheme is given: .* scheme='deepep'; `moereplay schemes` lists all ",
        ),
        ({}, "no scheme is given: .* scheme='deepep'; `moereplay schemes` lists all "),
        ({"scheme": 3}, r"^scheme = 3 \(int\): expected a name of `moereplay schemes`"),
        ({"scheme": type(SCHEMES["ideal"])}, r"^scheme = <class .*: expected a name"),
        ({"system": 3}, r"^system = 3 \(int\): expected a name of `moereplay hardware list`"),
        ({"system": "dgx"}, "unknown system 'dgx'; known: "),
        ({"placement": RANKS}, r"^placement = \[0, .*\.\.\. \(list\): .*the Path of a map"),
        ({"placement": np.array(RANKS)}, r"^placement = array.* \(ndarray\): .*written as JSON"),
        ({"placement": None}, r"^placement = None \(NoneType\): expected text"),
        ({"spec": "ideal"}, r"^spec = 'ideal' \(str\): expected a RunSpec; write scheme=\.\.\."),
        ({"scheme": "ideal", "max_memory": "4GB"}, r"^max_memory = '4GB' \(str\): .*bytes"),
        ({"trace": 5}, r"^trace = 5 \(int\): expected a RoutingTrace, a file, a URL, or a name"),
        ({"trace": np.zeros((4, 2))}, r"^trace = array.* \(ndarray\): expected a RoutingTrace"),
    ],
)
def test_what_run_refuses(trace: tracegen.RoutingTrace, settings: dict[str, Any], said: str) -> None:
    given = {"trace": trace, "scheme": "ideal"} if settings else {"trace": trace}
    with pytest.raises(UserError, match=said) as caught:
        replay.run(**{**given, **settings})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"schemes": hwmodel.load("dgx-h100"), "spec": "deepep"}, "^schemes = System.*system=..."),
        ({"spec": "deepep"}, r"^spec = 'deepep' \(str\): expected a RunSpec"),
        ({"schemes": []}, "^schemes is empty; leave it out"),
        ({"schemes": ["ideal", None]}, r"^schemes = None \(NoneType\)"),
        ({"scheme": "ideal"}, r"^scheme = 'ideal': compare takes schemes="),
        ({"placements": np.array(RANKS)}, r"^placements = 0 \(int32|^placements = .*written as"),
        ({"placements": ["contiguous", RANKS]}, r"^placements = \[0, .* \(list\)"),
        ({"baseline": SCHEMES["ideal"]}, "^baseline = .*expected the name of one"),
        ({"options": 3}, r"^options = 3 \(int\)"),
        ({"options": {"ideal": 3}}, r"^options of ideal = 3 \(int\): expected a table"),
        ({"jobs": 1.5}, "^jobs must be at least 1, a whole number, not 1.5"),
        ({"jobs": "2"}, "^jobs must be at least 1, a whole number, not '2'"),
    ],
)
def test_what_compare_refuses(trace: tracegen.RoutingTrace, settings: dict[str, Any], said: str) -> None:
    given = {"schemes": ["ideal"]} if "scheme" not in settings else {}
    with pytest.raises(UserError, match=said) as caught:
        replay.compare(trace, **{**given, **settings})
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_what_others_refuse(trace: tracegen.RoutingTrace, synthetic: Make) -> None:
    found = replay.compare(trace, ["ideal"])
    ours: Any = replay  # which must refuse what types exclude, too
    traces: Any = tracegen
    machines: Any = hwmodel
    refusals: list[tuple[Callable[[], object], str]] = [
        (lambda: ours.assess(found, "toy-zipf", draws=1), r"^trace = 'toy-zipf' \(str\)"),
        (lambda: ours.assess(found.results[0], trace, draws=1), r"^compared = Result"),
        (lambda: ours.assess(found, synthetic(), draws=1), "not the trace that was compared on"),
        (
            lambda: ours.compare(replay.TensorSpec(), ["sp-ring"], replay.RunSpec()),
            "^spec = RunSpec: a TensorSpec was given before it",
        ),
        (lambda: ours.summary(3), r"^result = 3 \(int\)"),
        (lambda: ours.diff(1, 2), r"^before or after = 1 \(int\)"),
        (lambda: ours.load_result(None), r"^path = None \(NoneType\)"),
        (lambda: ours.sweep("schemes", "x", jobs="2"), "^jobs must be at least 1"),
        (lambda: traces.load(3), r"^trace = 3 \(int\)"),
        (lambda: traces.load("toy-zipf", layers=0), r"^layers = 0 \(int\)"),
        (lambda: traces.load("toy-zipf", tokens=(0, 3)), r"^tokens = \(0, 3\) \(tuple\)"),
        (lambda: machines.load(None), r"^system = None \(NoneType\)"),
    ]
    for call, said in refusals:
        with pytest.raises(UserError, match=said):
            call()
