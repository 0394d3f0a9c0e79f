"""CPU time of each test and fixture, with the processes that it starts: a plugin of pytest.

Usage: PYTHONPATH=tests/oracle CPU_TIMES=FOLDER pytest -p cpu_times ...
       python tests/oracle/cpu_times.py FOLDER [DEPTH]
       python tests/oracle/cpu_times.py FOLDER lengthy > tests/lengthy.txt

The first writes a table for each process of the tests into the folder. The second sums them by
file, by test function (DEPTH 1, the default) or by case (DEPTH 2), largest first. CPU time is
comparable where wall time is not: on cores that others use, too. A session's fixture is counted for
itself, and not in the test that asks for it first.
"""

from __future__ import annotations

import csv
import os
import re
import resource
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest


def spent() -> float:
    """CPU seconds of this process and of those that it has waited for."""
    both = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in both)


class Table:
    """Rows of what was done and its CPU seconds; what it contains has its own row."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, str, float]] = []
        self.inside = 0.0

    def timed(self, kind: str, name: str) -> Generator[None, object, object]:
        """Time what a hook surrounds."""
        outer, self.inside, begun = self.inside, 0.0, spent()
        try:
            return (yield)
        finally:
            whole = spent() - begun
            self.rows.append((kind, name, whole - self.inside))
            self.inside = outer + whole


_table = Table()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _table.timed("test", item.nodeid))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[object], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    name = f"{fixturedef.baseid}::{fixturedef.argname}"
    if fixturedef.scope == "function":
        return (yield)
    return (yield from _table.timed(f"fixture of a {fixturedef.scope}", name))


def pytest_collection_finish() -> None:
    _table.rows.append(("start", "imports and collection", spent()))


def pytest_sessionfinish() -> None:
    place = os.environ.get("CPU_TIMES")
    if place:
        _table.rows.append(("start", "all", spent()))
        Path(place).mkdir(parents=True, exist_ok=True)
        with (Path(place) / f"{os.getpid()}.csv").open("w", newline="") as file:
            csv.writer(file).writerows(_table.rows)


LENGTHY_S = 0.25
"""Test functions that take longer wait for the default tier."""


def main(place: str, depth: str = "1") -> None:
    """Print sums of a folder's tables."""
    is_list = depth == "lengthy"
    seconds: defaultdict[str, float] = defaultdict(float)
    number: Counter[str] = Counter()
    for path in sorted(Path(place).glob("*.csv")):
        with path.open(newline="") as file:
            for kind, name, cpu in csv.reader(file):
                key = name
                if depth == "0":
                    key = name.partition("::")[0]
                elif depth != "2":
                    key = re.sub(r"\[.*", "", name, flags=re.DOTALL)
                if kind != "test":
                    if is_list:
                        continue
                    key = f"({kind}) {key}"
                seconds[key] += float(cpu)
                number[key] += 1
    if is_list:
        names = sorted(key for key, total in seconds.items() if total > LENGTHY_S)
        sys.stdout.writelines(f"--deselect={name}\n" for name in names)
        return
    for key, total in sorted(seconds.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"{total:8.2f} {number[key]:5}  {key}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
