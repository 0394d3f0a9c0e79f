"""Prints how far a reader walks: files of one replay, lines of rooms, and arrows between rooms.

Usage: python scripts/walk.py      (some seconds: it traces `replay.run` of one small layer)

A reader of a run reads every function once, in the order in which they are first called. The walk
enters the files that these are in, and comes back where the next function is in a file that it has
been in and has left. Functions of `engine`, `model` and `schemes` are left out: that is where tasks
are made and served, which no way to a result goes around. All is deterministic: imports are read
from the source, and the run that is traced has a fixed seed.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
HOME = ROOT / "replay"
DEEP = ("engine", "model", "schemes")
"""Rooms that make and serve tasks."""


class Walk(NamedTuple):
    """Files that a run enters, in order of the first time, and how often it comes back to one."""

    files: list[str]
    returns: int


def room_of(path: str) -> str:
    """Room of a file in `replay`: its folder, an experiment's, a study's or a scheme kind's own."""
    parts = path.removesuffix(".py").split("/")
    nested = parts[0] in ("model", "experiments", "studies", "schemes") and len(parts) > 2
    return "/".join(parts[: 2 if nested else 1]) if len(parts) > 1 else path


def walk() -> Walk:
    """Replay one layer, and note the functions of `replay` in the order of their first calls."""
    import replay
    from tracegen.generate import generate

    trace = generate("zipf", "olmoe-1b-7b", ranks=4, tokens_per_rank=8, layers=1, seed=1, skew=0.8)
    settings: dict[str, Any] = {"scheme": "deepep", "system": "dgx-h100", "layer": 0}
    replay.run(trace, **settings)  # modules that are imported late have been, and caches are full
    called: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        # Comprehensions are code of their own in some versions of Python.
        if event == "call" and not frame.f_code.co_name.startswith("<"):
            called.setdefault(frame.f_code)

    sys.setprofile(note)
    try:
        replay.run(trace, **settings)
    finally:
        sys.setprofile(None)
    paths = [Path(code.co_filename) for code in called]
    names = [path.relative_to(HOME).as_posix() for path in paths if path.is_relative_to(HOME)]
    steps = [name for name, _ in groupby(one for one in names if one.split("/")[0] not in DEEP)]
    files = list(dict.fromkeys(steps))
    return Walk(files, len(steps) - len(files))


def lines() -> Counter[str]:
    """Lines of Python by room."""
    found: Counter[str] = Counter()
    for path in sorted(HOME.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        found[room_of(path.relative_to(HOME).as_posix())] += len(text.splitlines())
    return found


def arrows() -> Counter[tuple[str, str]]:
    """Imports between rooms, for types and inside functions included: how many files have each."""
    names = {path.relative_to(HOME).as_posix() for path in HOME.rglob("*.py")}
    found: Counter[tuple[str, str]] = Counter()
    for name in sorted(names):
        tree = ast.parse((HOME / name).read_text(encoding="utf-8"))
        rooms = {room_of(other) for module in _imported(tree) for other in _file(module, names)}
        found.update((room_of(name), room) for room in rooms - {room_of(name)})
    return found


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(module: str, names: set[str]) -> list[str]:
    """File of a module of `replay`, or of the module that a name is taken from."""
    if not module.startswith("replay."):
        return []
    base = module.removeprefix("replay.").replace(".", "/")
    places = (base, base.rpartition("/")[0])
    asked = (file for place in places for file in (f"{place}.py", f"{place}/__init__.py"))
    return [file for file in asked if file in names][:1]


def main() -> None:
    """Print all three."""
    went, by_room, between = walk(), lines(), arrows()
    print(f"one layer enters {len(went.files)} files and comes back {went.returns} times")
    for name in went.files:
        print(f"  {name}")
    print(f"{sum(by_room.values()):,} lines in {len(by_room)} rooms, {len(between)} arrows")
    for room, count in sorted(by_room.items()):
        others = ", ".join(sorted(to for of, to in between if of == room))
        print(f"  {count:>6,}  {room:24s} -> {others}")


if __name__ == "__main__":
    main()
