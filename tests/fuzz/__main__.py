"""``python -m tests.fuzz``: damaged inputs of every kind, and a table of what became of them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.fuzz import running
from tests.fuzz.base import Kind, World

BATCH = 40
"""Inputs that share a process, unless it dies."""
MODULES = ("documents", "traces", "dumps", "words", "servers", "folders")


def kinds() -> dict[str, Kind]:
    """All kinds by name."""
    found: dict[str, Kind] = {}
    for module in MODULES:
        for kind in importlib.import_module(f"tests.fuzz.kinds.{module}").KINDS:
            assert kind.name not in found, kind.name
            found[kind.name] = kind
    return found


_OF_POOL: dict[str, Any] = {}


def _batch(given: tuple[str, list[int]]) -> list[dict[str, Any]]:
    name, numbers = given
    world = World(_OF_POOL["folder"] / f"world{os.getpid()}", _OF_POOL["folder"] / "shelf", _OF_POOL["port"])
    return [*running.batch(_OF_POOL["kinds"][name], _OF_POOL["seed"], numbers, world)]


def shares(chosen: dict[str, Kind], inputs: int) -> dict[str, int]:
    """Inputs of each kind: by its share, one at least."""
    whole = sum(kind.share for kind in chosen.values())
    return {name: max(1, round(inputs * kind.share / whole)) for name, kind in chosen.items()}


def table(outcomes: list[dict[str, Any]]) -> str:
    """Counts by kind, as Markdown."""
    counts: dict[str, Counter[str]] = {}
    for one in outcomes:
        row = counts.setdefault(one["kind"], Counter())
        row["inputs"] += 1
        row["other" if one["wrong"] else one["end"]] += 1
        row["memory"] += one["scarce"] and not one["wrong"]
    whole: Counter[str] = sum(counts.values(), Counter())
    columns = ("inputs", "succeeded", "refused", "memory", "other")
    lines = [
        "| kind | inputs | succeeded | refused | of these for memory | anything else |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in [*counts.items(), ("**all**", whole)]:
        lines.append(f"| {name} | " + " | ".join(f"{row[column]:,}" for column in columns) + " |")
    return "\n".join(lines)


def main() -> int:
    """Run it; exit code 1 if anything but success and clean refusals was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--kinds", default="", help="such as results,traces; all if left out")
    parser.add_argument("--only", default="", help="KIND:NUMBER, to see one input again")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--outcomes", type=Path, help="file for a line of JSON of each input")
    parser.add_argument("--keep", type=Path, help="folder for the world of --only")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    everything = kinds()
    names = [one for one in given.kinds.split(",") if one] or [*everything]
    if given.only:
        names = [given.only.partition(":")[0]]
    chosen = {name: everything[name] for name in names}
    with tempfile.TemporaryDirectory(prefix="fuzz-") as place, contextlib.ExitStack() as ending:
        folder = Path(place).resolve()
        _OF_POOL.update(folder=folder, kinds=chosen, seed=given.seed, port=0)
        for name, kind in chosen.items():
            (folder / "shelf" / name).mkdir(parents=True)
            kind.prepare(folder / "shelf" / name)
        if any(kind.needs_server for kind in chosen.values()):
            from tests.fuzz.kinds.servers import serve

            _OF_POOL["port"] = serve(ending)
        if given.only:
            return _only(given, folder)
        work = [
            (name, [*range(first, min(first + BATCH, count))])
            for name, count in shares(chosen, given.inputs).items()
            for first in range(0, count, BATCH)
        ]
        outcomes: list[dict[str, Any]] = []
        begin = time.monotonic()
        with multiprocessing.get_context("fork").Pool(given.jobs) as pool:
            for some in pool.imap_unordered(_batch, work):
                outcomes += some
                for one in some:
                    if one["wrong"]:
                        print(
                            f"{one['kind']}:{one['number']} {json.dumps(one['words'])[:400]}\n    {one['wrong']}",
                            flush=True,
                        )
        broken = [path.read_text() for path in folder.glob("*.broken")]
        outcomes.sort(key=lambda one: ([*chosen].index(one["kind"]), one["number"]))
        print(table(outcomes))
        if given.outcomes:
            given.outcomes.write_text("".join(json.dumps(one) + "\n" for one in outcomes))
        print(
            f"\nseed {given.seed}, {time.monotonic() - begin:.0f} s, at most "
            f"{max(one['grown'] for one in outcomes) / 2**20:.0f} MiB more than at the start"
        )
        print(*broken, sep="\n", end="")
    return int(any(one["wrong"] for one in outcomes))


def _only(given: argparse.Namespace, folder: Path) -> int:
    name, _, number = given.only.partition(":")
    os.environ["MOEREPLAY_TRACEBACK"] = "1"
    for one in _batch((name, [int(number)])):
        print(json.dumps(one, indent=1))
    if given.keep:
        (world,) = folder.glob("world*")
        shutil.copytree(world, given.keep, symlinks=True)
    return int(bool(one["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
