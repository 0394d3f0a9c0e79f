"""A small study, and what it leaves behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

STUDY = """
title = "A small study"
question = "Is it the same whoever replays it?"
seeds = [0, 1, 2]
[fixed]
system = "dgx-h100"
tokens_per_rank = 4
tune = false
trace.kind = "zipf"
trace.skew = 0.8
trace.model = "olmoe-1b-7b"
[axes]
ranks = [2, 4]
scheme = ["deepep", { label = "wide rows", scheme = "comet", comet.message_rows = 16 }, "nvls"]
"""


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 18 replays of six traces, each of a few milliseconds."""
    path = tmp_path_factory.mktemp("study") / "small.toml"
    path.write_text(STUDY, encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def whole(small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its folder, as one process leaves it."""
    from replay.studies.sweeps import sweep

    folder = tmp_path_factory.mktemp("whole")
    sweep(small, folder)
    return folder


@pytest.fixture(scope="session")
def is_whole(whole: Path) -> Callable[[Path], bool]:
    """Whether a folder holds the same points and tables as `whole`, no failures, no claims."""

    def files(folder: Path) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

    def check(folder: Path) -> bool:
        is_clean = not (folder / "claims").exists() and not any(folder.glob("failures/*"))
        return is_clean and all(files(whole / name) == files(folder / name) for name in (".", "points"))

    return check


SCHEMES = """
import os, signal, time
from pathlib import Path

from replay.schemes.ep.ideal import Ideal


class Slow(Ideal):
    name = "slow"

    def build(self, work, machine, start):
        time.sleep(0.05)
        return super().build(work, machine, start)


class Deadly(Ideal):
    name = "deadly"

    def build(self, work, machine, start):
        with Path("DEATHS").open("a") as file:
            file.write("x")
        if len(Path("DEATHS").read_text()) <= MOST:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().build(work, machine, start)


class Faulty(Ideal):
    name = "faulty"

    def build(self, work, machine, start):
        if not Path("MENDED").exists():
            raise MemoryError("no room for\\nso many tasks") if work.num_ranks == 2 else KeyError(3)
        return super().build(work, machine, start)
"""


@pytest.fixture
def odd_study(tmp_path: Path) -> Callable[..., Path]:
    """Make the small study with schemes that sleep, kill their process, or have a defect.

    `deaths` is how often the deadly one kills; ``mended`` in the folder mends the faulty one.
    """

    def make(*names: str, deaths: int = 0, seeds: str = "[0, 1]", ranks: str = "[2, 4]") -> Path:
        code = SCHEMES.replace("MOST", str(deaths))
        for word in ("DEATHS", "MENDED"):
            code = code.replace(word, str(tmp_path / word.lower()))
        file = tmp_path / "odd.py"
        file.write_text(code, encoding="utf-8")
        odd = [f'{{ label = "{name}", scheme = "{file}:{name.title()}" }}' for name in names]
        text = STUDY[: STUDY.index("scheme = [")] + f'scheme = ["nvls", {", ".join(odd)}]\n'
        path = tmp_path / "odd.toml"
        text = text.replace("[0, 1, 2]", seeds).replace("[2, 4]", ranks)
        path.write_text(text, encoding="utf-8")
        return path

    return make
