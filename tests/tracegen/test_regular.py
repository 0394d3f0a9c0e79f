"""Only what has an end is read whole."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest
from loops import every

from tracegen.shared import regular
from tracegen.shared.regular import check, read_bytes, read_text


def test_a_file_is_read_whole_up_to_its_most(tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_bytes(b"one\r\ntwo\rthree\n")
    assert read_bytes(path, 15) == b"one\r\ntwo\rthree\n"
    assert read_text(str(path)) == path.read_text("utf-8") == "one\ntwo\nthree\n"
    with pytest.raises(OSError, match="at most 0 MB are read"):
        read_bytes(path, 14)


def test_room_is_made_for_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"some")
    tracemalloc.start()
    assert read_bytes(path, 2**40) == b"some"
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()


def test_a_file_that_hides_its_size_is_read_to_its_most_only() -> None:
    if not Path("/proc/self/status").exists():
        pytest.skip("no /proc here")
    assert Path("/proc/self/status").stat().st_size == 0
    assert "Name:" in read_text("/proc/self/status")
    with pytest.raises(OSError, match="MB are read"):
        read_bytes("/proc/self/status", 10)


def other_things(folder: Path) -> list[Path]:
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    place = folder / "socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(place))
    return [pipe, place, Path("/dev/zero"), folder]


def test_what_is_no_file_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets are short
    for other in other_things(Path()):
        with pytest.raises(OSError, match=r".") as error:
            read_bytes(other)
        assert error.value.strerror
        with pytest.raises(OSError, match="not a file"):
            check(other)
    with pytest.raises(FileNotFoundError):
        read_bytes("none")


COMMANDS = (
    "compare gpt-oss-20b-decode --layer 0 --scheme deepep --placement file:{}.json",
    "run --spec {}.toml",
    "run --spec {}.json",
    "run gpt-oss-20b-decode --scheme {}.py:Mine",
    "run gpt-oss-20b-decode --scheme deepep --system {}.toml",
    "run {}.h5 --scheme deepep",
    "sweep {}.toml --dry-run",
    "place gpt-oss-20b-decode --algorithm file --from {}.json",
    "trace generate zipf --model {}.toml --out out.h5",
    "trace generate histogram --model olmoe-1b-7b --option load={}.json --out out.h5",
    "trace generate latent --model olmoe-1b-7b --option parameters={}.toml --out out.h5",
    "trace info {}.h5",
    "trace import {}.npy --format vllm --model olmoe-1b-7b --out out.h5",
    "trace import {}.npz --format vllm --model olmoe-1b-7b --out out.h5",
    "trace import {}.safetensors --format sglang --model olmoe-1b-7b --out out.h5",
    "trace import {}.jsonl --format gpt-oss --model olmoe-1b-7b --out out.h5",
    "trace import {}.json.gz --format rollout --model olmoe-1b-7b --out out.h5",
    "trace import {}.csv --format llama.cpp --model olmoe-1b-7b --out out.h5",
    "trace recover {}.partial",
)
"""Every place of a command line where a file is read, with a suffix that its reader takes."""

SCRIPT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from replay.cli import main
for line in sys.stdin:
    try:
        main(line.split())
    except SystemExit as left:
        print(left.code, line)
    except BaseException as error:
        print(repr(error), line)
"""


@pytest.mark.extended
def test_no_command_reads_without_end(tmp_path: Path) -> None:
    lines = []
    for command in COMMANDS:
        suffix = command.split("{}")[1].split()[0].split(":")[0]
        endless, pipe = tmp_path / f"endless{suffix}", tmp_path / f"pipe{suffix}"
        if not endless.is_symlink():
            endless.symlink_to("/dev/zero")
            os.mkfifo(pipe)
        lines += [command.format(tmp_path / name) for name in ("endless", "pipe")]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input="\n".join(lines),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if line.strip()]
    assert len(said) == len(lines), done.stderr
    assert all(line.startswith("2 ") for line in said), (said, done.stderr)


@every(
    ("text", "reason"),
    [
        ("a = " + "[" * 5000 + "]" * 5000, "levels"),
        ("a = " + "[" * 40 + "]" * 40, "levels"),
        ("a" + ".a" * 3000 + " = 1", "levels"),
        ("a = " + "9" * 5000, "digits"),
        ("a = [{ b = 9223372036854775808 }]", "more than 64 bits"),
        ("a = ", "nvalid value"),
    ],
    ids=["lists", "some lists", "tables", "digits", "bits", "nothing"],
)
def test_toml_that_no_reader_survives_is_no_toml(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        regular.parse_toml(text)
    deepest = "[" * (regular.DEEPEST - 1) + "]" * (regular.DEEPEST - 1)
    assert regular.parse_toml(f"a = {deepest}\nb = 1")["b"] == 1


def test_json_of_half_a_character_is_no_json() -> None:
    assert regular.parse_json(r'{"\ud83d\ude00": "\\ud800"}') == {"\U0001f600": r"\ud800"}
    for text in (r'{"\ud800": 1}', rb'["\uDE00"]', r'["\ude00\ud83d"]'):
        with pytest.raises(ValueError, match="surrogates not allowed"):
            regular.parse_json(text)


def test_a_name_that_none_can_have_is_not_there(tmp_path: Path) -> None:
    for name in ("n" * 300, "a\0b", "absent"):
        assert not regular.exists(tmp_path / name)
        assert not regular.is_file(tmp_path / name)
    assert regular.exists(tmp_path) and not regular.is_file(tmp_path)


def test_one_text_of_a_document_has_an_end() -> None:
    long = "T" * (regular.LONGEST_TEXT + 1)
    for parse, text in (
        (regular.parse_toml, f'[a]\nb = ["{long}"]'),
        (regular.parse_json, f'{{"a": [{{"b": "{long}"}}]}}'),
        (regular.parse_json, f'{{"{long}": 1}}'),
    ):
        with pytest.raises(ValueError, match="a text of 65,537 characters; at most 65,536 are"):
            parse(text)
    assert regular.parse_json(f'"{long[1:]}"') == long[1:]
    assert regular.parse_json(f'"{long}"', has_long_texts=True) == long
