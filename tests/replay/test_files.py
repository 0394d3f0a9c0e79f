"""Files are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from replay.errors import UserError
from replay.files import check_target, write_text


def test_file_is_written_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")
    write_text(path, "new\n")
    assert path.read_bytes() == b"new\n"
    assert list(tmp_path.iterdir()) == [path], "nothing left beside it"
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_unwritable_places_are_named_and_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot write .*No such file or directory"):
        write_text(tmp_path / "nowhere" / "out.json", "x")
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(UserError, match=r"cannot write .*folder"):
        write_text(folder, "x")
    assert list(tmp_path.iterdir()) == [folder]


def test_interrupted_writing_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "out.json"
    path.write_text("old")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_target_is_refused_before_the_work(tmp_path: Path) -> None:
    check_target(tmp_path / "new.json")
    with pytest.raises(UserError, match="it is a folder"):
        check_target(tmp_path)
    with pytest.raises(UserError, match="there is no folder"):
        check_target(tmp_path / "nowhere" / "out.json")
