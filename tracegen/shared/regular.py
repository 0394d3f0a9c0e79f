"""Files that are read whole: regular ones, of a stated greatest size; imports our error alone.

A device has no end and a pipe may never begin, so that reading "the whole file" would take all
memory or for ever. What is wrong is raised as `OSError`, whose `strerror` says it, so that callers
name the file and what it was to be as for any file that cannot be read.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from tracegen.shared.errors import UserError

MOST_TEXT_BYTES = 64_000_000
"""Of settings, studies, systems, models, maps and prompts: a thousand times what people write."""

DEEPEST = 32
"""Levels of tables and lists in settings, many more than people write."""

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escape of half of a character beyond 16 bits."""

LONGEST_TEXT = 65_536
"""Characters of one text in a document: a title of megabytes fills every page that shows it."""

UNKNOWN = 2**20
"""Bytes that are read of a file that does not say how many it has."""


def read_bytes(path: str | Path, most: int = MOST_TEXT_BYTES) -> bytes:
    """Read a whole file.

    Parameters
    ----------
    path
        Of the file.
    most
        Bytes that it may have.

    Raises
    ------
    OSError
        If it cannot be read, is no regular file or has more bytes; `strerror` says which.
    """
    with _name_of(path), open(path, "rb", opener=_without_waiting) as file:  # Path has no opener
        return read_open(file, path, most)


def read_open(file: BinaryIO, path: str | Path, most: int) -> bytes:
    """Read a whole file that is open; its path is for errors, which are those of `read_bytes`."""
    found = os.fstat(file.fileno())
    _refuse_others(found, path)
    # Room is made for all that is asked for. What /proc has, has size 0.
    some = min(max(found.st_size, UNKNOWN), most) + 1
    content = b"" if found.st_size > most else file.read(some)
    if found.st_size > most or len(content) > most:
        size = max(found.st_size, len(content)) / 1e6
        message = f"it has {size:,.0f} MB; at most {most / 1e6:,.0f} MB are read"
        raise OSError(errno.EFBIG, message, str(path))
    return content


def read_text(path: str | Path, most: int = MOST_TEXT_BYTES, *, encoding: str = "utf-8") -> str:
    """Read a whole text file; parameters and errors as those of `read_bytes`.

    Raises
    ------
    UnicodeDecodeError
        If it is not text.
    """
    # Lines end as `Path.read_text` has them.
    text = read_bytes(path, most).decode(encoding)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_input(path: str | Path, what: str, most: int = MOST_TEXT_BYTES, *, encoding: str = "utf-8") -> str:
    """Read a text file that a user named; parameters as those of `read_text`.

    Parameters
    ----------
    what
        Words for it, such as "the study".

    Raises
    ------
    UserError
        If it cannot be read, with its name and the reason.
    """
    try:
        return read_text(path, most, encoding=encoding)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        message = f"cannot read {what} {path}: {reason}"
        raise UserError(message) from None


def parse_toml(text: str) -> dict[str, Any]:
    """Read the text of a TOML file.

    Parameters
    ----------
    text
        Of the file.

    Raises
    ------
    ValueError
        If it is no TOML, has a whole number of more than 64 bits, which TOML asks nobody to read,
        a text of more than :data:`LONGEST_TEXT` characters, or tables and lists in each other at
        more than :data:`DEEPEST` levels, which whoever walks through them might not survive.
    """
    problem = f"tables or lists in more than {DEEPEST} levels"
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(problem) from None
    level: list[Any] = [document]
    for _ in range(DEEPEST):
        inner = [one for at in level for one in (at.values() if isinstance(at, dict) else at)]
        for one in inner:
            if isinstance(one, int) and not -(2**63) <= one < 2**63:
                raise ValueError(f"{str(one)[:20]}... is a number of more than 64 bits")
            _refuse_long(one)
        level = [one for one in inner if isinstance(one, dict | list)]
    if level:
        raise ValueError(problem)
    return document


