"""Whatever is given, and wherever it runs: a command ends in a line, never in a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import struct
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from command_line import commands, end_of

import replay
import tracegen
from replay.cli import app as command
from replay.cli.app import app, main
from tracegen.importers import files
from tracegen.models import ModelShape


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and what was said of a command."""
    before = signal.getsignal(signal.SIGTERM)
    end = end_of(*words)
    signal.signal(signal.SIGTERM, before)
    return end, capsys.readouterr().err  # type: ignore[return-value]  # ours are numbers


NO_HOME = """
import os, pwd, sys
def nobody(*_): raise KeyError("uid not found")
pwd.getpwuid = nobody
for name in [*os.environ]:
    if name == "HOME" or name.startswith(("XDG_", "MOEREPLAY_")):
        del os.environ[name]
from replay.cli import main
for words in sys.stdin:
    print("?", file=sys.stderr)
    try:
        main(words.split())
    except SystemExit as end:
        print(end.code, file=sys.stderr)
"""


@pytest.mark.extended
def test_without_a_home_all_works_that_needs_none(tmp_path: Path) -> None:
    commands = {
        "trace list": "0",
        "trace info toy-zipf": "0",
        "run toy-zipf --scheme ideal --layer 0": "0",
        "trace fetch http://127.0.0.1:1/a.h5": "MOEREPLAY_CACHE names one",
        "trace list --catalogue ~/x": "no such home folder (set HOME)",
        "trace list --catalogue ~nosuchuser/x": "nobody is called 'nosuchuser'",
        "run toy-zipf --scheme ~/x.py:Mine": "no such home folder",
    }
    done = subprocess.run(
        [sys.executable, "-c", NO_HOME],
        input="\n".join(commands),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    for words, part in zip(commands.items(), done.stderr.split("?\n")[1:], strict=True):
        assert words[1] in part and len(part.splitlines()) <= 2, (words, part)


KERNELS = """
try:
    import replay.engine.kernels.loop
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.extended
def test_what_numba_cannot_read_is_the_users_mistake() -> None:
    given = {"NUMBA_NUM_THREADS": "0", "NUMBA_OPT": "²", "NUMBA_CPU_FEATURES": "sse"}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", KERNELS],
            env={**os.environ, "MOEREPLAY_COMPILER": "standard", name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name, value in given.items()
    }
    for name, process in running.items():
        out, error = process.communicate(timeout=60)
        assert (process.returncode, error) == (0, "") and len(out.splitlines()) == 1, (out, error)
        assert out.startswith("UserError numba does not begin: ") and name in out


@pytest.mark.parametrize("columns", ["²", "0", "-5", "1e9", "1000000000", "x", "", "9" * 5000])
def test_a_width_that_no_screen_has_is_passed_over(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    end_of("trace", "list")
    usual = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", columns)
    assert end_of("trace", "list") == 0 and capsys.readouterr().out == usual


def test_a_defect_is_a_line_and_shown_whole_on_demand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: Exception) -> Any:
        def parser(**_: object) -> None:
            raise error

        return lambda: parser

    for error, code, expected in (
        (KeyError("a\nb"), 1, r"KeyError: 'a\nb' ("),
        (RecursionError("too deep"), 1, "RecursionError: too deep ("),
        (OSError(36, "File name too long", "nnn"), 2, "error: nnn: File name too long\n"),
        (ValueError("x" * 10**6), 1, "ValueError: xxx"),
    ):
        monkeypatch.setattr(command, "_parser", fail(error))
        found, text = said([], capsys)
        assert found == code and expected in text and len(text) < 2100 and text.count("\n") == 1
        assert ("report it; MOEREPLAY_TRACEBACK=1" in text) == (code == 1)
    monkeypatch.setenv(command.TRACEBACK, "1")
    with pytest.raises(ValueError, match="xxx"):
        main([])


def archive(method: int = 0, flags: int = 0, **changes: int) -> bytes:
    """An archive of an array, changed in the header of its member and in the archive's list."""
    array, packed = io.BytesIO(), io.BytesIO()
    np.save(array, np.zeros((4, 2), np.int32))
    with zipfile.ZipFile(packed, "w") as out:
        out.writestr("expert_ids.npy", array.getvalue())
    data = bytearray(packed.getvalue())
    listed = data.rindex(b"PK\x01\x02")
    for place in (6, listed + 8):
        struct.pack_into("<HH", data, place, flags, method)
    for name, value in changes.items():
        struct.pack_into("<I", data, listed + {"crc": 16, "size": 24, "at": 42}[name], value)
    return bytes(data)


def array(header: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode("latin-1")


def plain(descr: str, shape: str) -> bytes:
    return array(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n")


BROKEN = {
    "npz": [
        archive(flags=1),
        archive(99),
        archive(12),
        archive(14),
        archive(93),
        archive(8),
        archive(crc=1),
        archive(size=2**31),
        archive(at=2**31),
        b"PK",
    ],
    "npy": [
        plain("'|O'", "(3,)"),
        plain("'<i8'", "(99999999999, 2)"),
        plain("'<i8'", "(-1, 2)"),
        plain("[" * 3000 + "]" * 3000, "(1,)"),
        plain("(" * 60 + ")" * 60, "(1,)"),
        plain("'<i8'", f"({'9' * 5000},)"),
        plain("'<i8\0'", "(1,)"),
        plain("'S99999999999'", "(1,)"),
        plain("[('a', '<i8'), ('a', '<i8')]", "(1,)"),
        plain("'\xff'", "'x'"),
        array("__import__('os').getpid()"),
    ],
}


@pytest.mark.parametrize("kind", BROKEN)
def test_arrays_that_nothing_can_read(kind: str, tmp_path: Path) -> None:
    for number, data in enumerate(BROKEN[kind]):
        path = tmp_path / f"{number}.{kind}"
        path.write_bytes(data)
        with pytest.raises(tracegen.UserError) as error:
            files.load_npz(path) if kind == "npz" else files.load_array(path, str(path))
        text = str(error.value)
        assert text.startswith(f"{path}: ") and "\n" not in text and len(text) < 500, number


STUDY = """
title = "t"
question = "q"
[fixed]
ranks = 2
tokens_per_rank = 2
scheme = "ideal"
trace.kind = "zipf"
trace.model = "olmoe-1b-7b"
{}
[axes]
phase = ["prefill"]
[[columns]]
header = "us"
path = "totals.makespan_us"
"""


@pytest.mark.parametrize(
    "setting",
    [
        r'system = "a\u0000b"',
        r'placement = "file:a\u0000b"',
        f"trace.seed = {'9' * 40}",
        f"trace.skew = {'9' * 400}.0",
        "trace.layers = 99999999999",
        f"shape.hidden = {'9' * 30}",
        "system.link.links_per_gpu = 1e308",
        f"shape.num_experts = {'9' * 19}",
    ],
)
def test_settings_that_nothing_can_have(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "s.toml"
    path.write_text(STUDY.format(setting))
    code, text = said(["sweep", str(path), "-o", str(tmp_path / "out")], capsys)
    assert code in (2, 3) and len(text.splitlines()) <= 2 and "defect" not in text, text


def test_a_model_of_layers_without_end_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "space.toml"
    path.write_text(
        'model = "pangu-ultra-moe"\nsequences = 6144\nshape.num_layers = [61, 999999999]\n'
        'systems = [{system = "dgx-h100-x768", scheme = "deepep"}]\n'
        "[plan]\ntp = 8\npp = 16\nep = 32\n"
    )
    code, _ = said(["choose", str(path), "--dry-run"], capsys)
    assert code == 0
    known = tracegen.models.load("olmoe-1b-7b").model_dump()
    for sizes in ({"num_layers": 10**9}, {"hidden": 10**30}, {"vocab": 2**41}):
        with pytest.raises(ValueError, match=r"less than or equal to 4096|is more than"):
            ModelShape(**{**known, **sizes})


NEEDED = {
    "compare": ["toy-zipf", "--layer", "0", "--scheme", "ideal", "--scheme", "deepep"],
    "collective": [],
    "diff": ["a.json", "b.json"],
    "report": ["a.json"],
    "explain": ["scheme=ideal", "scheme=deepep", "toy-zipf"],
    "sweep": ["s.toml", "-o", "sw"],
    "uncertainty": ["a.json", "--draws", "1"],
    "infer": ["--model", "mixtral-8x7b", "--scheme", "ideal"],
    "choose": ["pangu", "--dry-run"],
    "train": ["--model", "mixtral-8x7b", "--scheme", "ideal"],
    "tensor schemes": [],
    "trace add": ["cat", "toy-zipf"],
    "trace publish": ["pub", "toy-zipf"],
    "trace convert": ["toy-zipf", "o.h5"],
    "trace recover": ["j.partial"],
    "trace graph": ["toy-zipf", "--out", "g.graphml"],
    "hardware show": ["dgx-h100"],
    "trace import": ["d.npz", "--format", "vllm", "--out", "o.h5"],
    "trace models": [],
    "trace generate": ["zipf", "--model", "olmoe-1b-7b", "--out", "o.h5"],
    "trace list": [],
    "trace imitate": ["toy-zipf", "--out", "i.h5", "--parameters", "i.toml"],
    "hardware list": [],
    "hardware diff": ["dgx-h100", "dgx-a100"],
    "schemes": [],
    "stacks": [],
    "tensor run": ["--model", "llama-2-7b"],
    "tensor compare": ["--model", "llama-2-7b"],
    "tensor models": [],
    "run": ["toy-zipf", "--scheme", "ideal", "--layer", "0"],
}
"""Words that bring a command as far as its options; a trace for those that are not here."""
ARRIVING = [*NEEDED["infer"], "--arrivals", "10", "--count", "2"]
"""Words that bring `infer` to the options of requests that arrive."""
LATE = {"validate", "trace capture"}
"""They measure all, or import torch, before the last of their options is looked at."""
ODD = ["n" * 300, "~nosuchuser/x", "9" * 5000, "1e999", "a\udcffb", "a\0b", "nan", "-1", "9" * 30]


def odd_words() -> Iterator[tuple[str, list[str]]]:
    """Name of a command, and its words with an odd value of one of its options.

    A command that is the first with an option gets a third of the odd values, options by turns; the next
    ones, whose option is read by the same code, get one each.
    """
    met: Counter[tuple[str, str]] = Counter()
    every = [(" ".join(name), of, NEEDED.get(" ".join(name))) for name, of in commands(typer.main.get_command(app))]
    for name, of, needed in [*every, *((*one[:2], ARRIVING) for one in every if one[0] == "infer")]:
        needed = needed or ["toy-zipf"]
        for param in () if name in LATE else of.params:
            option = param.opts[-1]
            if getattr(param, "is_flag", False) or option in ("--scheduler", "--cluster"):
                continue
            kind = option, repr(getattr(param, "type", None))
            turn = met[kind]
            met[kind] += 1
            for odd in (ODD[turn % len(ODD)],) if turn else ODD[len(met) % 3 :: 3]:
                is_option = param.param_type_name == "option"
                words = [*needed, option, odd] if is_option else [odd, *needed[1:]]
                yield name, [*name.split(), *words]


@pytest.mark.release
def test_every_option_of_every_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOEREPLAY_CACHE", str(tmp_path / "cache"))
    Path("s.toml").write_text(STUDY.format(""))
    for name in ("a.json", "b.json"):
        replay.compare("toy-zipf", ["ideal", "deepep"], layer=0).save(name)
    wrong = []
    for name, words in odd_words():
        out, before = io.StringIO(), signal.getsignal(signal.SIGTERM)
        with contextlib.redirect_stderr(out), contextlib.redirect_stdout(io.StringIO()):
            try:
                main(words)
            except SystemExit as end:
                code = end.code
        signal.signal(signal.SIGTERM, before)
        text = out.getvalue()
        is_short = len(text) < 2200 and len(text.splitlines()) <= 2
        if code not in (0, 2, 3) or (code == 2 and not is_short):
            wrong.append((name, [word[:20] for word in words], code, text[:200]))
    assert not wrong, wrong
