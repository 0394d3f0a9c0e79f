"""Folders whose files a program names: of a study, of the cache, of tables and of figures.

Such a folder may come from somebody else, who can have put there what leads elsewhere. Nothing in
it is followed: a file is a regular one, a folder in it is no link, and all else is refused before
it is read, written to or waited for. The folder itself is the user's word, and may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, BinaryIO

from tracegen.shared import output, regular
from tracegen.shared.errors import UserError

_HAS_DESCRIPTORS = os.open in os.supports_dir_fd and os.listdir in os.supports_fd  # not on Windows
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # opening a pipe waits for its other end
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)


class ManagedFolder:
    """A folder, and folders in it, that a program fills.

    Parameters
    ----------
    root
        Named by the user.
    inner
        Names of folders, each in the one before, that the program made.
    """

    def __init__(self, root: str | Path, *inner: str) -> None:
        self._root, self._inner = Path(root), inner
        self.path = self._root.joinpath(*inner)
        """Of the folder."""

    def folder(self, *inner: str) -> ManagedFolder:
        """Give a folder in it.

        Parameters
        ----------
        inner
            Names of folders, each in the one before.
        """
        return ManagedFolder(self._root, *self._inner, *inner)

    @contextlib.contextmanager
    def present(self) -> Iterator[None]:
        """Make the folder if it is missing; remove it at the end if it was new and is empty.

        Raises
        ------
        UserError
            If it cannot be made, or something else has its name.
        """
        self.check_place()
        with output.folder(self.path):
            yield

    def check(self, name: str) -> bool:
        """Tell whether a file is there.

        Parameters
        ----------
        name
            Of the file.

        Raises
        ------
        UserError
            If something else has its name.
        """
        return self.stat(name) is not None

    def stat(self, name: str) -> os.stat_result | None:
        """Status of a file by the system; None if there is none.

        Parameters
        ----------
        name
            Of the file.

        Raises
        ------
        UserError
            If something else has its name.
        """
        try:
            with self._open() as at:
                return self._stat(name, at)
        except (FileNotFoundError, NotADirectoryError):  # the folder itself
            return None

    def names(self) -> list[str]:
        """Names of all that is there, sorted; none if the folder is not there."""
        try:
            with self._open() as at:
                return sorted(os.listdir(self.path if at is None else at))  # noqa: PTH208  # Path takes no descriptor
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read_bytes(self, name: str, most: int = regular.MOST_TEXT_BYTES) -> bytes:
        """Read a whole file.

        Parameters
        ----------
        name
            Of the file.
        most
            Bytes that it may have.

        Raises
        ------
        UserError
            If it is no regular file.
        OSError
            If it is not there, cannot be read or has more bytes.
        """
        with self._file(name, os.O_RDONLY) as file:
            return regular.read_open(file, self.path / name, most)

    def read_text(self, name: str, most: int = regular.MOST_TEXT_BYTES) -> str:
        """Read a whole text file, in UTF-8; parameters and errors as those of `read_bytes`.

        Raises
        ------
        UnicodeDecodeError
            If it is not text.
        """
        return self.read_bytes(name, most).decode("utf-8")

    @contextlib.contextmanager
    def draft_of(self, name: str) -> Iterator[Path]:
        """Give the path of an empty file that takes the place of another once it is written.

        Parameters
        ----------
        name
            Of the file to write; replaced if it exists.

        Raises
        ------
        UserError
            If it cannot be written, or something else has its name.
        """
        with output.failures(self.path / name), self._open() as at:
            before = self._stat(name, at)
            draft = f".{name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
            mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            os.close(os.open(self._place(draft, at), flags, mode, dir_fd=at))
            try:
                yield self.path / draft
                old, new = self._place(draft, at), self._place(name, at)
                os.replace(old, new, src_dir_fd=at, dst_dir_fd=at)  # a link would be replaced
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._place(draft, at), dir_fd=at)

    @contextlib.contextmanager
    def writer(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file to write it, which takes its place only when everything is in it.

        Parameters
        ----------
        name
            Of the file.

        Raises
        ------
        UserError
            If it cannot be written, or something else has its name.
        """
        with self.draft_of(name) as draft, draft.open("wb") as file:
            yield file
            file.flush()

    def write_text(self, name: str, text: str) -> None:
        """Write a whole text file, in UTF-8 and with the line ends that it has.

        Parameters
        ----------
        name
            Of the file.
        text
            All of it.

        Raises
        ------
        UserError
            If it cannot be written, or something else has its name.
        """
        with self.writer(name) as file:
            file.write(output.encode(text))

    @contextlib.contextmanager
    def editor(self, name: str) -> Iterator[BinaryIO]:
        """Open a file to read it and to write in it as it is: a lock, part of a download.

        Parameters
        ----------
        name
            Of the file; made, empty, if it is not there.

        Raises
        ------
        UserError
            If something else has its name, or the file has another name too.
        OSError
            If it cannot be opened.
        """
        with self._file(name, os.O_RDWR | os.O_CREAT) as file:
            if os.fstat(file.fileno()).st_nlink > 1:
                message = f"{self.path / name} has another name too (a hard link); {_REMOVE}"
                raise UserError(message)
            yield file

    def create(self, name: str, text: str) -> None:
        """Write a small file that is not there yet.

        Raises
        ------
        OSError
            If it is there, or cannot be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with self._open() as at:
            number = os.open(self._place(name, at), flags, 0o666, dir_fd=at)
            with os.fdopen(number, "wb") as file:
                file.write(output.encode(text))

    def link(self, name: str, other: str) -> None:
        """Give a file another name.

        Parameters
        ----------
        name, other
            The name that it has, and the one that it gets.

        Raises
        ------
        OSError
            If it is not there, the other name is taken, or there are no such links.
        """
        with self._open() as at:
            old, new = self._place(name, at), self._place(other, at)
            os.link(old, new, src_dir_fd=at, dst_dir_fd=at, follow_symlinks=at is None)

    def rename(self, name: str, other: str) -> None:
        """Give a file the place of another, which is replaced if it is there.

        Raises
        ------
        UserError
            If that cannot be, or something else has one of the names.
        """
        with output.failures(self.path / other), self._open() as at:
            for one in (name, other):
                self._stat(one, at)
            old, new = self._place(name, at), self._place(other, at)
            os.replace(old, new, src_dir_fd=at, dst_dir_fd=at)

    def touch(self, name: str) -> None:
        """Set the time of a file to now, by the clock of its file system.

        Raises
        ------
        OSError
            If it is not there, or may not be touched.
        """
        with self._open() as at:
            os.utime(self._place(name, at), dir_fd=at, follow_symlinks=at is None)

    def remove(self, name: str) -> None:
        """Remove a file, or a link, if it is there.

        Raises
        ------
        UserError
            If it cannot be removed.
        """
        with (
            output.failures(self.path / name, "remove"),
            contextlib.suppress(FileNotFoundError),
            self._open() as at,
        ):
            os.unlink(self._place(name, at), dir_fd=at)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int | None]:
        """Descriptor of the folder, which stays the same whatever happens to its path.

        None where the system has no such things.
        """
        if not _HAS_DESCRIPTORS:
            self.check_place()
            yield None
            return
        number = os.open(self._root, _FOLDER)
        try:
            place = self._root
            for name in self._inner:
                place /= name
                try:
                    inside = os.open(name, _FOLDER | _NO_LINK, dir_fd=number)
                except OSError as error:
                    if error.errno not in (errno.ENOTDIR, errno.ELOOP):  # what a link is
                        raise
                    raise _other(place, os.lstat(name, dir_fd=number), "folder") from None
                os.close(number)
                number = inside
            yield number
        finally:
            os.close(number)

    def check_place(self) -> None:
        """Refuse what has the name of the folder, or of one that it is in, and is none.

        Raises
        ------
        UserError
            Saying what is in the way.
        """
        place = self._root
        for name in self._inner:
            place /= name
            try:
                found = os.lstat(place)
            except (FileNotFoundError, NotADirectoryError):
                return  # whoever makes or opens it is told
            except OSError as error:
                message = f"cannot look at {place}: {error.strerror}"
                raise UserError(message) from None
            if not stat.S_ISDIR(found.st_mode):
                raise _other(place, found, "folder")

    def _place(self, name: str, at: int | None) -> str:
        return name if at is not None else str(self.path / name)

    def _stat(self, name: str, at: int | None) -> os.stat_result | None:
        try:
            found = os.lstat(self._place(name, at), dir_fd=at)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise _other(self.path / name, found, "file")
        return found

    @contextlib.contextmanager
    def _file(self, name: str, flags: int) -> Iterator[BinaryIO]:
        """A regular file, opened."""
        with self._open() as at:
            self._stat(name, at)  # for its message; what is opened is asked once more
            number = os.open(self._place(name, at), flags | _NO_LINK | _NO_WAIT, 0o666, dir_fd=at)
        with os.fdopen(number, "rb" if flags == os.O_RDONLY else "r+b") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise _other(self.path / name, found, "file")
            yield file


_REMOVE = "remove it: files here are written in place of others, and nothing is followed"


def _other(path: Path, found: os.stat_result, wanted: str) -> UserError:
    """Error for what is not what its name says."""
    if stat.S_ISLNK(found.st_mode):
        what = "link"
    elif stat.S_ISDIR(found.st_mode):
        what = "folder"
    elif stat.S_ISREG(found.st_mode):
        what = "file"
    else:
        what = "device, pipe or socket"
    return UserError(f"{path} is a {what}, not a {wanted}; {_REMOVE}")