def parse_json(text: str | bytes, *, has_long_texts: bool = False) -> Any:
    """Read a JSON document.

    Parameters
    ----------
    text
        Of the file.
    has_long_texts
        Whether it may have texts of more than :data:`LONGEST_TEXT` characters, as prompts are.

    Raises
    ------
    ValueError
        If it is no JSON, has a number of thousands of digits, half of a character, which could be
        printed and written nowhere, a text that is too long, or more lists and objects in each
        other than can be read.
    """
    try:
        document = json.loads(text)
        if _HALF.search(text if isinstance(text, bytes) else text.encode()):
            json.dumps(document, ensure_ascii=False).encode()  # the other half may be beside it
    except RecursionError:
        message = "lists or objects in too many levels"
        raise ValueError(message) from None
    if len(text) > LONGEST_TEXT and not has_long_texts:
        todo = [document]
        while todo:
            one = todo.pop()
            if isinstance(one, dict):
                todo += [*one.keys(), *one.values()]
            elif isinstance(one, list):
                todo += one
            else:
                _refuse_long(one)
    return document


def _refuse_long(value: object) -> None:
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        message = f"a text of {len(value):,} characters; at most {LONGEST_TEXT:,} are read"
        raise ValueError(message)


def is_file(path: str | Path) -> bool:
    """Tell whether there is a regular file of a name, be it one that none can have.

    Parameters
    ----------
    path
        Of the file.
    """
    return not why_no_file(path)


def why_no_file(path: str | Path) -> str:
    """Say why a name is not that of a regular file; empty if it is.

    Parameters
    ----------
    path
        Of the file.
    """
    if not exists(path):
        return "no such file"
    try:
        check(path)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def is_folder(path: str | Path) -> bool:
    """Tell whether there is a folder of a name, be it one that none can have.

    Parameters
    ----------
    path
        Of the folder.
    """
    return exists(path) and Path(path).is_dir()


def exists(path: str | Path) -> bool:
    """Tell whether there is something of a name, be it one that nothing can have.

    Parameters
    ----------
    path
        The name; one that is too long counts as not there.
    """
    try:
        Path(path).stat()
    except (OSError, ValueError):
        return False
    return True


def check(path: str | Path) -> None:
    """Refuse what is no regular file, before others open it.

    Raises
    ------
    OSError
        If it is not there, or something else.
    """
    with _name_of(path):
        _refuse_others(Path(path).stat(), path)


def expand_home(path: str | Path) -> Path:
    """Put the home folder in the place of a ``~`` or ``~user`` that a path begins with.

    Raises
    ------
    UserError
        If there is no such home folder, or no file can have such a name.
    """
    try:
        if b"\0" in os.fsencode(path):
            raise ValueError
        return Path(path).expanduser()
    except ValueError:
        message = f"{str(path)!a}: no file can have this name"
        raise UserError(message) from None
    except RuntimeError:
        who = str(path).partition("/")[0]
        whose = "set HOME" if who == "~" else f"nobody is called {who[1:]!r}"
        message = f"{path}: there is no such home folder ({whose})"
        raise UserError(message) from None


def real(path: str | Path) -> Path:
    """Give a path from the root without links; of links in a circle, one of them.

    Parameters
    ----------
    path
        Of a file that need not exist.
    """
    return Path(os.path.realpath(path))


@contextlib.contextmanager
def _name_of(path: str | Path) -> Iterator[None]:
    """Raise as `OSError` that a name has a character that names cannot have."""
    try:
        yield
    except ValueError as error:
        message = "it is no name of a file: it has a NUL, or what is no character"
        raise OSError(errno.EINVAL, message, ascii(str(path))) from error


def _refuse_others(found: os.stat_result, path: str | Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        what = "folder" if stat.S_ISDIR(found.st_mode) else "device, pipe or socket"
        raise OSError(errno.EINVAL, f"it is a {what}, not a file", str(path))


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; without this flag, opening a pipe waits until somebody writes into it."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
