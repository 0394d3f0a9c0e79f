"""A command that refuses leaves no folder behind, whatever it was to make one for."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path

import pytest
import typer
from command_line import commands, end_of

import tracegen
from replay.cli.app import app
from tracegen.shared import output
from tracegen.shared.display import files, plots
from tracegen.shared.display.content import Page, Section
from tracegen.shared.errors import UserError

STUDY = """
title = "S"
question = "?"
[fixed]
trace.model = "olmoe-1b-7b"
scheme = "ideal"
tokens_per_rank = 4
[axes]
ranks = [2]
[[columns]]
header = "us"
path = "totals.makespan_us"
"""


def refused(words: list[str]) -> str:
    """Why, in words; it must be refused."""
    before = signal.getsignal(signal.SIGTERM)
    end = end_of(*words)
    signal.signal(signal.SIGTERM, before)
    assert end, words
    return " ".join(words)


def test_every_command_that_makes_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With inputs that are not there, then with some that are found out late."""
    monkeypatch.chdir(tmp_path)
    walked = set()
    for words, of in commands(typer.main.get_command(app)):
        for param in of.params:
            if param.metavar != "FOLDER":
                continue
            walked.add(words[-1])
            given = ["new/deep"] if param.param_type_name == "argument" else []
            others = [
                "no.h5" for one in of.params if one is not param and one.param_type_name == "argument" and one.required
            ]
            needed = [
                word
                for one in of.params
                if one.param_type_name == "option" and one.required
                for word in (one.opts[0], "1")
            ]
            option = [] if given else [param.opts[0], "new/deep"]
            opts = {opt for one in of.params for opt in one.opts}
            absent = next((opt for opt in ("--system", "--model", "--json") if opt in opts), None)
            option += [] if absent is None or others else [absent, "no/where.toml"]
            refused([*words, *given, *others, *needed, *option])
            assert not list(tmp_path.iterdir()), words
    assert {"add", "publish", "fetch", "sweep", "choose", "report", "stats", "run"} <= walked

    made = tracegen.load("toy-zipf", layers=[0])
    named = dataclasses.replace(made, info=dataclasses.replace(made.info, license=""))
    tracegen.write(named, tmp_path / "unlicensed.h5")
    whole = bytearray((tmp_path / "unlicensed.h5").read_bytes())
    whole[len(whole) // 2] ^= 1
    (tmp_path / "damaged.h5").write_bytes(whole)
    (tmp_path / "s.toml").write_text(STUDY)
    (tmp_path / "new-file").write_text("")
    before = sorted(tmp_path.iterdir())
    sweep = ["sweep", "s.toml", "-o", "new/deep"]
    for words in (
        ["trace", "add", "new/deep", "unlicensed.h5"],
        ["trace", "add", "new/deep", "damaged.h5"],
        ["trace", "add", "new/deep", "damaged.h5", "--name", "a/b"],
        ["trace", "publish", "new", "unlicensed.h5", "--title", "T", "--creator", "C"],
        ["trace", "publish", "new", "damaged.h5", "--title", "T", "--creator", "C"],
        ["trace", "stats", "damaged.h5", "--plots", "new/deep", "--tables", "new/deep"],
        ["compare", "damaged.h5", "--plots", "new/deep", "--tables", "new/deep"],
        [*sweep, "--jobs", "0"],
        [*sweep, "--shard", "3/2"],
        [*sweep, "--cluster", "nowhere"],
        ["sweep", "s.toml", "-o", "new-file/deep"],
    ):
        said = refused(words)
        assert sorted(tmp_path.iterdir()) == before, said


def test_a_sweep_without_its_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("replay.experiments.base.crews.clusters.CONNECT_S", 0.2)
    (tmp_path / "s.toml").write_text(STUDY)
    refused(["sweep", "s.toml", "-o", "new/deep", "--scheduler", "tcp://127.0.0.1:1"])
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]


def test_a_folder_for_nothing_is_not_made(tmp_path: Path) -> None:
    """Of a page without charts or tables, and of work that fails within."""
    page = Page("T", "s", [Section("S", ["a paragraph"])])
    assert plots.write(page, tmp_path / "a/b") == []
    assert files.write(page, tmp_path / "a/b").files == []
    for error in (UserError, KeyboardInterrupt):
        with pytest.raises(error), output.folder(tmp_path / "a/b"):
            raise error
        assert not list(tmp_path.iterdir())
    with output.folder(tmp_path / "a/b"):
        (tmp_path / "a/c").write_text("kept")
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["c"]
    with output.folder(tmp_path / "a"), output.folder(tmp_path / "a/b/c"):
        (tmp_path / "a/b/c/d").write_text("")
    assert (tmp_path / "a/b/c/d").exists()
    (tmp_path / "a/b/e").mkdir()  # it was there before
    with output.folder(tmp_path / "a/b/e"):
        pass
    assert (tmp_path / "a/b/e").is_dir()
    failing = pytest.raises(UserError, match=r"cannot write .*c/x: Not a directory")
    with failing, output.folder(tmp_path / "a/c/x"):
        raise AssertionError
