"""Values of the options of every command."""

from __future__ import annotations

import os
import random
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz import damage
from tests.fuzz.base import Case, Kind, World
from tests.fuzz.kinds.documents import GENERATE, INFER, ran

SIZES = "--num-experts 16 --topk 3 --hidden-size 8"
TRAIN = "train --model olmoe-1b-7b --plan pp=2,dp=2,ep=2,micro_batches=2"
BASES = [
    "run toy-zipf --scheme ideal --layer 0 --max-memory 2GB",
    "compare toy-zipf --scheme ideal --scheme deepep --layer 0 --max-memory 2GB --jobs 1",
    "collective --bytes 1M",
    "diff given/c.json given/c.json",
    "explain deepep ideal toy-zipf --layer 0",
    f"{INFER} --requests 4 --prompt 32 --output 2",
    f"{INFER} --arrivals 50 --count 20 --prompts 32 --outputs 4",
    "place toy-zipf",
    "report given/c.json --html out/p.html",
    "schemes",
    "schemes deepep",
    "validate --list",
    "sweep given/study.toml --dry-run",
    "choose given/space.toml --dry-run",
    f"{TRAIN} --sequence 64 --layers-sampled 1 --scheme ideal",
    "trace list",
    "trace fetch toy-zipf --out out/f --offline",
    "trace add out/cat given/a.h5",
    "trace publish out/cat given/a.h5 --title T --creator C",
    "trace describe out/a.h5 --title T",
    "trace convert given/a.h5 out/b.h5",
    "trace recover given/none --out out/b.h5",
    "trace stats given/a.h5",
    "trace graph given/a.h5",
    f"trace import given/a.npz --format arrays --out out/b.h5 {SIZES}",
    f"trace generate zipf {GENERATE}",
    "trace models olmoe-1b-7b",
    "trace info given/a.h5",
    "trace validate given/a.h5",
    "trace imitate given/a.h5 --out out/b.h5 --parameters out/p.toml",
    "hardware list",
    "hardware show dgx-h100",
    "hardware diff dgx-h100 hgx-h200",
    "tensor run --scheme tp-ring --tp 4 --layers 1 --tokens 64",
    "tensor compare --scheme tp-ring --scheme sp-ring --tp 4 --layers 1 --tokens 64",
    "tensor schemes",
    "tensor models",
]
"""Commands that succeed soon, so that what is changed is what matters."""
OUTPUTS = {
    "--json",
    "--html",
    "--plots",
    "--tables",
    "--out",
    "-o",
    "--trace-events",
    "--report",
    "--parameters",
    "--export",
}
"""Who names a place to write to is obeyed: these get no names of what must stay."""
NOT_HERE = {
    "--help",
    "-h",
    "--install-completion",
    "--show-completion",
    "--version",
    "--scheduler",
    "--cluster",
    "--plots",
}
"""They end at once, look for other machines, or draw for seconds."""
PLACES = [
    "out/x.json",
    "out/no/x.json",
    "out/folder",
    "out/socket/x",
    "/dev/full",
    "/dev/null",
    "out/" + "n" * 300,
    "out/a\0b",
    "",
    "out",
    "out/\ud800",
    "-",
    "out/x.html",
    "out/x.json.gz",
]
VALUES = [
    "lognormal:5:0.3",
    "zipf:0.6",
    "zipf:skew=0.6",
    "normal:0.032",
    "eplb:72",
    "eplb:72:2",
    "greedy:72",
    "random:3",
    "affinity:72:2",
    "ultraep:72",
    "moonep",
    "round-robin",
    "pp=2,dp=2,ep=2",
    "deepseek-v3",
    "1M..4M",
    "1M,3M",
    "0,1",
    "1-3",
    "0:1",
    "10:20",
    "2GB",
    "1/2",
    "link.efficiency=0.9",
    "fp8",
    "bf16",
    "num_sms=20",
    "deepep.num_sms=20",
    "prefill",
    "decode",
    "training",
    "backward",
    "hash",
    "position",
    "load",
    "dgx-h100",
    "gb200-nvl72",
    "hgx-b200",
    "pcie-l20",
    "toy-zipf",
    "olmoe-1b-7b",
    "10%",
    "tbo",
    "dbo",
    "sbo",
    "dualpipe",
    "megatron",
    "graph",
    "eager",
    "nccl",
    "uniform:1:9",
    "1:0.85",
    "mfu",
    "hardware,routing",
    "beside-dispatch",
    "chrome:out/x",
    "goal:out/x",
    "chakra:out/x",
    "networkx:out/x",
    "once",
    "gpipe",
    "zb-v",
    "interleaved",
    "4",
    "8",
    "16",
    "0.5",
    "given/c.json",
    "given/a.h5",
    "given/a.npz",
    "given/study.toml",
    "given/pipe",
    "given/folder",
    "given/loop",
    "given/device",
    "given/empty",
    "file:given/c.json",
    "file:given/pipe",
    "file:/dev/zero",
    "http://127.0.0.1:1/x.h5",
]
_NUMBER = re.compile(r"\d+(\.\d+)?")


