"""Break the code on purpose, one edit at a time, and see whether a test notices.

Reads every ``tests/mutants/*.toml``, of the form that ``tests/mutants/README.md`` gives. Each edit
is made in a temporary copy of the tree, where the tests that it names then run, with those of the
extended tier if no other notices; the tree itself is never written to. An edit is dead when one of
its tests fails (or does not end).

Usage: python scripts/mutants.py [--list] [--only PATTERN] [--sample N [--seed S]] [--quick]
           [--jobs N] [--timeout SECONDS]
    --list      write the entries, and what is wrong with them; run nothing
    --only      only entries whose "FILE: NAME" matches this regular expression
    --sample    so many of these, drawn with the seed (default 0)
    --quick     only tests of the default tier; what survives them is to be tried without
    --jobs      copies of the tree that work at the same time (default 1)
    --timeout   seconds after which the tests of one edit count as failed (default 900)

Exit code 1 if an edit survives, breaks the program instead of its numbers, or no longer matches its
file, or if a test fails without any edit; 2 for a pattern that nothing matches.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib.util
import os
import queue
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import cast

ROOT = Path(__file__).resolve().parent.parent
PLACE = "tests/mutants"
KERNELS = "replay/engine/kernels"  # compiled code, cached by the content of these folders
COMPILED = (KERNELS, "replay/engine/backend")
NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "*.egg-info", "*.pyc", "build", "dist", "out"
)
DEAD, SURVIVED, BROKEN, UNTRIED = "dead", "SURVIVED", "BROKEN", "extended"
NO_TESTS, BOTH_TIERS = 5, ("-m", "not bench")
KEYS = {"name", "file", "function", "find", "replace", "tests"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@dataclass(frozen=True)
class Mutant:
    """One edit: the code `find` in `function` becomes `replace`, and one of `tests` fails.

    `function` is a qualified name, also of a class; empty for what stands outside of all. In files
    that are no Python `find` is exact text.
    """

    listed_in: str
    name: str
    file: str
    function: str
    find: str
    replace: str
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.listed_in}: {self.name}"

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")


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
    source, becomes = path.read_text(encoding="utf-8"), []
    try:
        found = source.count(mutant.find)
        if mutant.is_python:
            found = len(places(mutant, tree_of(source)))
            becomes = parsed(mutant.replace)
    except (SyntaxError, LookupError) as error:
        return f"{error}"
    if found != 1:
        where = mutant.function or "the module outside of functions"
        return f"its code is found {found} times in {where} of {mutant.file}, not once"
    if mutant.find == mutant.replace or (
        mutant.is_python and list(map(written, parsed(mutant.find))) == list(map(written, becomes))
    ):
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


# --- Places in the source -----------------------------------------------------------------------


def parsed(text: str) -> list[ast.AST]:
    """Parse what an entry names: keyword arguments (``name=value``), an expression, statements."""
    text = textwrap.dedent(text).strip()
    if re.match(r"\w+=[^=]", text):
        call = ast.parse(f"f({text})", mode="eval").body
        assert isinstance(call, ast.Call)
        return list(call.keywords)
    body = ast.parse(text).body
    if len(body) == 1 and isinstance(body[0], ast.Expr):
        return [body[0].value]
    return list(body)


@functools.cache
def tree_of(source: str) -> ast.Module:
    """Parse a file once for all that is only looked for in it."""
    return ast.parse(source)


def written(node: object) -> str:
    """What a node says, wherever it stands, and whether it is read or assigned to."""
    return re.sub(r"ctx=(Load|Store|Del)\(\)", "ctx", ast.dump(cast("ast.AST", node)))


def scope(tree: ast.Module, function: str) -> Iterator[ast.AST]:
    """All nodes of a function or class; without a name, those outside of all."""
    root: ast.AST = tree
    for name in filter(None, function.split(".")):
        inside = [one for one in outside_definitions(root) if isinstance(one, DEFINITIONS)]
        named = [one for one in inside if one.name == name]
        if not named:
            message = f"no function or class {function}"
            raise LookupError(message)
        root = named[-1]  # of overloads the one with code
    return ast.walk(root) if function else outside_definitions(root)


def outside_definitions(root: ast.AST) -> Iterator[ast.AST]:
    """Nodes below one, definitions included, and not what is in these."""
    yield root
    for child in ast.iter_child_nodes(root):
        if isinstance(child, DEFINITIONS):
            yield child
        else:
            yield from outside_definitions(child)


@dataclass(frozen=True)
class Place:
    """Where code stands: `count` items of a list from `first`, or the one value of a field."""

    parent: ast.AST
    field: str
    first: int | None
    count: int

    def put(self, nodes: Sequence[ast.AST]) -> None:
        """Put other code there."""
        if self.first is None:
            setattr(self.parent, self.field, nodes[0] if nodes else None)
            return
        there = getattr(self.parent, self.field)
        there[self.first : self.first + self.count] = nodes


def places(mutant: Mutant, tree: ast.Module) -> list[Place]:
    """All places in its function where the code of an entry stands."""
    wanted = parsed(mutant.find)

    def matches(value: Sequence[object]) -> bool:
        return all(type(one) is type(other) for one, other in zip(value, wanted, strict=True)) and (
            all(written(one) == written(other) for one, other in zip(value, wanted, strict=True))
        )

    found = []
    for node in scope(tree, mutant.function):
        if not mutant.function and isinstance(node, DEFINITIONS):
            continue
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                found += [
                    Place(node, field, first, len(wanted))
                    for first in range(len(value) - len(wanted) + 1)
                    if wanted and matches(value[first : first + len(wanted)])
                ]
            elif len(wanted) == 1 and matches([value]):
                found.append(Place(node, field, None, 1))
    return found


def edited(mutant: Mutant, source: str) -> str:
    """The source with the edit: the statement around it is written anew, nothing else changes."""
    if not mutant.is_python:
        return source.replace(mutant.find, mutant.replace)
    tree = ast.parse(source)
    [place] = places(mutant, tree)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    lines = source.splitlines(keepends=True)
    replacing = parsed(mutant.replace)

    def is_elif(statement: ast.stmt) -> bool:
        return lines[statement.lineno - 1].lstrip().startswith("elif")

    old: list[ast.stmt] = []
    if isinstance(place.parent, ast.Expr):
        old = [place.parent]
    elif place.first is not None:
        there = getattr(place.parent, place.field)[place.first : place.first + place.count]
        old = there if isinstance(there[0], ast.stmt) else []
    if old and not is_elif(old[0]):
        return _with_lines(lines, old, replacing or [ast.Pass()])
    place.put(replacing)
    statement = place.parent
    while not isinstance(statement, ast.stmt) or is_elif(statement):
        statement = above[statement]
    return _with_lines(lines, [statement], [statement])


def _with_lines(lines: list[str], old: Sequence[ast.stmt], new: Sequence[ast.AST]) -> str:
    decorated = [one.lineno for one in getattr(old[0], "decorator_list", [])]
    first, last = min([old[0].lineno, *decorated]), old[-1].end_lineno
    text = "\n".join(ast.unparse(ast.fix_missing_locations(one)) for one in new)
    text = textwrap.indent(text + "\n" if text else "", " " * old[0].col_offset)
    return "".join([*lines[: first - 1], text, *lines[last:]])


# --- Trials -------------------------------------------------------------------------------------


def run_tests(tree: Path, tests: tuple[str, ...], timeout: float, *more: str) -> tuple[int, str]:
    """Run tests in a tree: exit code of pytest (1 if they do not end) and its last lines."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    environment.pop("NUMBA_CACHE_DIR", None)  # each tree has its own compiled kernels
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # what no edit touches is compiled once
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they take as long as many a test
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *more]
    try:
        done = subprocess.run(
            [*command, *tests],
            cwd=tree,
            env=environment,
            timeout=timeout,
            capture_output=True,
            text=True,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f"no end within {timeout:.0f} s"
    return done.returncode, (done.stdout + done.stderr)[-3000:]


def tried(mutant: Mutant, tree: Path, timeout: float, *, quick: bool = False) -> tuple[str, str]:
    """Make the edit in a tree, run its tests, undo it: the outcome and what pytest wrote.

    Quick are the tests of the default tier alone.
    """
    path = tree / mutant.file
    before = path.read_text(encoding="utf-8")
    compiled = Path(importlib.util.cache_from_source(str(path)))
    kernels = tree / KERNELS / "__pycache__"
    kept = tree / "kernels-kept"
    is_kernel = mutant.file.startswith(COMPILED) and kernels.is_dir()
    if is_kernel:  # compiled code of other versions is deleted where new is written
        shutil.copytree(kernels, kept)
    try:
        # Python takes a compiled file for fresh by size and by second: edits can have both alike.
        compiled.unlink(missing_ok=True)
        path.write_text(edited(mutant, before), encoding="utf-8")
        code, says = run_tests(tree, mutant.tests, timeout, "-x")
        if code in (0, NO_TESTS) and not quick:  # not in the default tier
            code, says = run_tests(tree, mutant.tests, timeout, "-x", *BOTH_TIERS)
    finally:
        path.write_text(before, encoding="utf-8")
        compiled.unlink(missing_ok=True)
        if is_kernel:
            shutil.rmtree(kernels, ignore_errors=True)
            kept.replace(kernels)
    if quick and code == NO_TESTS:
        return UNTRIED, says
    return {0: SURVIVED, 1: DEAD}.get(code, BROKEN), says


def try_all(mutants: list[Mutant], root: Path, jobs: int, timeout: float, *, quick: bool = False) -> int:
    """Try every edit and print its outcome: the number of edits that are not dead."""
    failed = untried = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        first = Path(place) / "tree-0"
        shutil.copytree(root, first, ignore=NOT_COPIED)
        tests = tuple(sorted({test for mutant in mutants for test in mutant.tests}))
        code, says = run_tests(first, tests, timeout * 4)
        if code not in (0, NO_TESTS):
            print(f"{says}\nthe tests must pass without any edit; they end with code {code}")
            return len(mutants)
        trees: queue.Queue[Path] = queue.Queue()
        trees.put(first)
        for number in range(1, min(jobs, len(mutants))):  # with what the first has compiled
            trees.put(shutil.copytree(first, Path(place) / f"tree-{number}"))

        def try_one(mutant: Mutant) -> tuple[str, str, float]:
            tree, begun = trees.get(), time.monotonic()
            try:
                return *tried(mutant, tree, timeout, quick=quick), time.monotonic() - begun
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(trees.qsize()) as workers:
            for mutant, done in zip(mutants, workers.map(try_one, mutants), strict=True):
                outcome, says, seconds = done
                failed += outcome in (SURVIVED, BROKEN)
                untried += outcome == UNTRIED
                print(f"{outcome:8}  {mutant.label}  ({seconds:.0f} s)", flush=True)
                if outcome == BROKEN:
                    print(says)
    print(f"{len(mutants) - failed - untried} of {len(mutants) - untried} edits are dead")
    return failed


def main(argv: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--only", type=re.compile, default=re.compile(""))
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=900)
    given = parser.parse_args(argv)
    mutants = [mutant for mutant in read(root) if given.only.search(mutant.label)]
    if given.sample is not None and given.sample < len(mutants):
        mutants = random.Random(given.seed).sample(mutants, given.sample)
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
        failed = try_all(sound, root, max(1, given.jobs), given.timeout, quick=given.quick)
    return int(failed > 0 or len(sound) < len(mutants))


if __name__ == "__main__":
    sys.exit(main())
