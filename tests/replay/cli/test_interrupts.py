"""An interrupt ends a command at any time, without a word of Python's."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SEVERAL = ("compare", "gpt-oss-20b-decode", "--layer", "0", "--tokens-per-rank", "8", "--jobs", "2")
COMMANDS = (
    SEVERAL,
    ("run", "toy-zipf", "--scheme", "deepep", "--json", "out"),
    ("trace", "generate", "zipf", "--model", "deepseek-v3", "--skew", "1", "--out", "out"),
    ("trace", "convert", "gpt-oss-20b-decode", "out"),
    ("trace", "stats", "toy-zipf"),
    ("hardware", "list"),
    ("place", "toy-zipf", "--out", "out"),
)
EARLIEST_S, LATEST_S = 0.15, 2.0  # before, Python itself has not begun; at the end most have ended


def begun(folder: Path, words: tuple[str, ...]) -> subprocess.Popen[str]:
    """The command in a group of its own, as a terminal makes it."""
    root = Path(__file__).parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", "from replay.cli import main; main()", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def interrupted(process: subprocess.Popen[str]) -> tuple[int, str]:
    with contextlib.suppress(ProcessLookupError):  # it has finished
        os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    return process.returncode, said


def descendants(process: subprocess.Popen[str]) -> int:
    """Processes of the group besides the first."""
    found = subprocess.run(["pgrep", "-g", str(process.pid)], capture_output=True, text=True, check=False)
    return len(found.stdout.split()) - 1


@pytest.mark.extended
def test_an_interrupt_while_several_processes_begin_is_silent(tmp_path: Path) -> None:
    process = begun(tmp_path, SEVERAL)
    end = time.monotonic() + 30
    while descendants(process) < 3 and time.monotonic() < end:  # a server, a tracker, and one
        assert process.poll() is None
        time.sleep(0.02)
    assert interrupted(process) == (130, "")
    while descendants(process) > -1:  # those who started them see that nobody asks any more
        assert time.monotonic() < end + 10
        time.sleep(0.02)


@pytest.mark.extended
@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_interrupt_at_any_time_is_silent(tmp_path: Path, words: tuple[str, ...]) -> None:
    share = (COMMANDS.index(words) + random.Random(f"{words}").random()) / len(COMMANDS)
    process = begun(tmp_path, words)
    time.sleep(EARLIEST_S + share * (LATEST_S - EARLIEST_S))
    code, said = interrupted(process)
    assert said == "" and code in (0, 130, -signal.SIGINT)
    left = {path.name for path in tmp_path.iterdir()}
    assert left <= {"out"}, "whole or not at all"
