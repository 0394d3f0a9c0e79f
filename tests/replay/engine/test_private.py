"""Folders and files that nobody but this user can change, and kernels out of others."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import llvmlite.binding as llvm  # type: ignore[import-untyped]
import pytest

from replay.engine import compilation
from replay.engine.backend import folder as place
from replay.engine.backend import private, quick

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not hasattr(os, "getuid"), reason="there are no user ids")
by_root = pytest.mark.skipif(getattr(os, "getuid", lambda: -1)() != 0, reason="only root can make files of others")
VICTIM, ATTACKER = 65534, 12345


def refusal(call: Callable[[Path], object], path: Path) -> str:
    """Why a folder is left aside; nothing if it is not."""
    try:
        call(path)
    except OSError as error:
        return str(error) or type(error).__name__
    return ""


def test_what_is_missing_is_made_for_this_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        made = private.make_way(tmp_path / "a" / "b" / ".." / "c")
    finally:
        os.umask(before)
    assert made == tmp_path / "a" / "c" and made.is_dir()
    assert {path.stat().st_mode & 0o777 for path in (made, made.parent)} == {0o700}


def test_a_way_that_others_can_change_is_refused(tmp_path: Path) -> None:
    way = tmp_path / "shared" / "mine"
    way.mkdir(parents=True, mode=0o700)
    wrong = []
    for mode, says in ((0o755, ""), (0o777, "others can write"), (0o775, "others"), (0o1777, "")):
        way.parent.chmod(mode)
        if says not in (said := refusal(private.make_way, way)) or bool(says) != bool(said):
            wrong.append((oct(mode), said))
    assert not wrong
    assert "others can write" in refusal(private.make_own, way.parent), "it is sticky, and shared"


def test_links_lead_on_the_way_and_are_no_folder_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("there")
    (tmp_path / "absolute").symlink_to(tmp_path / "link" / "..")
    (tmp_path / "round").symlink_to("round")
    assert private.make_way(tmp_path / "absolute" / "link") == tmp_path / "there"
    assert "Not a directory" in refusal(private.make_own, tmp_path / "link")
    assert "levels of symbolic links" in refusal(private.make_way, tmp_path / "round")


@by_root
def test_what_belongs_to_others_is_refused(tmp_path: Path) -> None:
    for name, call in (("folder", private.make_way), ("folder", private.make_own)):
        path = tmp_path / name
        path.mkdir(exist_ok=True)
        os.chown(path, ATTACKER, ATTACKER)
        assert "belongs to another user" in refusal(call, path)
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to("there")
    os.chown(link, ATTACKER, ATTACKER, follow_symlinks=False)
    assert "link belongs to another user" in refusal(private.make_way, link)


def test_only_files_of_this_user_alone_are_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    private.write_new(path, b"mine")
    assert path.stat().st_mode & 0o777 == 0o600 and private.read(path) == b"mine"
    with pytest.raises(FileExistsError):
        private.write_new(path, b"again")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("link", "pipe", "folder", "nothing"):
        assert private.read(tmp_path / name) is None, name
    for mode in (0o620, 0o602):
        path.chmod(mode)
        assert private.read(path) is None, oct(mode)
    if os.getuid() == 0:
        path.chmod(0o600)
        os.chown(path, ATTACKER, ATTACKER)
        assert private.read(path) is None


def test_a_folder_that_is_left_aside_is_told_in_a_line_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(compilation, "_told", [])
    compilation.when_left_aside(said.append)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(shared))
    for _ in range(2):
        folder = place.cache_folder.__wrapped__()
        assert folder is None or shared not in folder.parents
    assert len(said) == 1 and said[0].count("\n") == 0
    assert f"others can write to {shared}" in said[0]
    shared.chmod(0o700)
    folder = place.cache_folder.__wrapped__()
    assert folder is not None and folder.parent == shared


def test_beside_the_source_it_is_told_where_it_costs_a_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python makes ``__pycache__`` writable for the group under a umask of 002."""
    said: list[str] = []
    monkeypatch.setattr(compilation, "_told", [])
    compilation.when_left_aside(said.append)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__").chmod(0o775)
    monkeypatch.setattr(place, "_SOURCES", tmp_path)
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    folder = place.cache_folder.__wrapped__()
    assert folder is not None and folder.is_relative_to(tmp_path / "own")
    assert not said, "nothing was compiled yet"
    for _ in range(2):
        place.tell_of_others()
    assert len(said) == 1 and f"others can write to {tmp_path}" in said[0]
    assert str(folder) in said[0]


