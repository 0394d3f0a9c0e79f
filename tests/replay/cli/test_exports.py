"""The exports of `moereplay run`: files of the replayed graph, and what they do not hold."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from command_line import end_of

import hwmodel
import replay
import tracegen
from replay.cli.exports import Exports, parse_exports
from replay.engine import Timeline

SMALL = ("gpt-oss-20b-decode", "--scheme", "dysharp", "--ranks", "2", "--tokens-per-rank", "4")


def run(*arguments: str) -> int:
    return end_of("run", *SMALL, *arguments)


@pytest.mark.extended
def test_all_formats_of_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    events, program, nodes, graph = (str(tmp_path / name) for name in ("t.json.gz", "p.goal", "p", "g.graphml"))
    code = run(
        "--layer",
        "3",
        "--trace-events",
        events,
        "--export",
        f"goal:{program}",
        "--export",
        f"chakra:{nodes}",
        "--export",
        f"networkx:{graph}",
        "--json",
        str(tmp_path / "r.json"),
    )
    assert code == 0
    said = capsys.readouterr().err
    assert "chakra: " in said
    assert f"{nodes}.0.et and 1 more" in said
    assert "gates are fixed as this schedule resolved them" in said
    found = {path.name for path in tmp_path.iterdir()}
    assert found == {"t.json.gz", "p.goal", "p.0.et", "p.1.et", "g.graphml", "r.json"}
    trace = json.loads(gzip.decompress(Path(events).read_bytes()))
    result = json.loads((tmp_path / "r.json").read_text())
    (layer,) = result["layers"]
    tasks = [
        task
        for event in trace["traceEvents"]
        if event["ph"] == "X" and "start_ps" in event["args"]
        if event["cat"] not in ("phase", "layer", "critical path", "followed")
        for task in (event["args"], *event["args"].get("with", []))
    ]
    assert {task["task"] for task in tasks} == set(range(layer["measures"]["num_tasks"]))
    assert float(trace["otherData"]["makespan_us"]) == pytest.approx(layer["measures"]["makespan_us"], abs=1e-9)


def test_layers_in_a_chain_are_one_graph(tmp_path: Path) -> None:
    seen: list[Timeline] = []
    trace, system = tracegen.load("gpt-oss-20b-decode"), hwmodel.load("dgx-h100")
    small = {"ranks": 2, "tokens_per_rank": 4, "layer": [0, 1]}
    chained = replay.run(trace, system=system, scheme="ideal", observe=seen.append, **small)
    assert chained.chain is not None
    assert [timeline.graph.num_tasks for timeline in seen] == [chained.chain.measures.num_tasks]
    seen.clear()
    apart = replay.run(trace, system=system, scheme="ideal", observe=seen.append, barrier=True, **small)
    assert [timeline.graph.num_tasks for timeline in seen] == [layer.measures.num_tasks for layer in apart.layers]


def test_window_and_limit_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.json"
    code = run("--layer", "0", "--trace-events", str(path), "--window", "1.5:20", "--max-events", "50")
    assert code == 0
    said = capsys.readouterr().err
    assert "lie outside 1.500000 to 20.000000 us and are left out" in said
    assert "tasks are more than 50 events and are left out: written are counters" in said


def followed(path: Path) -> tuple[set[str], dict[str, float]]:
    """Names of what is followed in trace events, and times of the whole way."""
    events = json.loads(path.read_text())["traceEvents"]
    slices = [one for one in events if one["ph"] == "X" and one["cat"] == "followed"]
    (whole,) = (one for one in slices if "task" not in one["args"])
    names = {one["name"] for one in events if one["ph"] in "sf"}
    return names, {"sent_us": whole["ts"], "latency_us": whole["args"]["dur_ps"] / 1e6}


@pytest.mark.extended
def test_the_way_of_a_token(tmp_path: Path) -> None:
    """By default of the slowest, as the result names it; of another if asked."""
    path, saved = tmp_path / "t.json", tmp_path / "r.json"
    assert run("--layer", "3", "--trace-events", str(path), "--json", str(saved)) == 0
    slowest = json.loads(saved.read_text())["layers"][0]["slowest_tokens"]
    names, times = followed(path)
    assert names == {f"token {slowest[0]['token']}"}
    assert times["latency_us"] == slowest[0]["latency_us"]
    other = slowest[1]
    assert run("--layer", "3", "--trace-events", str(path), "--trace-token", str(other["token"])) == 0
    names, times = followed(path)
    assert names == {f"token {other['token']}"}
    assert times["latency_us"] == other["latency_us"]
    assert times["sent_us"] == pytest.approx(other["sent_us"], abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--export", "svg:x"],
            "expected FORMAT:FILE, FORMAT being chakra, chrome, goal, networkx",
        ),
        (["--export", "goal"], "--export goal: expected FORMAT:FILE"),
        (["--window", "1:2"], "--window and --max-events go with --trace-events or --export"),
        (["--trace-events", "x", "--window", "2:1"], "expected START:END in microseconds"),
        (["--trace-events", "x", "--window", "a:b"], "expected START:END in microseconds"),
        (["--trace-events", "x", "--window", "nan:1"], "expected START:END in microseconds"),
        (["--trace-events", "x", "--max-events", "0"], "possible are 1 and more"),
        (["--trace-token", "3"], "--trace-token goes with --trace-events"),
        (["--export", "goal:y", "--trace-token", "3"], "--trace-token goes with --trace-events"),
        (
            ["--trace-events", "x", "--trace-token", "-1"],
            "--trace-token -1: tokens of the batch are 0 to 7",
        ),
        (
            ["--layer", "0", "--trace-events", "x", "--trace-token", "8"],
            "--trace-token 8: tokens of the batch are 0 to 7",
        ),
        (["--trace-events", "x", "--barrier"], "choose one --layer, or leave out --barrier"),
        (
            ["--layer", "0", "--trace-events", "/nowhere/x"],
            "cannot write /nowhere/x: there is no folder",
        ),
        (
            ["--trace-events", "x", "--export", "goal:y", "--window", "1:2"],
            "goal holds whole programs",
        ),
    ],
)
def test_mistakes(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert words in said
    assert list(tmp_path.iterdir()) == []


def test_a_window_is_exact() -> None:
    exports = parse_exports("x", [], "0.000001:1.5", None, is_one_graph=True)
    assert exports == Exports([("chrome", "x")], (1, 1_500_000))
