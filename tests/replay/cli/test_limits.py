"""A machine that gives no more: a line, exit code 2, nothing half-written."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from replay.cli import app
from replay.errors import UserError
from replay.experiments.base.crews import clusters

resource = pytest.importorskip("resource")
ROOT = Path(__file__).parents[3]

START = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
from replay.cli import main
main()
"""


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (MemoryError("Unable to allocate 9 GiB"), "no memory is left: Unable to allocate 9 GiB"),
        (MemoryError(), "no memory is left"),
        (OSError(errno.EMFILE, "Too many open files"), "gives no more: Too many open files"),
    ],
)
def test_what_runs_out_is_said_in_a_line(
    error: Exception, says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_out(**_: object) -> None:
        raise error

    monkeypatch.setattr(app, "_parser", lambda: run_out)
    with pytest.raises(SystemExit) as end:
        app.main([])
    said = capsys.readouterr().err
    assert end.value.code == 2
    assert said.count("\n") == 1 and said.endswith(f"{says}\n")


@pytest.mark.extended
def test_few_open_files_are_no_process_and_no_traceback(tmp_path: Path) -> None:
    words = "compare gpt-oss-20b-decode --layer 3 --scheme ideal --scheme nvls --jobs 2 --json"
    done = subprocess.run(
        [sys.executable, "-c", START, *words.split(), "out.json"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr == "error: no process can be started for --jobs: Too many open files\n"
    assert not list(tmp_path.iterdir())


def test_a_local_cluster_with_too_few_open_files_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    clusters._check_files(3)
    with pytest.raises(UserError, match="4 workers takes about 72 open files"):
        clusters._check_files(4)
