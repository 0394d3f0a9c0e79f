"""Folders that moereplay fills, with other things where its files would be."""

from __future__ import annotations

import os
import random
import shutil
import socket
from pathlib import Path

from tests.fuzz import damage
from tests.fuzz.base import Case, Kind, World
from tests.fuzz.kinds import documents
from tests.fuzz.kinds.documents import ran

THINGS = [
    "link",
    "broken link",
    "loop",
    "link to a folder",
    "device",
    "pipe",
    "socket",
    "folder",
    "full folder",
    "unreadable",
    "empty",
    "damaged",
    "gone",
    "from the future",
    "large",
]


def put(path: Path, thing: str, rng: random.Random, canary: Path) -> None:
    """Put something in the place of a file or a folder."""
    content = path.read_bytes() if path.is_file() and path.stat().st_size < 2**26 else b"x"
    keeps = thing in ("unreadable", "from the future") and path.exists()
    if not keeps:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    if thing == "link":
        path.symlink_to(canary / "secret")
    elif thing == "broken link":
        path.symlink_to(canary / "nothing")
    elif thing == "loop":
        path.symlink_to(path.name)
    elif thing == "link to a folder":
        path.symlink_to(canary)
    elif thing == "device":
        path.symlink_to("/dev/zero")
    elif thing == "pipe":
        os.mkfifo(path)
    elif thing == "socket":
        here = Path.cwd()
        os.chdir(path.parent)  # names of sockets are short
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name[:90])
        os.chdir(here)
    elif thing in ("folder", "full folder"):
        path.mkdir()
        if thing == "full folder":
            (path / path.name).mkdir()
    elif thing in ("unreadable", "from the future"):
        if not path.exists():
            path.touch()
        if thing == "unreadable":
            path.chmod(0)
        else:
            os.utime(path, (4e9, 4e9))
    elif thing == "empty":
        path.touch()
    elif thing == "damaged":
        path.write_bytes(damage.file(content, rng))
    elif thing == "large":
        with path.open("wb") as file:
            file.truncate(2**33)


class Folders(Kind):
    """Folders of studies, choices, catalogues and tables, some files of which are changed."""

    name = "folders"
    share = 4

    def prepare(self, shelf: Path) -> None:
        (shelf / "study.toml").write_text(documents.STUDY)
        (shelf / "space.toml").write_text(documents.SPACE)
        ran(f"compare toy-zipf --scheme ideal --scheme deepep --layer 0 --json {shelf / 'c.json'}")
        ran(f"trace generate zipf --model olmoe-1b-7b --ranks 2 --tokens-per-rank 4 --layers 2 --out {shelf / 'a.h5'}")
        ran(f"sweep {shelf / 'study.toml'} -o {shelf / 'study'}")
        ran(f"choose {shelf / 'space.toml'} -o {shelf / 'choice'} --most 2")
        ran(f"trace publish {shelf / 'catalogue'} {shelf / 'a.h5'} --title T --creator C")
        ran(f"report {shelf / 'c.json'} --tables {shelf / 'tables'}")

    def case(self, rng: random.Random, world: World) -> Case:
        shelf = world.shelf / self.name
        for name in ("study.toml", "space.toml", "c.json", "a.h5"):
            world.give(name, (shelf / name).read_bytes())
        name, words, keeps = rng.choice(
            [
                ("study", "sweep given/study.toml -o out/study", True),
                ("study", "sweep given/study.toml -o out/study --shard 1/2", True),
                ("study", "report out/study --html out/p.html", False),
                ("study", "sweep given/study.toml -o out/study --json out/s.json", True),
                ("choice", "choose given/space.toml -o out/choice --most 2", True),
                ("catalogue", "trace add out/catalogue given/a.h5 --name a --force", True),
                (
                    "catalogue",
                    "trace publish out/catalogue given/a.h5 --title T --creator C --force",
                    True,
                ),
                ("catalogue", "trace list --catalogue out/catalogue", False),
                ("catalogue", "trace fetch a --catalogue out/catalogue --out out/fetched", True),
                ("tables", "report given/c.json --tables out/tables", True),
                ("tables", "compare toy-zipf --scheme ideal --layer 0 --tables out/tables", True),
            ]
        )
        folder = world.out / name
        shutil.copytree(shelf / name, folder)
        for _ in range(rng.choice([1, 1, 2, 3])):
            paths = sorted(path for path in folder.rglob("*"))
            if not paths:
                break
            path = rng.choice(paths)
            if rng.random() < 0.3:  # what a later file, or one that is not finished, would be called
                path = path.with_name(
                    rng.choice(
                        [
                            f".{path.name}.tmp",
                            f"{path.stem}x{path.suffix}",
                            "claims",
                            "failures",
                            "points",
                            "sweep.json",
                            path.name + "~",
                        ]
                    )
                )
            put(path, rng.choice(THINGS), rng, world.canary)
        return Case(words.split(), (3,) if words.startswith("sweep") else (), keeps)


KINDS: list[Kind] = [Folders()]
