"""The token-expert graph: by closed forms, and against a twin that reads the format's words."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pytest
from typer.testing import CliRunner

import tracegen
from tracegen import RequestTable, RoutingTrace, TokenTable, UserError, count_graph, expert_graph
from tracegen.cli import app
from tracegen.generate import generate
from tracegen.trace import graph as module
from tracegen.trace.graph import EDGE_KINDS, window_of
from tracegen.trace.graphml import to_networkx, write_graphml
from tracegen.trace.tables import DECODE, PREFILL


def twin(
    trace: RoutingTrace, layers: range, steps: range, rows: range
) -> tuple[set[Any], dict[tuple[Any, Any], tuple[str, int]]]:
    """Nodes, and edges with kind and slot, one at a time from the words of FORMAT.md."""
    step_of = {row: step for step in range(trace.num_steps) for row in range(trace.num_tokens)[trace.step_rows(step)]}
    inside = [row for row in rows if step_of[row] in steps]
    nodes: set[Any] = {("token", layer, row) for layer in [*layers, layers.stop] for row in inside}
    edges: dict[tuple[Any, Any], tuple[str, int]] = {}
    for layer in layers:
        for row in inside:
            state, after = ("token", layer, row), ("token", layer + 1, row)
            visits = 0
            for slot, expert in enumerate(trace.layer_ids(layer)[row].tolist()):
                if expert == -1:
                    continue
                instance = ("expert", layer, expert, step_of[row])
                nodes.add(instance)
                edges[state, instance] = ("dispatch", slot)
                edges[instance, after] = ("combine", slot)
                visits += 1
            if not visits:
                edges[state, after] = ("skip", -1)
    for row in inside:
        if trace.tokens.phase[row] != DECODE:
            continue
        before = [
            other
            for other in range(trace.num_tokens)
            if trace.tokens.request[other] == trace.tokens.request[row]
            and int(trace.tokens.position[other]) == int(trace.tokens.position[row]) - 1
            and step_of[other] < step_of[row]
        ]
        ends = ("token", trace.num_layers, max(before, default=-1)), ("token", 0, row)
        if before and set(ends) <= nodes:
            edges[ends] = ("next", -1)
    return nodes, edges


def random_trace(seed: int) -> RoutingTrace:
    """Few requests and positions, so that some come twice; some rows visit nobody."""
    rng = np.random.default_rng(seed)
    layers, number, steps = int(rng.integers(1, 4)), int(rng.integers(1, 30)), 5
    trace = generate("zipf", "olmoe-1b-7b", ranks=1, tokens_per_rank=number, layers=layers, seed=seed)
    ids = trace.expert_ids.copy()
    ids[rng.random(ids.shape) < 0.3] = trace.empty_slot
    ids[rng.random(ids.shape[:2]) < 0.2] = trace.empty_slot
    step = np.sort(rng.integers(0, steps, number)).astype(np.uint32)
    edges = np.flatnonzero(np.diff(step)) + 1
    return dataclasses.replace(
        trace,
        expert_ids=ids,
        steps_indptr=np.concatenate([[0], edges, [number]]).astype(np.uint64),
        requests=RequestTable(),
        tokens=TokenTable(
            step=step,
            request=rng.integers(0, 3, number).astype(np.uint32),
            position=rng.integers(0, 4, number).astype(np.uint32),
            phase=rng.choice([PREFILL, DECODE], number).astype(np.uint8),
        ),
        stored_content_id="",
    )


def names(graph: tracegen.TokenExpertGraph) -> list[Any]:
    return [
        ("token", layer, row) if row >= 0 else ("expert", layer, expert, step)
        for layer, row, expert, step in zip(
            *(column.tolist() for column in (graph.layer, graph.row, graph.expert, graph.step)),
            strict=True,
        )
    ]


def check(trace: RoutingTrace, *ranges: Any) -> int:
    """A window against the twin, counted and made; returns how many edges are of kind next."""
    window = window_of(trace, *ranges)
    nodes, edges = twin(trace, window.layers, window.steps, window.rows)
    graph = expert_graph(trace, *ranges)
    found = names(graph)
    assert len(found) == len(set(found))
    assert set(found) == nodes
    made = {
        (found[source], found[target]): (EDGE_KINDS[kind], slot)
        for source, target, kind, slot in zip(
            *(c.tolist() for c in (graph.source, graph.target, graph.kind, graph.slot)),
            strict=True,
        )
    }
    assert len(made) == graph.source.size
    assert made == edges
    kinds = [kind for kind, _ in edges.values()]
    counts = count_graph(trace, *ranges)
    assert dataclasses.asdict(counts) == {
        "token_states": sum(node[0] == "token" for node in nodes),
        "expert_instances": sum(node[0] == "expert" for node in nodes),
        **{kind: kinds.count(kind) for kind in EDGE_KINDS},
    }
    assert (counts.nodes, counts.edges) == (len(nodes), len(edges))
    for node, waits_for, step in zip(found, graph.waits_for.tolist(), graph.step, strict=True):
        if node[0] == "expert":
            ids = trace.layer_ids(node[1])[trace.step_rows(int(step))]
            assert waits_for == np.count_nonzero(ids == node[2])
        else:
            assert waits_for == 0
            assert node[2] in range(trace.num_tokens)[trace.step_rows(int(step))]
    return kinds.count("next")


def test_windows_are_what_the_format_says(monkeypatch: pytest.MonkeyPatch) -> None:
    followed = 0
    for seed in range(40):
        # Counting in one go, and in the smallest parts.
        monkeypatch.setattr(module, "_CHUNK_ROWS", 1 if seed % 2 else 1 << 20)
        trace = random_trace(seed)
        followed += check(trace)
        rng = np.random.default_rng(seed)
        layer, step = (int(rng.integers(0, n)) for n in (trace.num_layers, trace.num_steps))
        check(trace, (layer, layer + 1))
        check(trace, None, (step, None))
        rows = trace.step_rows(step)
        check(trace, (None, layer + 1), (0, step + 1), (rows.stop - 1, None))
        check(trace, None, None, (0, (trace.num_tokens + 1) // 2))
    assert followed > 50


@pytest.mark.parametrize(("layers", "ranks", "tokens", "steps"), [(3, 2, 16, 4), (1, 1, 1, 1)])
def test_counts_in_closed_form(layers: int, ranks: int, tokens: int, steps: int) -> None:
    trace = generate(
        "uniform",
        "olmoe-1b-7b",
        ranks=ranks,
        tokens_per_rank=tokens,
        layers=layers,
        steps=steps,
        phase="decode",
    )
    rows = ranks * tokens * steps
    counts = count_graph(trace)
    assert counts.token_states == rows * (layers + 1)
    assert counts.dispatch == counts.combine == rows * layers * trace.topk
    assert counts.skip == 0
    loads = [np.diff(trace.dag(layer, step).indptr) for layer in range(layers) for step in range(steps)]
    assert counts.expert_instances == sum(int(np.count_nonzero(load)) for load in loads)


def test_a_recording_of_generations_is_followed_but_for_the_first_tokens() -> None:
    trace = tracegen.load("gpt-oss-20b-decode")
    counts = count_graph(trace)
    # One token a step, all slots full: an instance for each visit, and no two tokens share one.
    assert counts.expert_instances == counts.dispatch == 24 * 215_438 * 4
    assert counts.next == 215_438 - 703
    part = count_graph(trace, tokens=(0, 1_000))
    requests = np.unique(trace.tokens.request[:1_000]).size
    assert part.next == 1_000 - requests
    assert count_graph(trace, layers=(0, 23), tokens=(0, 1_000)).next == 0


def test_time_only_passes_forward(tiny: RoutingTrace) -> None:
    made = to_networkx(tiny, expert_graph(tiny))
    assert networkx.is_directed_acyclic_graph(made)
    # From the prompt's last token through its last state to the token that it made.
    assert made.edges["L2 T1", "L0 T3"] == {"kind": "next"}
    assert made.edges["L0 T2", "L0 E2 S0"] == {"kind": "dispatch", "slot": 0, "weight": 0.75}
    assert made.edges["L1 E1 S0", "L2 T0"] == {"kind": "combine", "slot": 1, "weight": 0.25}
    assert made.nodes["L1 E0 S0"] == {
        "node": "expert",
        "layer": 1,
        "decoder_layer": 3,
        "step": 0,
        "expert": 0,
        "waits_for": 3,
    }
    assert made.nodes["L2 T4"] == {
        "node": "token",
        "layer": 2,
        "decoder_layer": -1,
        "step": 1,
        "row": 4,
        "request": 1,
        "position": 1,
        "phase": "decode",
    }


def test_graphml_comes_back(tiny: RoutingTrace, tmp_path: Path) -> None:
    graph = expert_graph(tiny, layers=(1, 2), tokens=(1, 4))
    write_graphml(tiny, graph, tmp_path / "g.graphml")
    back = networkx.read_graphml(tmp_path / "g.graphml")
    made = to_networkx(tiny, graph)
    assert dict(back.nodes.data()) == dict(made.nodes.data())
    assert list(back.edges.data()) == list(made.edges.data())


@pytest.mark.parametrize(
    ("ranges", "message"),
    [
        ({"layers": (0, 3)}, "layers 0:3: possible are START:END with 0 <= START < END <= 2"),
        ({"steps": (-1, 2)}, "steps -1:2: possible"),
        ({"tokens": (5, 1)}, "tokens 5:1: possible"),
        ({"tokens": (5, None)}, "tokens 5:5: possible"),
        ({"steps": (0, 1), "tokens": (3, 5)}, "steps 0:1 are rows 0:3; none of them is among"),
    ],
)
def test_windows_that_do_not_exist(tiny: RoutingTrace, ranges: Any, message: str) -> None:
    for make in (count_graph, expert_graph):
        with pytest.raises(UserError) as refusal:
            make(tiny, **ranges)
        assert message in str(refusal.value)


def test_a_large_window_becomes_no_objects(tiny: RoutingTrace) -> None:
    trace = generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=4096, layers=4)
    with pytest.raises(UserError, match="has 262144 edges, and GraphML is written of at most"):
        to_networkx(trace, expert_graph(trace))


# The command -----------------------------------------------------------------------------------


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["graph", *map(str, arguments)])


def test_the_command_counts_and_writes(tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    out = tmp_path / "g.graphml"
    window = ("toy-zipf", "--layers", "0:1", "--tokens", ":7", "--out", out)
    done = run(*window, "--json")
    assert done.exit_code == 0, done.stderr
    said = json.loads(done.stdout)
    counts = count_graph(tracegen.load("toy-zipf"), layers=(0, 1), tokens=(0, 7))
    assert said == {
        **dataclasses.asdict(counts),
        "nodes": counts.nodes,
        "edges": counts.edges,
    }
    written = networkx.read_graphml(out)
    assert (written.number_of_nodes(), written.number_of_edges()) == (counts.nodes, counts.edges)
    again = run(*window)
    assert again.exit_code == 2
    assert again.stderr == f"error: {out} exists; --force overwrites it\n"
    assert run(*window, "--force").stdout.splitlines()[0] == f"token states{14:>21}"
    to_stdout = run(*window[:-1], "-")
    assert capfdbinary.readouterr().out == out.read_bytes()
    assert to_stdout.stdout == ""
    assert to_stdout.stderr.startswith("token states")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--layers", "1"), "--layers 1: write A:B, such as 0:2"),
        (("--tokens", "0:x"), "--tokens 0:x: write A:B, such as 0:2"),
        (("--tokens", "5:1"), "tokens 5:1: possible are START:END with 0 <= START < END <="),
        (("--out", "g.graphml"), "edges, and GraphML is written of at most 100000: choose fewer"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("gpt-oss-20b-decode", *arguments)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
