"""Traces: HDF5 files with other bytes, and ones that declare something else; journals."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import h5py
import numpy as np

import tracegen
from tests.fuzz import damage
from tests.fuzz.base import Case, Kind, World
from tests.fuzz.kinds.documents import ROOT
from tests.tracegen.conftest import tiny_trace

DTYPES = ("u1", "u2", "u4", "u8", "i4", "i8", "f2", "f4", "f8", "S3", "S5000", "V5", ">u4", "?")
TEXTS = (b"", b"1.0.0", b"x" * 5000, b"\xff\xfe", b"[" * 9000, b"{}", b'{"tool": 1}', b"nan")
COMMANDS = [
    "trace info {}",
    "trace info {} --json",
    "trace validate {}",
    "trace stats {}",
    "trace graph {}",
    "trace convert {} out/b.h5",
    "trace convert {} out/b.npz",
    "trace convert {} out/b.h5 --layers 0:1",
    "place {} --json out/p.json",
    "run {} --scheme ideal --max-memory 2GB --json out/r.json",
    "trace describe {} --title T",
    "trace fetch {} --out out/f",
    "trace add out/cat {} --name b",
]


def declare(file: h5py.File, rng: random.Random) -> None:
    """Change what the file declares, as HDF5 itself would write it."""
    paths: list[str] = []
    file.visit(paths.append)
    path = rng.choice(paths)
    node = file[path]
    kind = rng.randrange(8)
    if kind == 0:
        del file[path]
    elif kind == 1:
        holder = rng.choice([file, file["model"], file["routing/expert_ids"]])
        name = rng.choice([*holder.attrs, "odd"])
        holder.attrs[name] = rng.choice(
            [
                np.bytes_(rng.choice(TEXTS) or b"\0"),
                0,
                -1,
                2**63 - 1,
                np.nan,
                np.arange(3),
                True,
                "variable",
                np.float64(1e300),
                node.ref,
                h5py.Empty("f4"),
                *(np.bytes_(text.encode("utf-8", "surrogatepass") or b"\0") for text in damage.TEXTS[:40]),
            ]
        )
    elif kind == 2 and isinstance(node, h5py.Dataset):
        place = node.name
        shape = tuple(rng.choice([size, size + 1, max(size - 1, 0), 0, 1, 70_000]) for size in node.shape)
        if np.prod(shape, dtype=np.float64) < 1e7:
            del file[path]
            file.create_dataset(place, shape, rng.choice(DTYPES))
    elif kind == 3 and isinstance(node, h5py.Dataset) and node.shape:
        place, dtype = node.name, node.dtype
        shape = tuple(rng.choice([1, 9, 2**20, 2**33, 2**40]) for _ in node.shape)
        del file[path]
        chunks = tuple(min(size, rng.choice([1, 16, 4096])) for size in shape)
        file.create_dataset(place, shape, dtype, chunks=chunks, compression="gzip", fillvalue=None)
    elif kind == 4 and isinstance(node, h5py.Dataset) and node.size and node.dtype.kind in "iufS":
        index = tuple(rng.randrange(size) for size in node.shape)
        if node.dtype.kind in "iu":
            limits = np.iinfo(node.dtype)
            node[index] = rng.choice([limits.min, limits.max, 0, 1, limits.max // 2])
        elif node.dtype.kind == "f":
            node[index] = rng.choice([np.nan, np.inf, -np.inf, 0.0, -1.0])
        else:
            node[index] = rng.choice([b"\xff", b"", b"a\0b"])
    elif kind == 5:
        target = rng.choice([*paths, "nowhere"])
        link = rng.choice([h5py.SoftLink(f"/{target}"), h5py.ExternalLink("/etc/passwd", "/x")])
        del file[path]
        file[path] = link
    elif kind == 6:
        other = rng.choice(paths)
        if not other.startswith(path):
            del file[path]
            file[path] = file[other]
    elif isinstance(node, h5py.Dataset) and node.size:
        # A bomb: a great deal of nothing, honestly stored.
        place, dtype = node.name, node.dtype
        shape = tuple(min(4 * size, 2**21) for size in node.shape)
        if np.prod(shape, dtype=np.float64) * dtype.itemsize < 2e7:
            del file[path]
            file.create_dataset(place, data=np.zeros(shape, dtype), compression="gzip")


class Traces(Kind):
    """Everything optional, synthetic, chunked and compressed, with weights; an early version."""

    share = 3

    def __init__(self, name: str, is_declared: bool) -> None:
        self.name, self.is_declared = name, is_declared

    def prepare(self, shelf: Path) -> None:
        tracegen.write(tiny_trace(), shelf / "tiny.h5")
        (shelf / "toy.h5").write_bytes(Path(tracegen.library.find("toy-zipf")).read_bytes())
        recorded = tracegen.load("gpt-oss-20b-decode-weights", layers=[0, 9], tokens=slice(0, 500))
        tracegen.write(recorded, shelf / "part.h5")
        (shelf / "early.h5").write_bytes((ROOT / "tests/data/formats/v1.0/tiny.h5").read_bytes())

    def case(self, rng: random.Random, world: World) -> Case:
        data = rng.choice(sorted((world.shelf / self.name).iterdir())).read_bytes()
        words = rng.choice(COMMANDS)
        # One is changed in its place.
        name = "../out/a.h5" if "describe" in words else "a.h5"
        given = world.give(name, damage.some_bytes(data, rng) if not self.is_declared else data)
        if self.is_declared:
            with h5py.File(world.folder / given, "r+") as file:
                for _ in range(rng.choice([1, 1, 2, 3])):
                    # Otherwise HDF5 would not write that, or an earlier change removed it.
                    with contextlib.suppress(KeyError, ValueError, OSError, TypeError, RuntimeError):
                        declare(file, rng)
        return Case(words.format(given).split())


class Journals(Kind):
    """What a capture that was killed leaves."""

    name = "journals"

    def prepare(self, shelf: Path) -> None:
        from tests.tracegen.capture.test_journal import write

        for rank in (0, 1):
            write(shelf / f"a.h5.rank{rank}.partial", rank=rank, done=True)
        write(shelf / "b.h5.partial")

    def case(self, rng: random.Random, world: World) -> Case:
        paths = sorted((world.shelf / self.name).iterdir())
        hurt = rng.choice(paths)
        for path in paths:
            data = path.read_bytes()
            if path == hurt:
                head, _, rest = data.partition(b"\n")
                data = (
                    damage.text(head.decode(errors="replace"), rng).encode("utf-8", "surrogatepass") + b"\n" + rest
                    if rng.random() < 0.3
                    else damage.some_bytes(data, rng)
                )
            world.give(path.name, data)
        words = rng.choice(
            [
                "trace recover given/b.h5.partial --out out/b.h5",
                "trace info given/b.h5.partial",
                "trace recover given/a.h5.rank0.partial given/a.h5.rank1.partial --out out/a.h5",
                "trace validate given/a.h5.rank0.partial",
            ]
        )
        return Case(words.split())


KINDS: list[Kind] = [
    Traces("traces: bytes", is_declared=False),
    Traces("traces: declared", is_declared=True),
    Journals(),
]
