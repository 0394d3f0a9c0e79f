"""Recordings of others from the import to the replay, as typed: nothing is taken for another."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from typer.testing import CliRunner

import tracegen
from replay.cli.app import app
from tracegen.models import load

Array = npt.NDArray[np.int64]


def typed(*words: object, fails: bool = False) -> str:
    """What a command says; a mistake is one or two lines."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        assert "UserError" in {kind.__name__ for kind in type(done.exception).__mro__}, done
        assert fails and str(done.exception).count("\n") < 2
        return str(done.exception)
    assert (done.exit_code != 0) == fails, done.output
    return done.output


def imported(folder: Path, *words: object, fails: bool = False, **arrays: object) -> str:
    """Arrays as ``r.npz``, imported to ``r.h5``."""
    np.savez(folder / "r.npz", **arrays)  # type: ignore[arg-type]  # of numpy's stubs
    command = ["trace", "import", folder / "r.npz", "--format", "arrays", "--force"]
    return typed(*command, "--out", folder / "r.h5", *words, fails=fails)


def columns(ranks: list[int], rows: int) -> dict[str, Array]:
    """So many tokens of a decode step on each rank, each of a request of its own."""
    rank = np.repeat(ranks, rows)
    same = {name: np.full(rank.size, 1) for name in ("step", "phase", "position")}
    return {"rank": rank, "request": np.arange(rank.size), "layers": np.array([3]), **same}


def test_the_last_gpu_was_idle(tmp_path: Path) -> None:
    rng, shape = np.random.default_rng(0), load("deepseek-v3")
    ids = np.argsort(rng.random((7 * 4, 1, shape.num_experts)), axis=2)[..., : shape.topk]
    model = ["--model", "deepseek-v3"]
    said = imported(tmp_path, *model, fails=True, expert_ids=ids, **columns([*range(7)], 4))
    assert "not dealt evenly to 7 GPUs" in said and "--ranks 8" in said
    assert not (tmp_path / "r.h5").exists()
    imported(tmp_path, *model, "--ranks", 8, expert_ids=ids, **columns([*range(7)], 4))
    run = ["compare", tmp_path / "r.h5", "--scheme", "ideal"]
    alone = typed(*run, "--json", tmp_path / "8.json")
    assert "8 ranks" in alone
    assert typed(*run, "--ranks", 8, "--json", tmp_path / "asked.json") == alone
    batch = json.loads((tmp_path / "8.json").read_text())["results"][0]["batch"]
    assert batch["num_ranks"] == 8 and "28 tokens" in alone
    assert "import it with --ranks 16" in typed(*run, "--ranks", 16, fails=True)


def test_ranks_with_equal_routes_have_requests_of_their_own(tmp_path: Path) -> None:
    slot = np.arange(128 * 8).reshape(128, 1, 8) % 256  # forced balance, the same on every rank
    given = columns([*range(8)], 128)
    imported(tmp_path, "--model", "deepseek-v3", expert_ids=np.tile(slot, (8, 1, 1)), **given)
    trace = tracegen.load(tmp_path / "r.h5")
    assert trace.num_tokens == 1024
    assert np.bincount(trace.tokens.rank).tolist() == [128] * 8
    assert "8 ranks" in typed("compare", tmp_path / "r.h5", "--scheme", "ideal")


def test_experts_that_do_nothing_get_no_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = np.argsort(rng.random((64, 2, 24)), axis=2)[..., :4]
    sizes = ["--num-experts", 24, "--hidden-size", 1024]
    imported(tmp_path, *sizes, "--zero-experts", 8, expert_ids=ids)
    trace = tracegen.load(tmp_path / "r.h5")
    assert trace.model.num_ffn_experts == 16
    said = imported(tmp_path, *sizes, "--zero-experts", 24, fails=True, expert_ids=ids)
    assert "--zero-experts 24: that is all of 24" in said
    assert tracegen.load(tmp_path / "r.h5").content_id == trace.content_id
    told = imported(tmp_path, "--num-experts", 16, *sizes[2:], fails=True, expert_ids=ids)
    assert "experts that do nothing" in told


def test_a_journal_that_is_not_there(tmp_path: Path) -> None:
    told = typed("trace", "recover", tmp_path / "gone.partial", fails=True)
    assert told.strip().endswith("gone.partial: no such file")