# ---- what others have planted, with user ids that are theirs -------------------------------------

#: Compiles one small kernel as somebody else, in a process that is all but that user's.
AS_VICTIM = """
import os, sys
import numpy as np
from replay.engine import compilation
import replay.engine.kernels.edges as kernels
os.setgroups([]); os.setgid({user}); os.setuid({user})
compilation.when_compiling(lambda: print("compiled"))
compilation.when_left_aside(print)
kernels.group_rows(np.array([1, 0, 1], np.int32), 2)
"""


def planted(command: str) -> bytes:
    """Machine code that carries a command out where a kernel should be."""
    text = f"""
        @command = internal constant [{len(command) + 1} x i8] c"{command}\\00"
        declare i32 @system(i64)
        define i64 @_group_rows(i64 %memory) {{
            %code = call i32 @system(i64 ptrtoint ([{len(command) + 1} x i8]* @command to i64))
            ret i64 0
        }}
    """
    if llvm.llvm_version_info[0] >= 17:
        text = text.replace(f"[{len(command) + 1} x i8]*", "ptr")
    return bytes(quick.target_machine().emit_object(llvm.parse_assembly(text)))


@by_root
@pytest.mark.extended
@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_planted_kernels_are_not_executed(ground: Path) -> None:
    ground.chmod(0o1777)
    mark = ground / "executed"
    data = planted(f"touch {mark}")
    evil = hashlib.sha256(data).digest() + data

    def victim(place: Path, name: str = "NUMBA_CACHE_DIR") -> str:
        mark.unlink(missing_ok=True)
        scratch = own(Path(tempfile.mkdtemp(dir=ground)), VICTIM)  # with no kernels in it
        done = subprocess.run(
            [sys.executable, "-c", AS_VICTIM.format(user=VICTIM)],
            cwd=ground,
            check=False,
            capture_output=True,
            text=True,
            timeout=120,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "HOME": "/nonexistent",
                "TMPDIR": str(scratch),
                name: str(place),
            },
        )
        return done.stdout + done.stderr + ("EXECUTED" if mark.exists() else "")

    def own(path: Path, user: int, mode: int = 0o700) -> Path:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.chown(path, user, user)
        path.chmod(mode)
        return path

    def plant(folder: Path, user: int, mode: int) -> None:
        for path in list(folder.rglob("*.o")):
            path.unlink()
            path.write_bytes(evil)
            os.chown(path, user, user)
            path.chmod(mode)

    # A cache that is the victim's alone is used; whoever can write there can do everything.
    mine = own(ground / "mine", VICTIM)
    assert victim(mine) == "compiled\n"
    assert victim(mine) == ""
    plant(mine, VICTIM, 0o600)
    assert "EXECUTED" in victim(mine), "the test plants what is executed"

    (kernels,) = mine.iterdir()
    wrong = []

    def check(what: str, said: str, *, is_told: bool) -> None:
        if "EXECUTED" in said or "compiled\n" not in said or ("not kept" in said) != is_told:
            wrong.append((what, said))

    plant(mine, ATTACKER, 0o644)
    check("a file of another user", victim(mine), is_told=False)
    plant(mine, VICTIM, 0o666)
    check("a file that others can write", victim(mine), is_told=False)
    plant(mine, VICTIM, 0o600)
    kernels.chmod(0o777)
    check("kernels that others can write to", victim(mine), is_told=True)
    kernels.chmod(0o700)
    os.chown(kernels, ATTACKER, ATTACKER)
    kernels.chmod(0o755)
    check("kernels of another user", victim(mine), is_told=True)
    os.chown(kernels, VICTIM, VICTIM)
    kernels.chmod(0o700)
    mine.chmod(0o777)
    check("a folder that others can write to", victim(mine), is_told=True)
    mine.chmod(0o700)
    link = ground / "link"
    link.symlink_to(mine)
    os.chown(link, ATTACKER, ATTACKER, follow_symlinks=False)
    check("a link of another user", victim(link), is_told=True)
    (ground / ".numba_config.yaml").write_text(f"cache_dir: {mine}\n")
    check("settings in the current folder", victim(mine, "OTHER"), is_told=False)
    own(ground / "tmp", 0, 0o1777)
    kernels.rename(own(ground / "tmp" / f"moereplay-{VICTIM}", ATTACKER, 0o755) / kernels.name)
    check("a temporary folder", victim(ground / "tmp", "TMPDIR"), is_told=True)
    assert not wrong
