"""``moereplay diff``, and ``compare --uncertainty`` on the command line."""

from __future__ import annotations

import json

import pytest
from command_line import end_of

import replay
import tracegen


@pytest.fixture(scope="module")
def files(tmp_path_factory, synthetic):
    """A trace, and comparisons of it."""
    folder = tmp_path_factory.mktemp("files")
    trace = synthetic(ranks=4, tokens_per_rank=8)
    tracegen.write(trace, folder / "t.h5")
    for name, value in (("a", 15.0), ("b", 60.0)):
        settings = {"layer": 0, "overrides": {"overheads.host_sync_us": value}}
        replay.compare(trace, ["deepep", "nccl-alltoall"], **settings).save(folder / f"{name}.json")
    (folder / "cut.json").write_text((folder / "a.json").read_text()[:2000])
    (folder / "study.json").write_text('{"format": "moereplay-study/1"}')
    return folder


def run(capsys, *arguments):
    """Exit code, output and errors of a command."""
    end = end_of(*arguments)
    said = capsys.readouterr()
    return end, said.out, said.err


def test_diff_says_what_and_why(capsys, files):
    code, out, _ = run(capsys, "diff", files / "a.json", files / "b.json")
    assert code == 0
    assert "system.overheads.host_sync_us" in out and "overhead" in out


def test_diff_ends_with_1_only_if_that_is_asked_for(capsys, files):
    a, b = files / "a.json", files / "b.json"
    assert run(capsys, "diff", a, b, "--exit-code")[0] == 1
    assert run(capsys, "diff", a, a, "--exit-code")[0] == 0


def test_diff_writes_json(capsys, files, tmp_path):
    run(capsys, "diff", files / "a.json", files / "b.json", "--json", tmp_path / "d.json")
    assert json.loads((tmp_path / "d.json").read_text())["is_same"] is False


@pytest.mark.parametrize("name", ["cut.json", "study.json", "missing.json", "t.h5"])
def test_what_is_no_result_is_refused_in_a_line(capsys, files, name):
    code, out, err = run(capsys, "diff", files / "a.json", files / name)
    assert (code, out) == (2, "")
    assert err.startswith("error: ") and name in err and err.count("\n") == 1


def test_compare_draws_what_is_uncertain(capsys, files, tmp_path):
    code, out, _ = run(
        capsys,
        "compare",
        files / "t.h5",
        "--layer",
        0,
        "--scheme",
        "deepep",
        "--scheme",
        "ideal",
        "--uncertainty",
        3,
        "--uncertainty-of",
        "model, hardware",
        "--uncertainty-seed",
        4,
        "--json",
        tmp_path / "c.json",
    )
    assert code == 0 and "How sure it is: 3 draws of hardware and model, seed 4" in out
    assert "in each draw, us" in out and "5 %" not in out  # three say no quantile
    found = replay.load_result(tmp_path / "c.json").uncertainty
    assert (found.draws, found.seed, found.drawn) == (3, 4, ["hardware", "model"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--uncertainty", 0], "draws must be from 1 to"),
        (["--uncertainty", 2, "--uncertainty-of", "links"], "known: hardware, model, routing"),
        (["--uncertainty-of", "model"], "--uncertainty N is missing"),
    ],
)
def test_draws_that_are_not_possible_are_refused_before_a_replay(capsys, files, arguments, says):
    code, out, err = run(capsys, "compare", files / "t.h5", *arguments)
    assert (code, out) == (2, "") and says in err


# ---- explain -------------------------------------------------------------------------------------


def test_explain_replays_two_schemes(capsys, files, tmp_path):
    code, out, _ = run(
        capsys,
        "explain",
        "deepep",
        "nccl-alltoall*",
        files / "t.h5",
        "--layer",
        "0",
        "--option",
        "deepep.num_sms=8",
        "--details",
        "--json",
        tmp_path / "e.json",
    )
    found = json.loads((tmp_path / "e.json").read_text())
    assert code == 0 and found["format"] == "moereplay-explanation/1"
    assert f"deepep takes {found['one_us']:,.1f} us" in out
    assert "Critical path" in out and "What a GPU does in the mean" in out
    assert "What the words mean: moereplay words " in out and "moereplay schemes nccl-alltoall" in out


def test_explain_explains_its_words(capsys, files):
    code, out, _ = run(capsys, "explain", "nccl-alltoall", "deepep", files / "a.json", "--details", "--explain-words")
    assert code == 0 and "moereplay words" not in out and "compute: work on a GPU's own data" in out


def test_explain_reads_a_comparison(capsys, files):
    code, out, _ = run(capsys, "explain", "nccl-alltoall", "deepep", files / "a.json")
    assert code == 0 and out.startswith("nccl-alltoall takes")
    assert len(out.splitlines()) <= 40 and "More (`--details`" in out and "What a GPU does in the mean" not in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["deepep", "nccl-alltoall"], "which trace? Such as `moereplay explain deepep nccl-"),
        (["deepep", "deepep-l", "a.json"], "deepep-l"),
        (["deepep, contiguous", "nvls", "t.h5"], "is a row: in the place of t.h5, give the JSON"),
        (["a.json", "b.json"], "holds a comparison; name two of its schemes: deepep"),
        (["a.json", "deepep", "b.json"], "give two files, or two schemes and a trace"),
        (["deepep", "nvls", "a.json"], "nvls"),
        (["deepep", "nccl-alltoall", "a.json", "--layer", "0"], "options need two schemes and"),
        (["deepep", "nccl-alltoall", "cut.json"], "cut short"),
        (["deepep", "nccl-alltoall", "none.json"], "No such file"),
    ],
)
def test_explain_says_what_it_takes(capsys, files, monkeypatch, words, said):
    monkeypatch.chdir(files)
    code, out, err = run(capsys, "explain", *words)
    assert (code, out) == (2, "") and said in err and len(err.splitlines()) <= 2
