"""Random inputs of every kind end in success or a clean refusal, and what does not is noticed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="memory is measured as Linux reports it"
)


def fuzzed(*words: str) -> tuple[int, str]:
    """Exit code of the fuzzer, and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    return done.returncode, done.stdout + done.stderr


def rows(said: str) -> dict[str, list[int]]:
    """Numbers of each kind in the table."""
    found = re.findall(r"^\| ([^|]+) \|((?: [\d,]+ \|)+)$", said, re.MULTILINE)
    return {name: [int(one.replace(",", "")) for one in cells.split("|")[:-1]] for name, cells in found}


@pytest.mark.release
def test_inputs_of_every_kind() -> None:
    code, said = fuzzed("--seed", "0", "--inputs", "400")
    assert code == 0, said
    for name, (inputs, succeeded, refused, _, other) in rows(said).items():
        assert inputs >= 5 and not other and refused, (name, said)
        assert succeeded or inputs < 20, (name, said)  # one in seven is sound


FAULTS = {
    "raise KeyError('x')": "a defect of moereplay",
    "os.kill(os.getpid(), 11)": "SIGSEGV",
    "os._exit(0)": "ended the process with 0",
    "time.sleep(9)": "SIGALRM",
    "[0 for _ in iter(int, 1)]": "SIGPROF",
    "bytes(b'x') * 2**27": "memory grew by",
    "open('canary/secret', 'a').write('x')": "touched ['canary/secret']",
    "open('new', 'a')": "touched ['new']",
    "exec(open('canary/planted.py').read(), {'__file__': 'canary/planted.py'})": "executed",
    "open('out/r.json', 'w'); raise UserError('no')": "refused, and changed ['out/r.json']",
    "open('out/.r.json.tmp', 'w')": "left ['out/.r.json.tmp']",
    "raise UserError('a\\nb\\nc')": "a refusal in 3 lines",
    "os.write(1, b'\\x1b[2J')": "steers the terminal",
    "raise SystemExit(5)": "exit code 5",
}
HARNESS = """
import os, sys, time, tempfile
from pathlib import Path
from replay.cli import app
from replay.errors import UserError
from tests.fuzz import running
from tests.fuzz.base import Case, Kind, World

FAULTS = {faults!r}
running.GROWTH_BYTES = 2**26
class Faulty(Kind):
    name = "faulty"
    def case(self, rng, world):
        return Case(["trace", "list"])
def parser():
    def command(**_):
        exec(FAULTS[int(Path("given/number").read_text())])
    return command
class Numbered(Faulty):
    def case(self, rng, world):
        world.give("number", str(self.number).encode())
        running.WALL_SECONDS = 0.5 if "sleep" in FAULTS[self.number] else 60
        running.CPU_SECONDS = 0.5 if "iter(int" in FAULTS[self.number] else 30
        return super().case(rng, world)
app._parser = parser
with tempfile.TemporaryDirectory() as folder:
    for number in range(len(FAULTS)):
        kind = Numbered()
        kind.number = number
        (one,) = running.batch(kind, 0, [0], World(Path(folder, "w"), Path(folder)))
        print(one["wrong"].replace("\\n", " "))
"""


@pytest.mark.extended
def test_each_fault_is_noticed() -> None:
    """Whoever cannot fail proves nothing: a command with each fault, one after the other."""
    done = subprocess.run(
        [sys.executable, "-c", HARNESS.format(faults=[*FAULTS])],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    found = done.stdout.splitlines()
    assert len(found) == len(FAULTS), done.stderr
    missed = [(code, said) for (code, part), said in zip(FAULTS.items(), found, strict=True) if part not in said]
    assert not missed
