"""Studies on several processes: the same bytes whoever replays, nothing lost, nothing left."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loops import every
from typer.testing import CliRunner

from replay.cli.app import app
from replay.errors import UserError
from replay.experiments.base.crews import crew as crews
from replay.experiments.base.crews.shards import parse_shard, shard_of
from replay.experiments.base.crews.worker import Job
from replay.processes import OneProcess, answers, fresh_context
from replay.studies.sweeps import load_study, sweep
from replay.studies.sweeps.points import Point
from replay.studies.sweeps.task import make_task

ROOT = Path(__file__).parents[3]
IsWhole = Callable[[Path], bool]


@pytest.fixture
def command() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start ``moereplay sweep`` in a process group of its own, which ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def start(*words: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "replay.cli", "sweep", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_until(is_so: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def num_points(folder: Path) -> int:
    return len(list(folder.glob("points/*.json")))


def group_of(leader: int) -> set[int]:
    """Processes of a process group that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, group = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        if int(group) == leader and state != "Z":
            found.add(int(path.parent.name))
    return found


# ---- several processes -------------------------------------------------------------------------


def test_two_processes_leave_what_one_leaves(small: Path, tmp_path: Path, is_whole: IsWhole) -> None:
    seen: list[tuple[int, int]] = []
    result = sweep(small, tmp_path, jobs=2, progress=lambda *done: seen.append(done))
    assert (result.num_computed, result.num_reused, result.num_failed) == (18, 0, 0)
    assert is_whole(tmp_path)
    assert seen == [(number, 18) for number in range(19)]


def test_a_killed_process_loses_nothing_but_its_batch(odd_study: Callable[..., Path], tmp_path: Path) -> None:
    study = odd_study("deadly", deaths=1)
    result = sweep(study, tmp_path / "out", jobs=2, allow_code=True)
    assert (result.num_computed, result.num_failed) == (8, 0)
    assert (tmp_path / "deaths").read_text().startswith("xx"), "it was killed, and tried again"
    alone = sweep(study, tmp_path / "alone", allow_code=True)
    assert alone.to_json() == result.to_json()


def test_a_point_that_always_kills_fails_alone(odd_study: Callable[..., Path], tmp_path: Path) -> None:
    study = odd_study("deadly", deaths=2, seeds="[0]", ranks="[2]")
    result = sweep(study, tmp_path / "out", jobs=2, allow_code=True)
    assert (result.num_computed, result.num_failed) == (1, 1)
    (failure,) = [json.loads(path.read_text()) for path in tmp_path.glob("out/failures/*.json")]
    assert "was killed 2 times" in failure["message"]
    again = sweep(study, tmp_path / "out", allow_code=True)
    assert (again.num_computed, again.num_reused, again.num_failed) == (1, 1, 0)
    assert not any(tmp_path.glob("out/failures/*"))


def test_of_a_comparison_what_a_killed_process_had_is_done_again_once(tmp_path: Path) -> None:
    kill = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    first = f"import pathlib\ntry: pathlib.Path({str(tmp_path / 'been')!r}).mkdir()\n"
    first += f"except FileExistsError: pass\nelse:\n  {kill}"
    assert sorted(answers(exec, [first, "pass"], 2)) == [(0, None), (1, None)]
    with pytest.raises(UserError, match=r"2 processes of --jobs were killed .* exit code -9"):
        list(answers(exec, [kill], 1))


@pytest.mark.extended
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_defect_is_recorded_and_the_rest_goes_on(jobs: int, odd_study: Callable[..., Path], tmp_path: Path) -> None:
    study, out = odd_study("faulty"), tmp_path / "out"
    done = CliRunner().invoke(app, ["sweep", str(study), "--allow-code", "-o", str(out), "--jobs", str(jobs)])
    assert done.exit_code == 4
    assert f"{out}: 4 replayed, 0 used again, 4 failed\n" in done.stderr
    assert str(out / "failures") in done.stderr
    for text in (done.stdout, (out / "table.md").read_text().replace("\\", "")):
        assert text.count("failed [") == 2
        said = " ".join(text.split())  # lines break where the screen ends
        assert "MemoryError: no room for so many tasks" in said and "KeyError: 3" in said
    failures = [json.loads(path.read_text()) for path in out.glob("failures/*.json")]
    assert {failure["settings"]["ranks"] for failure in failures} == {2, 4}
    assert all("odd.py" in failure["traceback"][-1] for failure in failures)
    rows = json.loads((out / "sweep.json").read_text())["grids"][0]["rows"]
    assert ["Error" in row.get("failed", "") for row in rows] == [False, True] * 2
    (tmp_path / "mended").touch()
    again = sweep(study, out, allow_code=True)
    assert (again.num_computed, again.num_reused, again.num_failed) == (4, 4, 0)
    assert not any(out.glob("failures/*")) and "failed" not in again.to_json()


