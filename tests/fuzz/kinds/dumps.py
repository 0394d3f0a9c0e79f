"""Dumps of other tools, a kind for each format that is imported; and what pickles would do."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import pickle
import random
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

from tests.fuzz import damage
from tests.fuzz.base import Case, Kind, World
from tests.fuzz.kinds.few_dumps import WRITERS
from tracegen.importers import FORMATS

_FOLDER = Path(__file__).parents[2] / "tracegen/importers"
TEXT = {".json", ".jsonl", ".csv", ".sse"}
SIZES = ["--num-experts", "16", "--topk", "3", "--hidden-size", "8"]
OPTIONS = [
    *([[]] * 20),
    ["--drop-repeats"],
    ["--prompt-len", "3"],
    ["--moe-layers", "3-4"],
    ["--tp", "2"],
    ["--pp", "2"],
    ["--num-layers", "2"],
    ["--start-len", "2"],
    ["--max-tokens", "5"],
    ["--seed", "7"],
    ["--title", damage.SCRIPT],
    ["--model", "olmoe-1b-7b"],
    ["--prompts", "given/prompts.json"],
]


def samples() -> dict[str, Any]:
    """Inputs of the importers' tests, by name."""
    if str(_FOLDER) not in sys.path:
        sys.path.insert(0, str(_FOLDER))
    import kinds

    for path in sorted(_FOLDER.glob("kinds_of*.py")):
        if importlib.util.find_spec(path.stem):
            importlib.import_module(path.stem)
    return kinds.KINDS


class Bomb:
    """What a pickle would carry out."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (f"open({damage.MARK!r}, 'w')",)


def bomb(suffix: str) -> bytes:
    """A file of a pickle, as it is or as arrays and tensors hold it."""
    plain = pickle.dumps(Bomb())
    if suffix == ".npy":
        head = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
        return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + plain
    if suffix in (".npz", ".pt"):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as out:
            name = "expert_ids.npy" if suffix == ".npz" else "archive/data.pkl"
            out.writestr(name, bomb(".npy") if suffix == ".npz" else plain)
            out.writestr("archive/version", "3\n")
        return packed.getvalue()
    return plain


class Dumps(Kind):
    """Samples of one format, one file of which is damaged."""

    def __init__(self, format: str) -> None:
        self.name, self.format = f"dumps: {format}", format
        self.share = 0.5

    def prepare(self, shelf: Path) -> None:
        for number, make in enumerate(samples().values()):
            folder = shelf / f"{number}"
            folder.mkdir()
            found = make(folder)
            if found.format == self.format:
                options = " ".join(
                    f"--{name.replace('_', '-')}={value}"
                    for name, value in found.options.items()
                    if isinstance(value, int)
                )
                (shelf / f"{number}.options").write_text(options)
                (shelf / f"{number}.words").write_text("\n".join(str(path.relative_to(folder)) for path in found.paths))
            else:
                shutil.rmtree(folder)
        for write in WRITERS.get(self.format, []):
            folder = shelf / write.__name__
            folder.mkdir()
            write(folder)
            (shelf / f"{folder.name}.options").write_text("--pp=1" if self.format == "megatron" else "")
            words = ["."] if self.format == "tensorrt-llm" else sorted(path.name for path in folder.iterdir())
            (shelf / f"{folder.name}.words").write_text("\n".join(words))

    def case(self, rng: random.Random, world: World) -> Case:
        shelf = world.shelf / self.name
        folder = rng.choice(sorted(path for path in shelf.iterdir() if path.is_dir()))
        target = world.given / "dump"
        shutil.copytree(folder, target)
        path = rng.choice(sorted(path for path in target.rglob("*") if path.is_file()))
        kind = rng.random()
        if kind < 0.03:
            path.write_bytes(bomb(path.suffix))
        elif path.suffix in (".npz", ".pt") and kind < 0.6:
            path.write_bytes(_inside(path.read_bytes(), rng))
        else:
            path.write_bytes(damage.file(path.read_bytes(), rng, is_text=path.suffix in TEXT))
        world.give("prompts.json", damage.file(b"[3, 4]", rng))
        words = (shelf / f"{folder.name}.words").read_text().split("\n")
        options = (shelf / f"{folder.name}.options").read_text().split()
        return Case(
            [
                "trace",
                "import",
                *(str(Path("given/dump", one)) for one in words),
                "--format",
                self.format,
                "--out",
                "out/a.h5",
                *SIZES,
                *options,
                *rng.choice(OPTIONS),
            ]
        )


def _inside(whole: bytes, rng: random.Random) -> bytes:
    """Damage what an archive holds, so that its sums still hold."""
    try:
        packed = zipfile.ZipFile(io.BytesIO(whole))
    except zipfile.BadZipFile:
        return damage.some_bytes(whole, rng)
    out = io.BytesIO()
    hurt = rng.choice(packed.namelist())
    with zipfile.ZipFile(out, "w") as made:
        for name in packed.namelist():
            data = packed.read(name)
            if name != hurt:
                made.writestr(name, data)
            elif rng.random() < 0.9:
                with contextlib.suppress(UserWarning):
                    made.writestr(name, damage.some_bytes(data, rng))
    return out.getvalue()


KINDS: list[Kind] = [Dumps(name) for name in FORMATS]
