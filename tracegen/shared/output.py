"""Files that are written: the one way of the whole product; imports nothing of it but its error.

What is a regular file, or not there yet, is written beside its place and renamed: it is complete
or not there at all, and what was there stays until then. A link stays a link, to the new content;
a file that is replaced keeps its mode and owner. What is no file (a device, a pipe, ``/dev/stdout``
or what a shell puts for ``>(...)``) is written to as it is, for there is nothing to replace.
``-`` is standard output. Longer than most modules, since there is to be no second way.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, cast

from tracegen.shared.errors import UserError

STDOUT = "-"
"""Name of standard output where a file is asked for."""

_GZIP_LEVEL = 6
"""The last percent of compression would take gzip most of its time."""

_LINKS = 40
"""Links in a row that Linux follows."""


def check(path: str | Path) -> None:
    """Refuse a file that could not be written, before the work that fills it.

    Parameters
    ----------
    path
        Of the file, which is left as it is.

    Raises
    ------
    UserError
        If it is a folder, a socket, or may not be written, or no file can be made in its folder.
    """
    with failures(path):
        number = _descriptor(path)
        if number is not None:
            os.write(number, b"")  # fails if it is closed, or only read from
        elif _is_stream(path):
            if not os.access(path, os.W_OK):
                message = f"cannot write {path}: it is read-only"
                raise UserError(message)
        else:
            # Only trying tells: of access, full disks, read-only ones and names that are too long.
            _empty_draft(_target(path)).unlink()


def check_folder(path: str | Path) -> None:
    """Refuse a folder that could not be made or filled, before the work that fills it.

    Parameters
    ----------
    path
        Of the folder, which need not be there, nor the one that it is in.

    Raises
    ------
    UserError
        If something else has its name or is in its way, or no file can be made in it.
    """
    with failures(path):
        if not os.fspath(path):
            message = "cannot write to an empty name"
            raise UserError(message)
        present = Path(path).absolute()
        while not _is_there(present):
            present = present.parent
        if not present.is_dir():
            message = f"cannot write {path}: {present} is no folder"
            raise UserError(message)
        _empty_draft(present / "folder").unlink()


@contextlib.contextmanager
def folder(path: str | Path) -> Iterator[None]:
    """Make a folder and its parents, for files that are written within the context.

    Folders that were made and are empty at the end are removed: a refusal leaves none behind.

    Parameters
    ----------
    path
        Of the folder, which may be there.

    Raises
    ------
    UserError
        If it cannot be made.
    """
    place = Path(path)
    made = []
    with failures(path):
        while not _is_there(place):
            made.append(place)
            place = place.parent
        Path(path).mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for one in made:  # the innermost first; one that holds something stays
            with contextlib.suppress(OSError):
                one.rmdir()


def is_stdout(path: str | Path) -> bool:
    """Tell whether what is written goes where the process prints its tables.

    Parameters
    ----------
    path
        Such as ``-``, ``/dev/stdout``, or the file that standard output was redirected to.
    """
    return _descriptor(path) == 1


def is_stream(path: str | Path) -> bool:
    """Tell whether a name stands for no file: for standard output, a device or a pipe.

    Parameters
    ----------
    path
        The name.

    Raises
    ------
    UserError
        If it cannot be looked at.
    """
    with failures(path):
        return _is_stream(path)


def replaces(path: str | Path) -> bool:
    """Tell whether writing would replace a file that is there.

    Parameters
    ----------
    path
        Of the file.
    """
    return not is_stream(path) and Path(path).exists()


def write_text(path: str | Path, text: str) -> None:
    """Write a whole text file, in UTF-8 and with the line ends that it has.

    Parameters
    ----------
    path
        Of the file.
    text
        All of it.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    with open_new(path) as file:
        file.write(encode(text))


def encode(text: str) -> bytes:
    r"""Text in UTF-8; half a surrogate pair becomes Python's escape of it.

    Parameters
    ----------
    text
        Any; names of files and JSON may hold such halves.

    Examples
    --------
    >>> encode("a\ud800")
    b'a\\ud800'
    """
    return text.encode("utf-8", "backslashreplace")