@pytest.mark.extended
def test_an_interrupt_ends_all_processes_and_the_command_goes_on_later(
    odd_study: Callable[..., Path], tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    study, out = odd_study("slow", seeds=str(list(range(8)))), tmp_path / "out"
    first = command(study, "--allow-code", "-o", out, "--jobs", 2)
    wait_until(lambda: num_points(out) >= 3)
    os.killpg(first.pid, signal.SIGINT)  # as a terminal does
    _, said = first.communicate(timeout=20)
    assert first.returncode == 130
    assert said.count("\n") == 1 and "the same command goes on" in said
    wait_until(lambda: not group_of(first.pid), 10)
    assert not (out / "claims").exists()
    left = num_points(out)
    assert 3 <= left < 32
    assert sweep(study, out, allow_code=True).num_reused == left


@pytest.mark.parametrize("has_begun", [False, True], ids=["beginning", "begun"])
def test_processes_and_threads_of_pools_end_with_the_crew(has_begun: bool) -> None:
    before = set(threading.enumerate())
    children = set(multiprocessing.active_children())
    crew = crews.Processes(2)
    batch = crew.submit([Job("0", "no trace", Point(0, (), None, {}), make_task)])
    if has_begun:
        batch.exception(timeout=60)
    crew.kill()
    assert set(threading.enumerate()) <= before
    assert set(multiprocessing.active_children()) <= children


def test_an_answer_that_cannot_be_read_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def garbled() -> None:
        raise pickle.UnpicklingError("garbled")

    process = OneProcess(fresh_context([]), os.path.basename)
    try:
        assert process.submit("a/b").result(timeout=60) == "b"
        monkeypatch.setattr(process._pipe, "recv", garbled)
        with pytest.raises(pickle.UnpicklingError):
            process.submit("c").result(timeout=60)
    finally:
        process.kill()


@pytest.mark.extended
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_processes_of_a_killed_command_end_and_its_claims_too(
    odd_study: Callable[..., Path], tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    study, out = odd_study("slow", seeds="[0, 1, 2, 3]"), tmp_path / "out"
    first = command(study, "--allow-code", "-o", out, "--jobs", 2)
    wait_until(lambda: num_points(out) >= 2)
    first.kill()
    first.wait()
    wait_until(lambda: not group_of(first.pid), 10)
    assert any((out / "claims").iterdir())
    began = time.monotonic()
    result = sweep(study, out, allow_code=True)
    assert time.monotonic() - began < 30, "claims of the dead end at once, not with their lease"
    assert result.num_reused >= 2 and result.num_reused + result.num_computed == 16
    assert not (out / "claims").exists()


@pytest.mark.extended
def test_two_commands_on_a_folder_share_the_work(
    odd_study: Callable[..., Path], tmp_path: Path, command: Callable[..., subprocess.Popen[str]]
) -> None:
    study, out = odd_study("slow", seeds="[0, 1, 2, 3]"), tmp_path / "out"
    both = [command(study, "--allow-code", "-o", out) for _ in range(2)]
    texts = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0]
    said = [text.split() for text in (texts[0][0], texts[1][0], (out / "table.txt").read_text())]
    assert said[0] == said[1] == said[2]  # a screen's lines end where the screen does
    replayed = [int(said.split(": ")[1].split(" replayed")[0]) for _, said in texts]
    assert sum(replayed) == 16 and min(replayed) > 0
    assert not (out / "claims").exists()


@pytest.mark.extended
def test_a_script_without_a_guard_is_told_so(small: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import replay\ntry:\n    replay.sweep({str(small)!r}, 'out', jobs=2)\n"
        "except replay.UserError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
    )
    assert '`if __name__ == "__main__":`' in done.stdout


# ---- shards ------------------------------------------------------------------------------------


@pytest.mark.extended
def test_the_last_shard_writes_the_tables(small: Path, tmp_path: Path, is_whole: IsWhole) -> None:
    counts = []
    for number in (2, 3, 1):
        assert not (tmp_path / "sweep.json").exists()
        result = sweep(small, tmp_path, shard=f"{number}/3")
        counts.append((result.num_computed, result.num_missing))
    assert sum(replayed for replayed, _ in counts) == 18
    assert all(replayed >= 5 for replayed, _ in counts) and counts[-1][1] == 0
    assert is_whole(tmp_path)


def test_the_command_says_what_other_shards_have_left(small: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["sweep", str(small), "-o", str(tmp_path), "--shard", "1/2"])
    assert done.exit_code == 0 and done.stdout == ""
    assert "9 replays of other shards are not there yet" in done.stderr


def test_shards_are_all_jobs_and_keep_traces_together() -> None:
    jobs = [Job(str(n), f"trace {n // 10}", Point(0, (), None, {}), make_task) for n in range(400)]
    shards = [shard_of(jobs, number, 7) for number in range(1, 8)]
    assert sorted(int(job.id) for shard in shards for job in shard) == list(range(400))
    assert max(map(len, shards)) - min(map(len, shards)) <= 400 // (7 * 8)
    assert sum(len({job.trace for job in shard}) for shard in shards) <= 2 * 40
    fifteens = [Job(str(n), f"trace {n // 15}", Point(0, (), None, {}), make_task) for n in range(150)]
    assert [len(shard_of(fifteens, number, 2)) for number in (1, 2)] == [75, 75]
    same = [Job(str(n), "one", Point(0, (), None, {}), make_task) for n in range(40)]
    assert [len(shard_of(same, number, 4)) for number in range(1, 5)] == [10] * 4


@every("text", ["4/3", "0/3", "1", "1/0", "-1/3", "a/b", "1/2/3", ""])
def test_a_shard_that_is_not_one_is_a_mistake(text: str) -> None:
    with pytest.raises(UserError, match="i from 1 to n"):
        parse_shard(text)


def test_jobs_are_at_least_one(small: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="jobs must be at least 1"):
        sweep(load_study(small), tmp_path, jobs=0)
