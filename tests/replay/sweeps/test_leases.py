"""Claims on points: one owner each, and none for ever."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from replay.errors import UserError
from replay.experiments.base.crews import leases
from replay.experiments.base.crews.leases import Leases
from replay.studies.sweeps import sweep
from replay.studies.sweeps.plan import plan_sweep


def said_nothing(line: str) -> None:
    raise AssertionError(line)


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Leases]:
    with Leases(tmp_path, said_nothing) as found:
        yield found


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Leases]:
    with Leases(tmp_path, said_nothing) as found:
        yield found


def claim(folder: Path, name: str, place: str, pid: int, age_s: float) -> None:
    """Leave the claim of a process that is somewhere else, or dead."""
    path = folder / "claims" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"place": place, "pid": pid}))
    now = path.stat().st_mtime
    os.utime(path, (now - age_s, now - age_s))


def dead_pid() -> int:
    done = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    return int(done.stdout)


def test_a_point_has_one_owner_at_a_time(one: Leases, other: Leases) -> None:
    assert one.take("a") and one.take("a"), "what is ours stays ours"
    assert not other.take("a") and other.take("b")
    other.give_back(["a", "b"])
    assert not other.take("a"), "only its owner gives it back"
    assert one.take("b")
    one.give_back(["a"])
    assert other.take("a")


def test_nothing_is_left_of_those_who_have_gone(tmp_path: Path) -> None:
    with Leases(tmp_path, said_nothing) as one, pytest.raises(RuntimeError):
        with Leases(tmp_path, said_nothing) as other:
            assert other.take("a")
            raise RuntimeError
        assert one.take("a")
    assert not (tmp_path / "claims").exists()


def test_many_at_once_take_each_point_once(tmp_path: Path) -> None:
    names = [str(number) for number in range(60)]
    taken: list[str] = []
    start = threading.Barrier(6)

    def work() -> None:
        with Leases(tmp_path, said_nothing) as mine:
            start.wait()
            taken.extend(name for name in names if mine.take(name))
            start.wait()  # nobody gives back before all have tried

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == sorted(names)


def test_a_dead_process_holds_nothing_on_its_machine(tmp_path: Path) -> None:
    claim(tmp_path, "early", leases._place(), dead_pid(), 0)
    with Leases(tmp_path, said_nothing) as one:
        assert not (tmp_path / "claims" / "early").exists(), "whoever begins tidies up"
        claim(tmp_path, "late", leases._place(), dead_pid(), 0)
        assert one.take("late")


def test_elsewhere_only_silence_tells(one: Leases, tmp_path: Path) -> None:
    """Numbers of processes mean nothing on another machine; so do clocks, but the folder's own."""
    for pid in (os.getpid(), 1, dead_pid()):
        claim(tmp_path, f"silent {pid}", "another machine", pid, leases.LEASE_S + 5)
        claim(tmp_path, f"alive {pid}", "another machine", pid, leases.LEASE_S - 30)
        assert one.take(f"silent {pid}") and not one.take(f"alive {pid}")


@pytest.mark.extended
def test_a_machine_that_fell_silent_is_waited_for_and_then_replaced(
    small: Path,
    tmp_path: Path,
    is_whole: Callable[[Path], bool],
) -> None:
    """As on a network file system: the other's number of a process says nothing here."""
    tasks = [task.id for task, _ in plan_sweep(small).tasks]
    for name in tasks[:3]:
        claim(tmp_path, name, "another machine", os.getpid(), leases.LEASE_S - 2)
    began = time.monotonic()
    result = sweep(small, tmp_path)
    assert time.monotonic() - began > 1.5
    assert result.num_computed == 18 and is_whole(tmp_path)


@pytest.mark.extended
def test_a_machine_that_is_at_work_is_waited_for(
    small: Path, whole: Path, tmp_path: Path, is_whole: Callable[[Path], bool]
) -> None:
    (task, _), *_ = plan_sweep(small).tasks
    claim(tmp_path, task.id, "another machine", os.getpid(), 0)
    done: list[int] = []

    def finish(number: int, total: int) -> None:
        done.append(number)
        if number == total - 1:  # all but that of the other
            name = f"points/{task.id}.json"
            (tmp_path / name).write_bytes((whole / name).read_bytes())
            (tmp_path / "claims" / task.id).unlink()

    result = sweep(small, tmp_path, progress=finish)
    assert (result.num_computed, result.num_reused) == (17, 1) and done[-1] == 18
    assert is_whole(tmp_path)


def test_a_claim_that_says_nothing_ends_by_its_age(one: Leases, tmp_path: Path) -> None:
    for name, age in (("new", 0), ("old", leases.LEASE_S + 5)):
        claim(tmp_path, name, "", 0, age)
        path = tmp_path / "claims" / name
        touched = path.stat()
        path.write_text("nonsense")
        os.utime(path, (touched.st_mtime, touched.st_mtime))
    assert not one.take("new") and one.take("old")


def test_one_touch_renews_all_claims(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "BEAT_S", 0.01)
    with Leases(tmp_path, said_nothing) as one:
        assert one.take("a") and one.take("b")
        paths = [tmp_path / "claims" / name for name in "ab"]
        os.utime(paths[0], (0, 0))
        assert paths[1].stat().st_mtime == 0 or paths[1].stat().st_mtime > 1
        end = time.monotonic() + 10
        while not all(path.stat().st_mtime > 1 for path in paths):
            assert time.monotonic() < end
            time.sleep(0.01)


def test_who_slept_too_long_begins_anew(one: Leases, other: Leases, tmp_path: Path) -> None:
    assert one.take("a")
    for path in (tmp_path / "claims").iterdir():
        if not path.samefile(tmp_path / "claims" / other._own):
            path.unlink()
    assert other.take("a")
    assert not one.take("a") and one.take("b")
    one.give_back(["a"])
    assert not one.take("a"), "it is another's now"


def test_without_hard_links_nothing_is_shared_and_that_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    said: list[str] = []
    with Leases(tmp_path, said.append) as one, Leases(tmp_path, said.append) as other:
        assert all(each.take(name) for each in (one, other) for name in "ab")
        one.give_back("ab")
    assert len(said) == 2 and all("no hard links" in line for line in said)


def test_a_folder_that_cannot_be_written_to_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "claims").write_text("a file")
    with pytest.raises(UserError, match="claims"), Leases(tmp_path, said_nothing):
        pass
