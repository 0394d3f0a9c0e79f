"""Write the golden results anew, and print what changed.

    python tests/golden/freeze.py [CASE ...]    all cases unless some are named

Do this only when a result is meant to change; tests/golden/README.md says what goes with it.
"""

from __future__ import annotations

import argparse
import sys

import frozen
from cases import CASES, replayed
from commands import COMMANDS
from commands import replayed as commanded

RUNS = {name: list(case.runs()) for name, case in CASES.items()} | {
    name: list(words) for name, words in COMMANDS.items()
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", help=f"one of: {', '.join(RUNS)}")
    wanted = parser.parse_args().case or list(RUNS)
    unknown = sorted(set(wanted) - set(RUNS))
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(RUNS)}")
    for stale in sorted({file.stem for file in frozen.files()} - set(RUNS)):
        print(f"{stale}: no longer a case; remove {frozen.path(stale)}")
    for name in wanted:
        freeze(name)


def freeze(name: str) -> None:
    before = frozen.read(name)
    one = replayed if name in CASES else commanded
    after = {label: frozen.as_text(one(name, label)) for label in RUNS[name]}
    num_changed = 0
    for label in sorted(before.keys() | after.keys()):
        changed = frozen.differences(before.get(label, {}), after.get(label, {}))
        num_changed += len(changed)
        if label not in before:
            print(f"{name} / {label}: new, {len(changed)} values")
        elif label not in after:
            print(f"{name} / {label}: gone, {len(changed)} values")
        else:
            for line in changed:
                print(f"{name} / {label} / {line}")
    frozen.write(name, after)
    print(f"{name}: {num_changed} of {sum(map(len, after.values()))} values changed")


if __name__ == "__main__":
    main()
