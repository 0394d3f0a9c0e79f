"""Files are whole or not there; what is no file is written to and stays what it is."""

from __future__ import annotations

import gzip
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import tracegen
from tracegen.shared.errors import UserError
from tracegen.shared.output import (
    check,
    check_folder,
    draft_of,
    is_stdout,
    open_new,
    replaces,
    write_text,
)

FULL = os.makedev(1, 7)
"""The device that has no room, as Linux numbers it."""


def by_draft(path: str | Path, text: str) -> None:
    with draft_of(path) as draft:
        draft.write_text(text, "utf-8")


WAYS = pytest.mark.parametrize("write", [write_text, by_draft])
Way = Callable[[Path, str], None]


# ---- files -------------------------------------------------------------------------------------


@WAYS
def test_a_file_is_written_whole_and_replaces_the_old_one(tmp_path: Path, write: Way) -> None:
    path = tmp_path / "out.json"
    write(path, "old")
    first = path.stat()
    write(path, "new\n")
    assert path.read_bytes() == b"new\n"
    assert path.stat().st_ino != first.st_ino, "nobody who has opened it sees it change"
    assert list(tmp_path.iterdir()) == [path], "nothing left beside it"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(first.st_mode) == 0o666 & ~umask


@WAYS
def test_a_replaced_file_keeps_its_mode_while_it_is_written_too(tmp_path: Path, write: Way) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    path.chmod(0o600)
    with open_new(path) as file:
        file.write(b"secret")
        (aside,) = set(tmp_path.iterdir()) - {path}
        assert stat.S_IMODE(aside.stat().st_mode) == 0o600
    path.chmod(0o640)
    write(path, "new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@WAYS
def test_links_stay_links(tmp_path: Path, write: Way) -> None:
    (tmp_path / "deep").mkdir()
    link, real = tmp_path / "latest.json", tmp_path / "deep/real.json"
    link.symlink_to("deep/between.json")
    (tmp_path / "deep/between.json").symlink_to("real.json")
    for text in ("made", "replaced"):
        check(link)
        write(link, text)
        assert link.is_symlink() and not real.is_symlink()
        assert real.read_text() == link.read_text() == text
    assert len([*(tmp_path / "deep").iterdir()]) == 2


def test_the_longest_name_of_all_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 127 + "n")
    write_text(path, "x")
    assert path.read_text() == "x"


def test_the_same_content_is_compressed_to_the_same_bytes(tmp_path: Path) -> None:
    write_text(tmp_path / "a.gz", "some\n" * 9)
    write_text(tmp_path / "b.gz", "some\n" * 9)
    assert gzip.decompress((tmp_path / "a.gz").read_bytes()) == b"some\n" * 9
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "b.gz").read_bytes()


def test_interrupted_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    for way in (open_new, draft_of):
        with pytest.raises(KeyboardInterrupt), way(path):
            raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


# ---- what is no file ---------------------------------------------------------------------------


@WAYS
@pytest.mark.parametrize("is_linked", [False, True])
def test_a_pipe_with_a_name_is_written_to_and_stays(tmp_path: Path, write: Way, is_linked: bool) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    name = pipe
    if is_linked:
        name = tmp_path / "link"
        name.symlink_to(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    check(name)
    assert not replaces(name)
    write(name, "through")
    reader.join(5)
    assert read == ["through"] and pipe.is_fifo()


@WAYS
def test_a_device_is_written_to_and_stays(tmp_path: Path, write: Way) -> None:
    # Never the real one: a mistake would replace it for the whole machine.
    device = tmp_path / "full"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, FULL)
        device.open("wb").close()
    except PermissionError:
        pytest.skip("only root makes devices, and not everywhere")
    check(device)
    with pytest.raises(UserError, match=r"cannot write .*full: No space left on device"):
        write(device, "x")
    assert device.is_char_device()
    assert list(tmp_path.iterdir()) == [device]


def written_by_a_process(name: str, output: int | None) -> str:
    """What a process prints that prints, writes to a file of this name, and prints again."""
    code = (
        "import sys; from tracegen.shared.output import write_text, is_stdout\n"
        "print('before'); write_text(sys.argv[1], 'content\\n'); print(is_stdout(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, name],
        stdout=output or subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    )
    assert not done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1"])
