"""Write the golden results anew, and print what changed.

    python tests/golden/freeze.py [--dry-run] [CASE ...]    all cases unless some are named

Every value that changes, and at the end the time of every run whose time does. Do this only when a
result is meant to change; tests/golden/README.md says what goes with it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping

import frozen
from cases import CASES, replayed
from commands import COMMANDS
from commands import replayed as commanded

RUNS = {name: list(case.runs()) for name, case in CASES.items()} | {
    name: list(words) for name, words in COMMANDS.items()
}
TIMES = ("totals/makespan_us", "layer/makespan_us", "chain/makespan_us")
"""Values that are the time of a run; the first that a run has."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", help=f"one of: {', '.join(RUNS)}")
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    given = parser.parse_args()
    wanted = given.case or list(RUNS)
    unknown = sorted(set(wanted) - set(RUNS))
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(RUNS)}")
    for stale in sorted({file.stem for file in frozen.files()} - set(RUNS)):
        print(f"{stale}: no longer a case; remove {frozen.path(stale)}")
    moved = [row for name in wanted for row in freeze(name, writes=not given.dry_run)]
    if moved:
        table = [("scheme", "case", "makespan, us", "to", "values"), *moved]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        print()
        for row in table:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def freeze(name: str, *, writes: bool) -> list[tuple[str, ...]]:
    """Replay a case, print the values that change, and give a row for every run that has one."""
    before = frozen.read(name)
    one = replayed if name in CASES else commanded
    after = {label: frozen.as_text(one(name, label)) for label in RUNS[name]}
    num_changed, rows = 0, []
    for label in sorted(before.keys() | after.keys()):
        old, new = before.get(label, {}), after.get(label, {})
        changed = frozen.differences(old, new)
        num_changed += len(changed)
        if not (old and new):
            print(f"{name} / {label}: {'gone' if old else 'new'}, {len(changed)} values")
        else:
            for line in changed:
                print(f"{name} / {label} / {line}")
        if changed:
            rows.append((label, name, _time(old), _time(new), str(len(changed))))
    if writes:
        frozen.write(name, after)
    print(f"{name}: {num_changed} of {sum(map(len, after.values()))} values changed")
    return rows


def _time(values: Mapping[str, str]) -> str:
    return next((values[name] for name in TIMES if name in values), "-")


if __name__ == "__main__":
    main()
