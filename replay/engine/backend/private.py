"""Folders and files that nobody but this user can change: compiled kernels lie nowhere else.

The way to a file is checked as `ssh` checks that to its keys. Root is trusted, which can change
everything anyway. Where there are no user ids, as on Windows, what a folder's rights are is left to
who made it.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MOST_LINKS = 40  # on the way to a folder, as Linux has it
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_READ = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


class SharedFolderError(OSError):
    """A folder in which somebody else can change something; the text says why."""


def make_way(folder: Path) -> Path:
    """Go to a folder from the root, by links too, and make what is not there.

    Returns
    -------
    The folder without links.

    Raises
    ------
    SharedFolderError
        If somebody else can change where it leads: who owns a folder or a link on the way, or can
        write to a folder that is not sticky. The last folder may still be sticky.
    OSError
        If it cannot be made.
    """
    here, *way = (Path(part) for part in folder.absolute().parts)
    links = 0
    while way:
        part = way.pop(0)
        if part == Path(".."):
            here = here.parent
            continue
        step = here / part
        if not os.path.lexists(step):
            step.mkdir(mode=0o700)
        status = step.lstat()
        _check_owner(step, status, may_be_root=True)
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(folder))
            target = step.readlink()
            here, way = (
                (here / target.anchor),
                [*map(Path, target.parts[bool(target.anchor) :]), *way],
            )
            continue
        if status.st_mode & OTHERS_WRITE and not status.st_mode & stat.S_ISVTX:
            raise SharedFolderError(f"others can write to {step}")
        here = step
    return here


def make_own(folder: Path) -> None:
    """Make a folder, unless it is there: one of this user, which nobody else can write to.

    Raises
    ------
    SharedFolderError
        If it is somebody else's, or somebody else can write to it.
    OSError
        If it is a link, or cannot be made.
    """
    if not os.path.lexists(folder):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    _check_owner(folder, status, may_be_root=False)
    if hasattr(os, "getuid") and status.st_mode & OTHERS_WRITE:
        raise SharedFolderError(f"others can write to {folder}")


def _check_owner(path: Path, status: os.stat_result, *, may_be_root: bool) -> None:
    if not hasattr(os, "getuid") or status.st_uid == os.getuid():
        return
    if status.st_uid != 0:
        raise SharedFolderError(f"{path} belongs to another user")
    if not may_be_root:
        raise PermissionError(errno.EACCES, "it is root's", str(path))


def read(path: Path) -> bytes | None:
    """Read a file; None if there is none, or it is a link, no file, or not this user's alone."""
    try:
        with os.fdopen(os.open(path, _READ | _BINARY), "rb") as file:
            status = os.fstat(file.fileno())  # of what is open, whatever the name leads to now
            if not stat.S_ISREG(status.st_mode):
                return None
            if hasattr(os, "getuid") and (status.st_uid != os.getuid() or status.st_mode & OTHERS_WRITE):
                return None
            return file.read()
    except OSError:
        return None


def write_new(path: Path, content: bytes) -> None:
    """Write a file that is not there yet, for this user alone.

    Raises
    ------
    OSError
        If it is there, or cannot be written.
    """
    with os.fdopen(os.open(path, _WRITE | _BINARY, 0o600), "wb") as file:
        file.write(content)
