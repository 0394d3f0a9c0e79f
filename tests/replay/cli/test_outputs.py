"""Where commands write: refused before the work, to standard output too, never half."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import commands, end_of

import tracegen
from replay.cli.app import app

INPUTS = {
    "spec",
    "prompts",
    "mask",
    "files",
    "journals",
    "compared",
    "log",
    "logs",
    "result",
    "results",
}
"""Parameters of commands that name files to read."""

RUN = ("run", "toy-zipf", "--scheme", "ideal", "--layer", "0")


def outputs() -> Iterator[tuple[tuple[str, ...], str, str]]:
    """(command, parameter, FILE or FOLDER) of all that is written."""
    for words, one in commands(typer.main.get_command(app)):
        for param in one.params:
            if param.metavar in ("FILE", "FOLDER", "OUT"):
                yield words, param.opts[0], "FOLDER" if param.metavar == "FOLDER" else "FILE"


# ---- before the work ---------------------------------------------------------------------------


def test_a_path_of_a_command_is_to_read_or_is_looked_at_before_it_is_written() -> None:
    assert len([*outputs()]) > 20
    root = Path(tracegen.__file__).parents[1]
    paths = set()
    for file in [*root.glob("*/cli/*.py"), *root.glob("*/cli.py")]:
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.arg) and node.annotation is not None:
                name, declared = node.arg, ast.unparse(node.annotation)
            elif isinstance(node, ast.Assign) and "Annotated" in ast.unparse(node.value):
                name = ast.unparse(node.targets[0]).removesuffix("Option").lower()  # of several
                declared = ast.unparse(node.value)
            else:
                continue
            if "Path" in declared and "typer." in declared:
                paths.add(name)
    assert paths == INPUTS, "others are made by tracegen.cli.outputs"


@pytest.mark.parametrize(("words", "option", "kind"), [*outputs()], ids=str)
def test_what_cannot_be_written_is_refused_before_the_work(
    words: tuple[str, ...], option: str, kind: str, tmp_path: Path, capsys: Any
) -> None:
    (tmp_path / "file").touch()
    target = tmp_path / ("file" if kind == "FOLDER" else "nowhere/out")
    reason = "no folder"
    given: tuple[object, ...] = (option, target) if option.startswith("-") else ()
    # Whatever else is needed names what is not there, and would be found missing by the work.
    (command,) = (one for name, one in commands(typer.main.get_command(app)) if name == words)
    for param in command.params:
        if param.opts[0] == option:
            given += () if option.startswith("-") else (target,)
        elif param.required:
            own = tmp_path / "other" if param.metavar in ("FILE", "FOLDER", "OUT") else "absent"
            given += (param.opts[0], own) if param.opts[0].startswith("-") else (own,)
    assert end_of(*words, *given) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert f"cannot write {target}" in said.err and reason in said.err
    assert {one.name for one in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--json", ""), "--json: the name is empty"),
        (("--json", "n" * 300), "File name too long"),
        (("--export", "chakra:/"), "cannot begin their names"),
        (("--export", "chakra:-"), "cannot begin their names"),
        (("--export", "chakra:no/where"), "there is no folder"),
        (("--export", "goal:no/where"), "there is no folder"),
        (("--json", "a", "--trace-events", "./a"), "--json and --trace-events both write ./a"),
        (("--json", "-", "--export", "goal:-"), "both write standard output"),
        (("--html", "a", "--tables", "./a"), "both write ./a: one a file, one a folder"),
        (("--tables", "a", "--json", "./a"), "both write ./a: one a file, one a folder"),
    ],
)
def test_names_that_cannot_be_are_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert end_of("run", "absent", *arguments) == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        "run in.h5 --scheme ideal --json in.h5",
        "run --html ./in.h5 in.h5 --scheme ideal",
        "run in.h5 --scheme ideal --export goal:in.h5",
        "run in.h5 --scheme ideal --placement file:in.h5 --trace-events in.h5",
        "run --spec in.h5 --json in.h5",
        "run --scheme in.h5:Mine --json in.h5",
        "place --loads other --loads in.h5 --out in.h5",
        "infer --arrivals in.h5 --json in.h5",
        "diff other in.h5 --json in.h5",
        "report other in.h5 --html in.h5",
        "uncertainty in.h5 --json in.h5",
        "choose in.h5 -o folder --json in.h5",
        "trace convert in.h5 in.h5",
    ],
)
def test_what_is_to_be_read_is_not_written_over(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in.h5").write_text("as it was")
    assert end_of(*words.split()) == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert " would write over " in said.err and "in.h5, which is to be read" in said.err
    assert Path("in.h5").read_text() == "as it was"
    assert [one.name for one in tmp_path.iterdir()] == ["in.h5"]


@pytest.mark.parametrize(
    "words",
    [
        "run toy-zipf --scheme ideal --json out",
        "run toy-zipf --scheme ideal --export goal:out",
        "compare toy-zipf --html out",
        "tensor run --trace-events out",
        "train --plots out",
        "choose pangu --tables out",
        "choose pangu -o other --json out",
        "sweep moe-hub-ablation --html out",
    ],
)
def test_a_dry_run_writes_nothing_and_says_so(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert end_of(*words.split(), "--dry-run") == 2
    said = capsys.readouterr()
    assert said.out == "" and len(said.err.splitlines()) == 1
    assert "has nothing to write with --dry-run" in said.err
    assert not [*tmp_path.iterdir()]


def test_an_empty_folder_name_is_not_the_present_folder(capsys: Any) -> None:
    assert end_of("sweep", "schemes", "-o", "") == 2
    assert "-o: the name is empty" in capsys.readouterr().err


# ---- standard output ---------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    ("option", "begins"),
    [("--json=-", "{"), ("--trace-events=/dev/stdout", "{"), ("--export=goal:-", "//")],
)
def test_a_file_to_standard_output_leaves_it_alone(option: str, begins: str, capfd: Any) -> None:
    assert end_of(*RUN, option) == 0
    said = capfd.readouterr()
    assert said.out.startswith(begins) and "Bytes on the wire" not in said.out
    assert "Bytes on the wire" in said.err, "tables go to standard error"
    if begins != "//":
        json.loads(said.out)
    assert end_of("run", "absent", "--json", "-") == 2
    assert end_of(*RUN, "--dry-run") == 0
    assert "tasks" in capfd.readouterr().out, "the next command prints where it always does"


@pytest.mark.extended
def test_a_trace_goes_through_a_pipe(tmp_path: Path) -> None:
    path = tmp_path / "t.h5"
    with path.open("wb") as file:
        done = subprocess.run(
            [sys.executable, "-m", "replay.cli", "trace", "convert", "toy-zipf", "-"],
            stdout=file,
            stderr=subprocess.PIPE,
            text=True,
            check=True,
        )
    assert tracegen.load(path).content_id == tracegen.load("toy-zipf").content_id
    assert "same content" in done.stderr


class Gone(io.RawIOBase):
    """Standard output whose reader has gone."""

    def writable(self) -> bool:
        return True

    def write(self, _: Any) -> int:
        raise BrokenPipeError(32, "Broken pipe")


@pytest.mark.parametrize(
    "arguments", [("schemes",), ("hardware", "list", "--json"), ("trace", "info", "toy-zipf"), RUN]
)
def test_output_that_cannot_be_written_ends_in_a_line_or_none(
    arguments: tuple[str, ...], monkeypatch: Any, capsys: Any
) -> None:
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert end_of(*arguments) == 2
        assert capsys.readouterr().err == ("error: cannot write standard output: No space left on device\n")
        # What the interpreter does at its end must not fail again.
        full.flush()
        assert os.path.realpath(f"/proc/self/fd/{full.fileno()}") == os.devnull
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BufferedWriter(Gone()), "utf-8"))
    assert end_of(*arguments) == 0
    assert capsys.readouterr().err == ""
    with contextlib.suppress(BrokenPipeError):  # of what is still in its buffer
        sys.stdout.close()


# ---- the command itself ------------------------------------------------------------------------


def test_version_and_short_help(capsys: Any) -> None:
    assert end_of("--version") == 0
    assert capsys.readouterr().out.startswith("moereplay ")
    for words in ((), ("run",), ("trace",), ("trace", "info"), ("hardware", "show")):
        assert end_of(*words, "-h") == 0
        assert capsys.readouterr().out.startswith("Usage: moereplay")


@pytest.mark.extended
def test_a_shell_can_complete_commands_and_options() -> None:
    def completed(words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "replay.cli"],
            text=True,
            capture_output=True,
            check=False,
            env={
                **os.environ,
                "_MOEREPLAY_COMPLETE": "complete_bash",
                "COMP_WORDS": words,
                "COMP_CWORD": str(len(words.split()) - 1),
            },
        )
        return done.stdout.split()

    assert completed("moereplay tra") == ["train", "trace"]
    assert "--trace-events" in completed("moereplay run --json /nowhere/x --tr")
