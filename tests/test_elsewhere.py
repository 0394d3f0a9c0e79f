"""The commands work wherever the user stands, whatever folders lie there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

LIST = ["trace", "list"]
COMMANDS = {
    "console script": [str(Path(sys.executable).parent / "moereplay"), *LIST],
    "module": [sys.executable, "-m", "replay.cli", *LIST],
    "import": [
        sys.executable,
        "-c",
        f"import replay.cli, sys; sys.exit(replay.cli.main({LIST}))",
    ],
}


def empty_folder(place: Path) -> None:
    (place / "traces").mkdir()


def package_without_traces(place: Path) -> None:
    empty_folder(place)
    (place / "traces" / "__init__.py").write_text("", encoding="utf-8")


def module_that_must_not_run(place: Path) -> None:
    (place / "traces.py").write_text("raise SystemExit('the wrong traces')", encoding="utf-8")


@pytest.mark.extended
@pytest.mark.parametrize(
    ("command", "make"),
    [
        ("console script", module_that_must_not_run),
        ("module", empty_folder),
        ("module", package_without_traces),
        ("module", module_that_must_not_run),
        ("import", module_that_must_not_run),
    ],
)
def test_traces_of_the_users_do_not_hide_the_library(
    command: str, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(tmp_path)
    done = subprocess.run(COMMANDS[command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "gpt-oss-20b-decode" in done.stdout
