"""Write the golden results anew, and print what changed.

    python tests/golden/freeze.py [CASE ...]    all cases unless some are named

Do this only when a result is meant to change; tests/golden/README.md says what goes with it.
"""

from __future__ import annotations

import argparse
import sys

import frozen
from cases import CASES, replayed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="*", help=f"one of: {', '.join(CASES)}")
    wanted = parser.parse_args().case or list(CASES)
    unknown = sorted(set(wanted) - set(CASES))
    if unknown:
        sys.exit(f"no such case: {', '.join(unknown)}; there are: {', '.join(CASES)}")
    for stale in sorted({file.stem for file in frozen.files()} - set(CASES)):
        print(f"{stale}: no longer a case; remove {frozen.path(stale)}")
    for name in wanted:
        freeze(name)


def freeze(name: str) -> None:
    before = frozen.read(name)
    after = {label: frozen.as_text(replayed(name, label)) for label in CASES[name].runs()}
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