@contextlib.contextmanager
def open_new(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file to write it, which takes its place only when everything is in it.

    Parameters
    ----------
    path
        Of the file; compressed if its name ends with ``.gz``, without the time of writing, so that
        the same content gives the same bytes.

    Raises
    ------
    UserError
        If it cannot be written.
    """
    with failures(path), contextlib.ExitStack() as stack:
        raw: IO[bytes]
        if _is_stream(path):
            raw = stack.enter_context(_stream(path))
        else:
            raw = stack.enter_context(stack.enter_context(draft_of(path)).open("wb"))
        if Path(path).suffix == ".gz":
            packed = gzip.GzipFile("", "wb", _GZIP_LEVEL, raw, mtime=0)
            raw = cast(IO[bytes], stack.enter_context(packed))
        yield raw


@contextlib.contextmanager
def draft_of(path: str | Path) -> Iterator[Path]:
    """Give the path of an empty file that takes the place of another once it is written.

    This is for libraries that write to a path; others use `open_new`.

    Parameters
    ----------
    path
        Of the file to write; replaced if it exists.

    Yields
    ------
    The path of the draft, beside the target so that the final renaming cannot cross file systems.
    If the caller fails, the draft is removed and the target stays as it was. For a target that is
    no file the draft lies in the folder of temporary files, and is copied when it is complete.

    Raises
    ------
    UserError
        If the draft cannot be written or renamed.
    """
    with failures(path):
        is_stream = _is_stream(path)
        target = Path(tempfile.gettempdir(), "stream") if is_stream else _target(path)
        draft = _empty_draft(target)
        try:
            yield draft
            if is_stream:
                with draft.open("rb") as source, _stream(path) as out:
                    shutil.copyfileobj(source, out)
            else:
                draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)


def set_aside(draft: Path, room: int) -> None:
    """Have the file system keep room for a file, or refuse it while nothing has been written.

    HDF5 does not survive a full disk: what it could not write it tries again when it closes the
    file, and when the process ends, with messages of its own and at last an access to memory that
    it has freed. Nor does a process whose memory is mapped to a file.

    Parameters
    ----------
    draft
        File that is there.
    room
        Bytes.

    Raises
    ------
    OSError
        If there is less room.
    """
    if not hasattr(os, "posix_fallocate"):
        return
    with draft.open("r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, room)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return  # a file system that keeps no room
            text = f"{error.strerror}: up to {room / 1e6:,.1f} MB are written"
            raise OSError(error.errno, text) from error


def _is_there(path: Path) -> bool:
    """Tell whether something has a name, be it a link to nothing; names that none can have raise."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return False
    return True


@contextlib.contextmanager
def failures(path: str | Path, what: str = "write") -> Iterator[None]:
    """Raise what the system refuses as the user's error.

    Parameters
    ----------
    path
        Of the file.
    what
        The verb for what is tried.
    """
    try:
        yield
    except (BrokenPipeError, UserError):
        raise  # nobody reads on, which is no mistake
    except OSError as error:
        name = "standard output" if os.fspath(path) == STDOUT else path
        message = f"cannot {what} {name}: {error.strerror or error}"
        if isinstance(error, PermissionError) and error.filename:
            place = Path(path).parent / os.fsdecode(error.filename)
            message += f" in folder {place.parent}"
        raise UserError(message) from error
    except ValueError as error:
        if _can_be(path):
            raise
        message = f"cannot {what} {str(path)!a}: no file can have this name"
        raise UserError(message) from error


def _can_be(path: str | Path) -> bool:
    """Tell whether a file can have a name."""
    try:
        return b"\0" not in os.fsencode(path)
    except UnicodeError:
        return False


def _target(path: str | Path) -> Path:
    """The file that a rename has to replace, behind all links.

    Raises
    ------
    UserError
        If it is a folder, is read-only, or has no folder.
    """
    if not os.fspath(path):
        message = "cannot write to an empty name"
        raise UserError(message)
    target = Path(os.path.realpath(path))
    if target.is_dir() or os.fspath(path).endswith(os.sep):
        message = f"cannot write {path}: it is a folder"
        raise UserError(message)
    if not target.parent.is_dir():
        message = f"cannot write {path}: there is no folder {target.parent}"
        raise UserError(message)
    if _is_there(target) and not os.access(target, os.W_OK):
        message = f"cannot write {path}: it is read-only"
        raise UserError(message)
    return target


def _empty_draft(target: Path) -> Path:
    """Make an empty file beside another one that it is to replace, for the same readers."""
    before = target.stat() if _is_there(target) else None
    # The target's name may be as long as names can be.
    draft = target.with_name(f".{target.name[:40]}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
    if before is not None:
        with contextlib.suppress(PermissionError):  # only root gives files away
            os.chown(draft, before.st_uid, before.st_gid)
        draft.chmod(mode)
    return draft


def _is_stream(path: str | Path) -> bool:
    """Tell whether bytes are written there one after the other, and nothing is replaced."""
    if _descriptor(path) is not None:
        return True
    try:
        mode = Path(path).stat().st_mode
    except FileNotFoundError:
        return False
    if stat.S_ISSOCK(mode):
        message = f"cannot write {path}: it is a socket"
        raise UserError(message)
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _descriptor(path: str | Path) -> int | None:
    """Number of the open file of this process that a name stands for, such as /dev/stdout."""
    if os.fspath(path) == STDOUT:
        return 1
    place = Path(path)
    for _ in range(_LINKS):
        if place.name.isdecimal() and os.path.realpath(place.parent) == f"/proc/{os.getpid()}/fd":
            return int(place.name)
        if not place.is_symlink():
            break
        place = place.parent / place.readlink()
    with contextlib.suppress(OSError):
        # A file that the shell has opened as our output must not be replaced under its hands.
        found, ours = place.stat(), os.fstat(1)
        if stat.S_ISREG(found.st_mode) and os.path.samestat(found, ours):
            return 1
    return None


def _stream(path: str | Path) -> IO[bytes]:
    """Open what is no file to be replaced."""
    number = _descriptor(path)
    if number is None:
        return open(path, "wb", opener=_existing)  # Path has no opener
    if number == 1:
        sys.stdout.flush()
    return os.fdopen(os.dup(number), "wb")


def _existing(path: str, flags: int) -> int:
    """Open what is there; what has gone meanwhile is not made anew, as a file."""
    return os.open(path, flags & ~(os.O_CREAT | os.O_TRUNC))
