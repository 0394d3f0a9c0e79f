"""Break the code on purpose, one edit at a time, and see whether a test notices.

Reads every ``tests/mutants/*.toml``, of the form that ``tests/mutants/README.md`` gives. Each edit
is made in a temporary copy of the tree, where the tests that it names then run; the tree itself is
never written to. An edit is dead when one of its tests fails (or does not end).

Usage: python scripts/mutants.py [--list] [--only PATTERN] [--jobs N] [--timeout SECONDS]
    --list      write the entries, and what is wrong with them; run nothing
    --only      only entries whose "FILE: NAME" matches this regular expression
    --jobs      copies of the tree that work at the same time (default 1)
    --timeout   seconds after which the tests of one edit count as failed (default 900)

Exit code 1 if an edit survives, breaks the program instead of its numbers, or no longer matches its
file, or if a test fails without any edit; 2 for a pattern that nothing matches.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACE = "tests/mutants"
KERNELS = "replay/engine/kernels"  # compiled code, cached by the content of this folder
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "*.egg-info", "*.pyc", "build", "dist", "out"
)
DEAD, SURVIVED, BROKEN = "dead", "SURVIVED", "BROKEN"
KEYS = {"name", "file", "find", "replace", "tests"}


@dataclass(frozen=True)
class Mutant:
    """One edit: the exact text `find` of `file` becomes `replace`, and one of `tests` fails."""

    listed_in: str
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.listed_in}: {self.name}"


# --- Entries ------------------------------------------------------------------------------------


def read(root: Path) -> list[Mutant]:
    """Read all entries, in the order of file names."""
    mutants = []
    for path in sorted((root / PLACE).glob("*.toml")):
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if set(content) != {"mutant"}:
            sys.exit(f"{path}: holds {sorted(content)}; possible: [[mutant]] alone")
        for number, entry in enumerate(content["mutant"], 1):
            if set(entry) != KEYS:
                sys.exit(f"{path}: entry {number} has {sorted(entry)}; needed: {sorted(KEYS)}")
            mutants.append(Mutant(path.name, **{**entry, "tests": tuple(entry["tests"])}))
    return mutants


def problem(mutant: Mutant, root: Path) -> str:
    """Say what is wrong with an entry as it stands in the tree; empty if nothing is."""
    path = root / mutant.file
    if not path.is_file():
        return f"no file {mutant.file}"
    found = path.read_text(encoding="utf-8").count(mutant.find)
    if found != 1:
        return f"its text is found {found} times in {mutant.file}, not once"
    if mutant.find == mutant.replace:
        return "the edit changes nothing"
    if not mutant.tests:
        return "names no test"
    for test in mutant.tests:
        file, *parts = test.split("::")
        if not (root / file).exists():
            return f"no test {file}"
        text = (root / file).read_text(encoding="utf-8") if parts else ""
        for part in parts:
            name = part.partition("[")[0]
            if not re.search(rf"^\s*(def|class) {re.escape(name)}\b", text, re.M):
                return f"no {name} in {file}"
    return ""


# --- Trials -------------------------------------------------------------------------------------


def run_tests(tree: Path, tests: tuple[str, ...], timeout: float, *more: str) -> tuple[int, str]:
    """Run tests in a tree: exit code of pytest (1 if they do not end) and its last lines."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("NUMBA_CACHE_DIR", None)  # each tree has its own compiled kernels
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *more]
    try:
        done = subprocess.run(
            [*command, *tests], cwd=tree, env=environment, timeout=timeout,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return 1, f"no end within {timeout:.0f} s"
    return done.returncode, (done.stdout + done.stderr)[-3000:]


def tried(mutant: Mutant, tree: Path, timeout: float) -> tuple[str, str]:
    """Make the edit in a tree, run its tests, undo it: the outcome and what pytest wrote."""
    path = tree / mutant.file
    before = path.read_text(encoding="utf-8")
    compiled = Path(importlib.util.cache_from_source(str(path)))
    kernels = tree / KERNELS / "__pycache__"
    kept = tree / "kernels-kept"
    is_kernel = mutant.file.startswith(KERNELS) and kernels.is_dir()
    if is_kernel:  # compiled code of other versions is deleted where new is written
        shutil.copytree(kernels, kept)
    try:
        # Python takes a compiled file for fresh by size and by second: edits can have both alike.
        compiled.unlink(missing_ok=True)
        path.write_text(before.replace(mutant.find, mutant.replace), encoding="utf-8")
        code, says = run_tests(tree, mutant.tests, timeout, "-x")
    finally:
        path.write_text(before, encoding="utf-8")
        compiled.unlink(missing_ok=True)
        if is_kernel:
            shutil.rmtree(kernels, ignore_errors=True)
            kept.replace(kernels)
    return {0: SURVIVED, 1: DEAD}.get(code, BROKEN), says


def try_all(mutants: list[Mutant], root: Path, jobs: int, timeout: float) -> int:
    """Try every edit and print its outcome: the number of edits that are not dead."""
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        first = Path(place) / "tree-0"
        shutil.copytree(root, first, ignore=NOT_COPIED)
        tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
        code, says = run_tests(first, tests, timeout * 4)
        if code:
            print(f"{says}\nthe tests must pass without any edit; they end with code {code}")
            return len(mutants)
        trees: queue.Queue[Path] = queue.Queue()
        trees.put(first)
        for number in range(1, min(jobs, len(mutants))):  # with what the first has compiled
            trees.put(shutil.copytree(first, Path(place) / f"tree-{number}"))

        def try_one(mutant: Mutant) -> tuple[str, str, float]:
            tree, begun = trees.get(), time.monotonic()
            try:
                return *tried(mutant, tree, timeout), time.monotonic() - begun
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(trees.qsize()) as workers:
            for mutant, done in zip(mutants, workers.map(try_one, mutants), strict=True):
                outcome, says, seconds = done
                failed += outcome != DEAD
                print(f"{outcome:8}  {mutant.label}  ({seconds:.0f} s)", flush=True)
                if outcome == BROKEN:
                    print(says)
    print(f"{len(mutants) - failed} of {len(mutants)} edits are dead")
    return failed


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900)
    given = parser.parse_args(argv)
    mutants = [mutant for mutant in read(root) if given.only.search(mutant.label)]
    if not mutants:
        print("no entry matches")
        return 2
    wrong = {mutant: problem(mutant, root) for mutant in mutants}
    for mutant, what in wrong.items():
        if what or given.list:
            print(f"{mutant.label}: {what or 'matches'}")
    sound = [mutant for mutant in mutants if not wrong[mutant]]
    failed = 0
    if sound and not given.list:
        failed = try_all(sound, root, max(1, given.jobs), given.timeout)
    return int(failed > 0 or len(sound) < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
