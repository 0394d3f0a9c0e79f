"""Settings for every test: speed is never asserted, a failure repeats itself, one core each."""

from __future__ import annotations

import functools
import gc
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

# Before numpy is imported: test processes are the parallelism. Threads of BLAS that wait for one
# another spin, which took `trace stats` 20 s of CPU instead of 6 on two busy cores.
for _threads in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_threads, "1")

# What is printed is as wide as for a user's pipe, whatever the width of the terminal of the tests,
# which xdist hands on to its processes.
os.environ.pop("COLUMNS", None)

# Traces that whoever runs the tests has fetched have names, too; the tests' own are not kept.
_cache = tempfile.TemporaryDirectory(prefix="moereplay-tests-")
os.environ["MOEREPLAY_CACHE"] = _cache.name

# Oracles, tiers and loops have names for all tests.
sys.path.insert(0, str(Path(__file__).parent / "oracle"))

import pytest  # noqa: E402
import typer  # noqa: E402
import typer.testing  # noqa: E402
from _pytest import doctest as pytest_doctest  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

settings.register_profile("moereplay", deadline=None, derandomize=True)
settings.load_profile("moereplay")

# To make the parser of all commands takes longer than most commands: it is made once for all tests.
typer.main.get_command = functools.cache(typer.main.get_command)
typer.testing._get_command = typer.main.get_command

# Thousands of tests are alive at once: to look for cycles among them again and again took a sixth
# of all time. Now it happens more rarely, and not in what the collection of tests has made.
gc.set_threshold(50_000, 20, 50)


class DoctestFilter:
    """Doctests are looked for in files that have some: to search all objects of a thousand took seconds."""

    @pytest.hookimpl(wrapper=True)
    def pytest_collect_file(self, file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
        found = yield
        is_wanted = len(found) > 0 and file_path.suffix == ".py" and ">>> " in file_path.read_text("utf-8")
        return [one for one in found if is_wanted or not isinstance(one, pytest_doctest.DoctestModule)]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(DoctestFilter())  # for files outside of this folder, too


@given(st.none())
def _once(_: None) -> None:
    """Let hypothesis begin: it asks once who refers to its random numbers."""


LONGEST = (
    "test_an_imitation_of_gpt_oss_has",
    "test_all_rows_stay_within_the_bound",
    "test_every_option",
)
"""Beginnings of the names of tests that would be waited for if they ran last."""


LENGTHY = frozenset((Path(__file__).parent / "lengthy.txt").read_text("utf-8").split())
"""Test functions that are in the extended tier for their time alone (oracle/tiers.py)."""

COSTLY = frozenset((Path(__file__).parent / "costly.txt").read_text("utf-8").splitlines())
"""Cases of tests for which CI has no time (oracle/tiers.py)."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.partition("[")[0] in LENGTHY:
            item.add_marker(pytest.mark.extended("lengthy"))
        if item.nodeid in COSTLY:
            item.add_marker(pytest.mark.release)
    items.sort(key=lambda item: not item.name.startswith(LONGEST))


def pytest_collection_finish() -> None:
    _once()  # who is frozen does not count
    gc.collect()
    gc.freeze()


SECRET = "not yours to overwrite"


def _socket(path: Path, _: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # names of sockets are short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(here)


KINDS: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "broken link": lambda path, victim: path.symlink_to(victim.with_name("nothing")),
    "link to a folder": lambda path, victim: path.symlink_to(victim.parent),
    "link to a device": lambda path, _: path.symlink_to("/dev/zero"),
    "pipe": lambda path, _: os.mkfifo(path),
    "socket": _socket,
}
"""So that following it, or waiting for it, would do harm."""


@pytest.fixture
def in_place_of() -> Callable[[Path, Path], Iterator[str]]:
    """Put what somebody else may have put there in the place of a file, one after the other."""
    return _in_place_of


def _in_place_of(path: Path, victim: Path) -> Iterator[str]:
    """Put each thing where a file or a folder was, one after the other, and that back at the end.

    Yields the name of what is there now. The victim must be as it was each time.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name("aside")
    had_one = path.exists()
    if had_one:
        path.rename(aside)
    victim.parent.mkdir(exist_ok=True)
    victim.write_text(SECRET)
    for name, make in KINDS.items():
        make(path, victim)
        yield name
        path.unlink(missing_ok=True)
        assert victim.read_text() == SECRET, name
        assert [one.name for one in victim.parent.iterdir()] == [victim.name], name
    if had_one:
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