@cache
def parameters() -> dict[str, list[Any]]:
    """Parameters of every command, by its words."""
    from replay.cli.app import _parser

    found: dict[str, list[Any]] = {}

    def walk(command: Any, words: list[str]) -> None:
        if hasattr(command, "commands"):
            for name, inner in command.commands.items():
                walk(inner, [*words, name])
        else:
            found[" ".join(words)] = command.params

    walk(_parser(), [])
    return found


def hostile(rng: random.Random) -> str:
    """Give a value of an option."""
    kind = rng.randrange(6)
    if kind == 0:
        return str(rng.choice(damage.NUMBERS)) if rng.random() < 0.9 else str(10**4000)
    if kind == 1:
        return rng.choice([text for text in damage.TEXTS if text != damage.CODE and len(text) < 60_000])
    value = rng.choice(VALUES)
    if kind == 2:
        places = [*_NUMBER.finditer(value)]
        if places and not value.startswith("http"):
            one = rng.choice(places)
            number = rng.choice([*damage.NUMBERS, "", "x", "nan", "inf", "1e5", "1_0", "٣"])
            return value[: one.start()] + str(number)[:400] + value[one.end() :]
    if kind == 3 and not value.startswith("http"):
        at = rng.randrange(len(value) + 1)
        return value[:at] + rng.choice([":", "=", ",", ".", "", value, "\0", "-"]) + value[at + 1 :]
    return value


class Words(Kind):
    """A command that works, with a few options more, less, or of other values."""

    name = "words"
    share = 6

    def prepare(self, shelf: Path) -> None:
        import numpy as np

        from tests.fuzz.kinds import documents
        from tests.tracegen.importers.dumps import routing

        ran(f"compare toy-zipf --scheme ideal --scheme deepep --layer 0 --json {shelf / 'c.json'}")
        ran(f"trace generate zipf --model olmoe-1b-7b --ranks 2 --tokens-per-rank 8 --layers 2 --out {shelf / 'a.h5'}")
        (shelf / "study.toml").write_text(documents.STUDY)
        (shelf / "space.toml").write_text(documents.SPACE)
        (shelf / "empty").touch()
        np.savez(shelf / "a.npz", expert_ids=routing(9))
        parameters()  # before processes are made

    def case(self, rng: random.Random, world: World) -> Case:
        for path in (world.shelf / self.name).iterdir():
            world.give(path.name, path.read_bytes())
        (world.out / "a.h5").write_bytes((world.given / "a.h5").read_bytes())
        for folder in (world.given, world.out):
            (folder / "folder").mkdir()
            os.mkfifo(folder / "pipe")
        (world.given / "loop").symlink_to("loop")
        (world.given / "device").symlink_to("/dev/zero")
        base = shlex.split(rng.choice(BASES))
        name = max((one for one in parameters() if base[: len(one.split())] == one.split()), key=len)
        for _ in range(rng.choice([1, 1, 1, 2, 2, 3])):
            self._change(base, parameters()[name], len(name.split()), rng)
        is_check = base[0] in ("validate", "diff", "schemes")
        return Case(
            base,
            (1,) if is_check else (3,) * (base[0] == "sweep"),
            keeps=base[0] in ("sweep", "choose") or base[:2] == ["trace", "fetch"],
        )

    def _change(self, base: list[str], known: list[Any], first: int, rng: random.Random) -> None:
        options = [one for one in known if one.param_type_name == "option" and one.opts[0] not in NOT_HERE]
        kind = rng.randrange(10)
        if kind == 0 and len(base) > first:
            at = rng.randrange(first, len(base))
            # Another word would be the name of the file; to validate all takes half a minute.
            if base[at - 1] not in OUTPUTS and base[at] != "--list":
                del base[at]
        elif kind == 1:
            places = [
                at
                for at in range(first, len(base))
                if not base[at].startswith("-") and base[at - 1] not in OUTPUTS and not base[at].startswith("out/")
            ]
            if places:
                base[rng.choice(places)] = hostile(rng)
        elif options:
            option = rng.choice(options)
            word = rng.choice(option.opts)
            if option.is_flag:
                base.append(rng.choice([*option.opts, *option.secondary_opts]))
            elif word in OUTPUTS:
                # "-" is standard output for a file, and as a folder one that is called so.
                is_folder = word == "--tables" or base[:2] == ["trace", "fetch"]
                places = [one for one in PLACES if not is_folder or one != "-"]
                base += [word, rng.choice(places)]
            else:
                # "=" so that what begins with a dash is a value.
                base.append(f"{word}={hostile(rng)}" if word.startswith("--") else word + hostile(rng))


KINDS: list[Kind] = [Words()]
