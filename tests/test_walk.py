"""The count of how far a reader walks through one replay."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_walk_leads_from_the_spec_through_chains_to_the_result() -> None:
    script = str(ROOT / "scripts" / "walk.py")
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    first, *rest = ran.stdout.splitlines()
    words = first.split()
    number, returns = int(words[3]), int(words[8])
    files = [line.strip() for line in rest[:number]]
    assert files[0] == "experiments/ask.py"
    assert {"chains/preparation.py", "chains/replay.py", "measure/measures.py"} <= set(files)
    assert files == list(dict.fromkeys(files))
    assert 0 < returns < 80
    arrows = {line.split()[1]: line.partition("->")[2].split(", ") for line in rest[number + 1 :]}
    assert "measure" in arrows["chains"]
    assert not any(to.strip().startswith("experiments") for to in arrows["chains"])
