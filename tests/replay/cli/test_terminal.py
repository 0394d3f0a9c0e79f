"""Names and titles of strangers steer no terminal, whatever command shows them."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import end_of

import tracegen
from tracegen.shared.screen import guard, plain, show, terminal

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r[/bold] [red]"


def test_only_what_steers_is_escaped() -> None:
    assert plain("äß 漢字 a\u00a0b\n\tc │") == "äß 漢字 a\u00a0b\n\tc │"
    assert plain(HOSTILE) == r"\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r[/bold] [red]"
    assert plain("\udcff\u2028") == r"\udcff\u2028"


def test_whoever_prints_within_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    with guard():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        show(HOSTILE, style="bold")
        terminal(sys.stdout).write("\x1b[A")
    said = capsys.readouterr()
    assert said.out.count("\x1b") == 1 and said.out.endswith("\x1b[A")
    assert said.out.count("[/bold] [red]") == 2, "no markup, and nothing is lost"
    assert "\x1b" not in said.err


def test_a_terminal_that_knows_ascii_alone_is_shown_all(monkeypatch: Any) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, "ascii"))
    with guard():
        print("ä")
        sys.stdout.flush()
    assert raw.getvalue() == b"\\xe4\n"


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    trace = tracegen.load("toy-zipf", tokens=slice(0, 64))
    info = dataclasses.replace(trace.info, title=HOSTILE, license=HOSTILE)
    tracegen.write(dataclasses.replace(trace, info=info), folder / f"a{HOSTILE[:4]}.h5")
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "run TRACE --scheme ideal",
        "compare TRACE --scheme ideal --layer 0",
        "place TRACE",
        "trace info TRACE",
        "trace info TRACE --json",
        "trace validate TRACE",
        "run TRACE/no",
        "run toy-zipf --scheme HOSTILE",
        "hardware show HOSTILE",
        "trace list --catalogue HOSTILE",
        "HOSTILE",
        "diff HOSTILE HOSTILE",
        "trace convert TRACE out.h5",
    ],
)
def test_no_command_lets_a_stranger_steer(
    words: str, hostile: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (path,) = hostile.iterdir()
    given = [w.replace("TRACE", str(path)).replace("HOSTILE", HOSTILE) for w in words.split()]
    end = end_of(*given)
    said = capsys.readouterr()
    text = said.out + said.err
    assert text and not {*text} & {"\x1b", "\x07", "\x9b", "\u202e", "\r"}
    assert end == (2 if "HOSTILE" in words or "/no" in words else 0), text
