"""Placements fitted to loads alone: those of the trace that the loads were counted in."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import tracegen
from replay.cli.app import app
from replay.errors import UserError
from replay.experiments.ask import place as run_place
from replay.experiments.place.result import PlacementResult
from replay.model.work.expert_maps import FORMATS
from replay.model.work.map_arrays import WhichLayer
from replay.model.work.placement import place
from tracegen.importers.loads import Loads

RANKS = 4


def fit_loads(counts: np.ndarray, **settings: object) -> PlacementResult:
    return run_place(given={"loads": Loads(counts)}, **settings)


@pytest.fixture(scope="module")
def trace() -> tracegen.RoutingTrace:
    """Four ranks, four steps of a skewed model."""
    return tracegen.generate.generate(
        "zipf", "olmoe-1b-7b", ranks=RANKS, tokens_per_rank=24, layers=2, steps=4, seed=1, skew=1.0
    )


@pytest.fixture(scope="module")
def counts(trace: tracegen.RoutingTrace) -> np.ndarray:
    """Its loads, (step, layer, expert)."""
    return np.array(
        [
            [np.bincount(trace.layer_ids(layer)[trace.step_rows(step)].ravel(), minlength=64) for layer in range(2)]
            for step in range(4)
        ]
    )


def run(*arguments: object) -> tuple[int, str, str]:
    done = CliRunner().invoke(app, ["place", *map(str, arguments)])
    return done.exit_code, done.stdout, done.stderr


@pytest.mark.parametrize("fitted_on", [None, (0, 2)])
@pytest.mark.parametrize("slots", [64, 80])
def test_loads_place_experts_as_their_trace_does(trace, counts, slots: int, fitted_on) -> None:
    settings = {"ranks": RANKS, "slots": slots, "fit": fitted_on}
    by_trace = run_place(given={"trace": trace}, **settings)
    by_loads = fit_loads(counts, **settings)
    assert by_loads.slot_expert == by_trace.slot_expert
    assert [one.steps for one in by_loads.windows] == [one.steps for one in by_trace.windows]
    for one, other in zip(by_loads.windows, by_trace.windows, strict=True):
        assert one.before == pytest.approx(other.before)
        if slots == 64:  # with replicas, rows are shared by the GPU that they come from
            assert (one.fitted, one.fresh) == (
                pytest.approx(other.fitted),
                pytest.approx(other.fresh),
            )


def test_replicas_share_the_rows_of_their_expert_evenly() -> None:
    counts = np.array([[[8, 2, 1, 1]]])
    found = fit_loads(counts, ranks=2, slots=6)
    held = np.array(found.slot_expert[0])
    shared = counts[0, 0] / np.bincount(held)
    rows = shared[held].reshape(2, 3).sum(axis=1)
    assert found.windows[0].fitted == [rows.max() / rows.mean()]
    assert found.windows[0].before == [10 / 6]


def test_the_command_writes_maps_of_every_format_from_loads(counts, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    total = counts.sum(axis=0)
    path.write_text(json.dumps({n: dict(enumerate(row)) for n, row in enumerate(total.tolist())}))
    wanted = fit_loads(total[None], ranks=RANKS, slots=80).slot_expert
    for form in FORMATS:
        out = tmp_path / ("map.yaml" if form == "tensorrt" else f"{form}.json")
        code, stdout, stderr = run("--loads", path, "--ranks", RANKS, "--slots", 80, "--out", out, "--format", form)
        assert code == 0, stderr
        assert "64 experts in 80 slots on 4 GPUs: eplb, fitted on all tokens" in stdout
        assert "Loads alone do not tell which experts a token has together" in stderr
        for layer in (0, 1):
            found = place(f"file:{out}", 64, RANKS, WhichLayer(layer, layer))
            assert found.logical is not None and found.logical.tolist() == wanted[layer], form
    code, stdout, stderr = run("--loads", path, "--ranks", RANKS, "--algorithm", "file", "--from", out)
    assert code == 0 and "80 slots on 4 GPUs: file" in stdout, stderr


def test_what_loads_cannot_say_is_refused(counts, tmp_path: Path) -> None:
    path = tmp_path / "counts.npy"
    np.save(path, counts)
    hot = tmp_path / "hot.npy"
    np.save(hot, np.eye(1, 64, dtype=np.int64).repeat(16, 0) * 100 + 1)
    wrong = []
    for arguments, said in (
        ([], "name a trace, or give --loads FILE"),
        (["t.h5", "--loads", path], "name a trace, or give --loads FILE"),
        (["--loads", path, "--replicas", "nearest"], "replicas nearest: loads have no tokens"),
        (["--loads", path, "--phase", "decode"], "phase decode: loads have no tokens"),
        (["--loads", path, "--tokens-per-rank", 4], "tokens_per_rank 4: loads have no tokens"),
        (["--loads", path, "--algorithm", "affinity"], "which loads do not tell"),
        (["--loads", path, "--fit", "2:9"], "the loads have 4 steps; steps 2 to 8"),
        (["--loads", path, "--slots", 60], "60 slots"),
        (["--loads", path, "--model", "olmoe-1b-7b"], "--model olmoe-1b-7b has 16 layers with"),
        (["--loads", hot, "--model", "olmoe-1b-7b"], "an expert has 101 tokens of only 21"),
        (["--loads", tmp_path / "gone.npy"], "gone.npy: no such file"),
    ):
        error = CliRunner().invoke(app, ["place", *map(str, arguments)]).exception
        if not isinstance(error, UserError) or said not in str(error) or "\n" in str(error):
            wrong.append((arguments, error))
    assert not wrong
    with pytest.raises(UserError, match="unknown algorithm 'epl'"):
        fit_loads(counts, ranks=RANKS, slots=64, algorithm="epl")
