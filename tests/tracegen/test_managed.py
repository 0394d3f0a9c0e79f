"""Nothing in a folder that a program manages is followed, overwritten elsewhere or waited for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tracegen.shared.errors import UserError
from tracegen.shared.managed_folder import ManagedFolder

InPlaceOf = Callable[[Path, Path], Iterator[str]]

USES: dict[str, Callable[[ManagedFolder], object]] = {
    "check": lambda folder: folder.check("a"),
    "read": lambda folder: folder.read_text("a"),
    "write": lambda folder: folder.write_text("a", "new"),
    "keep": lambda folder: folder.editor("a").__enter__(),
    "rename": lambda folder: folder.rename("b", "a"),
    "rename from": lambda folder: folder.rename("a", "c"),
}


def test_a_file_is_a_regular_one_or_refused(tmp_path: Path, in_place_of: InPlaceOf) -> None:
    folder = ManagedFolder(tmp_path / "of", "inner")
    with folder.present():
        folder.write_text("b", "other")
    for name in in_place_of(folder.path / "a", tmp_path / "elsewhere" / "victim"):
        for use, do in USES.items():
            with pytest.raises(UserError, match=r"a is a .*, not a file; remove it"):
                do(folder)
            assert folder.names() == ["a", "b"], (name, use)
        folder.remove("a")
        os.mkfifo(folder.path / "a")  # `in_place_of` removes what is there
    (folder.path / "a").mkdir()
    for use, do in USES.items():
        with pytest.raises(UserError, match=r"a is a folder, not a file"):
            do(folder)
        assert folder.names() == ["a", "b"], use


def test_a_folder_in_it_is_no_link(tmp_path: Path, in_place_of: InPlaceOf) -> None:
    folder = ManagedFolder(tmp_path / "of", "inner", "most")
    uses = USES | {
        "make": lambda folder: folder.present().__enter__(),
        "list": lambda folder: folder.names(),
        "create": lambda folder: folder.create("d", "new"),
        "remove": lambda folder: folder.remove("victim"),
    }
    for place in (folder.path, folder.path.parent):
        for name in in_place_of(place, tmp_path / "elsewhere" / "victim"):
            for use, do in uses.items():
                with pytest.raises(UserError, match=rf"{place.name} is a .*, not a folder"):
                    do(folder)
                assert place.is_symlink() or not place.is_dir(), (name, use)


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to("disk")
    folder = ManagedFolder(tmp_path / "link", "inner")
    with folder.present():
        folder.write_text("a", "new")
    assert (tmp_path / "disk/inner/a").read_text() == folder.read_text("a") == "new"


def test_a_file_with_another_name_is_replaced_but_not_written_in(tmp_path: Path) -> None:
    folder, victim = ManagedFolder(tmp_path / "of"), tmp_path / "victim"
    folder.path.mkdir()
    victim.write_text("old")
    (folder.path / "a").hardlink_to(victim)
    with pytest.raises(UserError, match="has another name too"), folder.editor("a"):
        pass
    folder.write_text("a", "new")
    assert victim.read_text() == "old" and folder.read_text("a") == "new"


def test_what_is_not_there_is_not_there(tmp_path: Path) -> None:
    for folder in (ManagedFolder(tmp_path / "no", "inner"), ManagedFolder(tmp_path)):
        assert not folder.check("a") and folder.names() == []
        folder.remove("a")
        with pytest.raises(FileNotFoundError):
            folder.read_bytes("a")


def test_a_writing_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ManagedFolder(tmp_path)
    folder.write_text("a", "old")
    (tmp_path / "a").chmod(0o640)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(UserError, match=r"cannot write .*a: No space left on device"):
            folder.write_text("a", "new")
    assert folder.names() == ["a"] and folder.read_text("a") == "old"
    folder.write_text("a", "new")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("name", ["a\0b", "\ud800", "n" * 300])
def test_a_name_that_none_can_have_is_one_line(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"cannot write|too long|no file can have this name"):
        ManagedFolder(tmp_path).write_text(name, "new")