def test_standard_output_is_written_to_in_turn(tmp_path: Path, name: str) -> None:
    said = "before\ncontent\nTrue\n"
    assert written_by_a_process(name, None) == said
    path = tmp_path / "redirected"
    with path.open("w") as file:
        file.write("was here\n")
        file.flush()
        written_by_a_process(name, file.fileno())
    assert path.read_text() == "was here\n" + said
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_that_output_goes_to_is_not_replaced_under_it(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    with path.open("w") as file:
        written_by_a_process(str(path), file.fileno())
    assert path.read_text() == "before\ncontent\nTrue\n"


def test_an_open_pipe_of_a_shell_is_written_to(tmp_path: Path) -> None:
    read, write = os.pipe()
    try:
        assert not is_stdout(f"/dev/fd/{write}")
        check(f"/dev/fd/{write}")
        write_text(f"/dev/fd/{write}", "to another")
        assert os.read(read, 99) == b"to another"
        with pytest.raises(UserError, match="Bad file descriptor"):
            check(f"/dev/fd/{read}")
    finally:
        os.close(read)
        os.close(write)


# ---- before the work ---------------------------------------------------------------------------


def test_a_target_is_refused_before_the_work(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "socket"))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "mine").touch(0o400)
    (tmp_path / "loop").symlink_to("loop")
    present = {*tmp_path.iterdir()}
    refused = {
        "folder": "it is a folder",
        "new/": "it is a folder",
        "socket": "it is a socket",
        "nowhere/out.json": "there is no folder .*nowhere",
        "file/out.json": "Not a directory",
        "n" * 300: "File name too long",
        "loop": "Too many levels of symbolic links",
    }
    if os.geteuid():  # root may write everything
        refused["mine"] = "it is read-only"
    for name, reason in refused.items():
        with pytest.raises(UserError, match=f"cannot write .*{reason}"):
            check(f"{tmp_path}/{name}")
        with pytest.raises(UserError, match="cannot write"):
            write_text(f"{tmp_path}/{name}", "x")
    with pytest.raises(UserError, match="empty name"):
        check("")
    check(tmp_path / "new.json")
    check(tmp_path / "file")
    assert {*tmp_path.iterdir()} == present


def test_a_folder_is_refused_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "lost").symlink_to("nowhere")
    for name, reason in {
        "file": "file is no folder",
        "file/in": "Not a directory",
        "lost/in": "lost is no folder",
        "n" * 300: "File name too long",
    }.items():
        with pytest.raises(UserError, match=f"cannot write .*{reason}"):
            check_folder(tmp_path / name)
    check_folder(tmp_path)
    check_folder(tmp_path / "some/where")
    assert len([*tmp_path.iterdir()]) == 2


# ---- a full disk -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["toy-zipf", "gpt-oss-20b-decode"])
def test_room_is_asked_for_that_the_file_fits_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    trace = tracegen.load(name, tokens=slice(0, 999))
    rooms = []
    keep_room = os.posix_fallocate

    def keep(file: int, start: int, room: int) -> None:
        rooms.append(room)
        keep_room(file, start, room)

    monkeypatch.setattr(os, "posix_fallocate", keep)
    tracegen.write(trace, tmp_path / "t.h5")
    monkeypatch.delattr(os, "posix_fallocate")  # as elsewhere
    tracegen.write(trace, tmp_path / "u.h5")
    taken = (tmp_path / "t.h5").stat().st_size
    assert taken == (tmp_path / "u.h5").stat().st_size, "what was not needed is given back"
    assert len(rooms) == 2 and len({*rooms}) == 1, "before HDF5 opens the file, and after"
    plain = trace.expert_ids.nbytes + sum(column.nbytes for column in vars(trace.tokens).values() if column is not None)
    assert max(taken, plain) < rooms[0] < 2 * plain + 200_000


def limited(limit: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command where no file can have more bytes, which ends as on a full disk."""

    def limit_files() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    return subprocess.run(
        [sys.executable, "-m", "replay.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit_files,
    )


@pytest.mark.extended
@pytest.mark.parametrize("limit", [0, 100_000])
def test_a_trace_on_a_full_disk_is_one_line_and_nothing_is_left(tmp_path: Path, limit: int) -> None:
    out = tmp_path / "t.h5"
    size = ("--tokens-per-rank", 256, "--layers", 4)
    done = limited(
        limit,
        "trace",
        "generate",
        "zipf",
        "--model",
        "olmoe-1b-7b",
        *size,
        "--skew",
        1,
        "--out",
        out,
    )
    assert done.returncode == 2
    assert re.fullmatch(r"error: cannot write .*t\.h5: File too large.*\n", done.stderr)
    assert not list(tmp_path.iterdir())
