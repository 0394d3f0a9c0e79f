"""A kind of input, the place where a command meets it, and what may become of that."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import damage

PLANTED = f"""
from pathlib import Path
Path(__file__).with_name({damage.MARK!r}).touch()
from replay.schemes.ep.ideal import Ideal
class Planted(Ideal):
    name = "planted"
"""
MOST_LINES = 2
"""Of a refusal."""
MOST_BYTES = 2**26
"""Of a file whose content is compared."""
UNFINISHED = re.compile(r"\.(tmp|part|draft)$|^tmp|^\.[^/]*\.(tmp|part)")
_STEERS = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xaa-\xae]")
_WARNS = re.compile(r"^\S+:\d+: \w*Warning", re.MULTILINE)


@dataclass
class World:
    """A folder for one command at a time, which is its current one.

    ``canary`` must stay as it is; ``given`` has what the command reads and stays so, too; only
    ``out`` may change, and ``cache``, which keeps what was downloaded in part.
    """

    folder: Path
    shelf: Path
    """Sound samples by kind, which the parent has made."""
    port: int = 0
    """Of the server that misbehaves."""
    before: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.canary, self.given, self.out = (self.folder / name for name in ("canary", "given", "out"))

    def clear(self) -> None:
        """Make it as it is before every input."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for folder in (self.canary, self.given, self.out):
            folder.mkdir(parents=True)
        (self.canary / "secret").write_text("not yours to change\n")
        (self.canary / "planted.py").write_text(PLANTED)
        (self.canary / "home").mkdir()

    def give(self, name: str, content: bytes) -> str:
        """Write a file to be read; its name as the command gets it."""
        (self.given / name).parent.mkdir(parents=True, exist_ok=True)
        (self.given / name).write_bytes(content)
        return f"given/{name}"

    def look(self, *, outputs: bool = False) -> dict[str, str]:
        """What there is below the folder, without outputs or these alone, and what is in it."""
        found = {}
        for place, folders, names in os.walk(self.folder):
            if Path(place) == self.folder:
                folders[:] = ["out"] if outputs else [one for one in folders if one not in ("out", "cache")]
            for name in [*names, *folders]:
                path = Path(place, name)
                state = path.lstat()
                said = stat.filemode(state.st_mode)
                if path.is_symlink():
                    said += str(path.readlink())
                elif stat.S_ISREG(state.st_mode) and state.st_size > MOST_BYTES:
                    said += str(state.st_size)
                elif stat.S_ISREG(state.st_mode):
                    said += hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(path.relative_to(self.folder))] = said
        return found


@dataclass(frozen=True)
class Case:
    """The words of a command, and what may become of it beside success and a refusal."""

    words: list[str]
    codes: tuple[int, ...] = ()
    """Exit codes that stand for an answer, such as 1 of a check that fails."""
    keeps: bool = False
    """Whether a command that is refused may leave what it made until then, as a study does."""


class Kind:
    """One kind of input; subclasses make sound samples once, and a damaged one from a generator."""

    name = ""
    share = 1.0
    """Of the inputs, beside those of other kinds."""
    needs_server = False

    def prepare(self, shelf: Path) -> None:
        """Write sound samples to a folder of its own."""

    def case(self, rng: random.Random, world: World) -> Case:
        """Put an input into the world; the command that meets it."""
        raise NotImplementedError


def complaint(
    case: Case,
    world: World,
    code: int,
    out: bytes,
    error: bytes,
    inputs: dict[str, str],
    outputs: dict[str, str],
) -> str:
    """Say what is wrong with the end of a command; nothing if it succeeded or refused cleanly."""
    said = error.decode(errors="replace")
    printed = out.decode(errors="replace")
    lines = said.splitlines()
    if "Traceback (most recent call last)" in said + printed or "a defect of moereplay" in said:
        return f"defect: {said.strip()[-600:]}"
    if code not in (0, 2, *case.codes):
        return f"exit code {code}: {said[-300:]}"
    if case.keeps:  # studies say what they do
        lines = lines[next((at for at, line in enumerate(lines) if line.startswith("error: ")), 0) :]
    if code == 2 and not (1 <= len(lines) <= MOST_LINES and lines[0].startswith("error: ")):
        return f"a refusal in {len(lines)} lines: {said[:600]!r}"
    if _WARNS.search(said):
        return f"a warning: {said[:600]}"
    streams = error if "-" in case.words else error + out  # else a file was asked for there
    if steering := _STEERS.search(streams):
        return f"steers the terminal: {steering.group()!r}"
    if (world.canary / damage.MARK).exists() or (world.folder / damage.MARK).exists():
        return "executed"
    now = world.look()
    if changed := {name for name in now.keys() | inputs.keys() if now.get(name) != inputs.get(name)}:
        return f"touched {sorted(changed)}"
    made = world.look(outputs=True)
    if half := [name for name in made if name not in outputs and UNFINISHED.search(Path(name).name)]:
        return f"left {half}"
    new = {name for name in made if made[name] != outputs.get(name)} | (outputs.keys() - made.keys())
    if code == 2 and new and not case.keeps:
        return f"refused, and changed {sorted(new)[:5]}: {said}"
    return "" if code == 2 else _of_outputs(case, world, new)


def _of_outputs(case: Case, world: World, new: set[str]) -> str:
    """What is wrong with the files that the words ask for."""
    asked = dict(zip(case.words, case.words[1:], strict=False))
    page, document = asked.get("--html", ""), asked.get("--json", "")
    if page in new and page.endswith(".html"):
        text = (world.folder / page).read_text("utf-8")
        if damage.SCRIPT in text:
            return f"{page} has a script that was given"
        if not text.rstrip().endswith("</html>"):
            return f"{page} has no end"
    if document in new and page != document and document.endswith(".json"):
        try:
            json.loads((world.folder / document).read_text("utf-8"), parse_constant=_refuse)
        except ValueError as error:
            return f"{document} is no JSON: {error}"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not of JSON")
