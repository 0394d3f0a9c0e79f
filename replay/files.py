"""Files that are written whole or not at all, and read whole only where they have an end."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from replay.errors import UserError
from tracegen.regular import read_bytes as read_bytes
from tracegen.regular import read_text as read_text


def check_target(path: str | Path) -> None:
    """Refuse a file that could not be written, before the work that fills it.

    Raises
    ------
    UserError
        If its folder does not exist or cannot be written to, or the path is a folder.
    """
    target = Path(path)
    if target.is_dir():
        message = f"cannot write {target}: it is a folder"
        raise UserError(message)
    if not target.parent.is_dir():
        message = f"cannot write {target}: there is no folder {target.parent}"
        raise UserError(message)
    if not os.access(target.parent, os.W_OK):
        message = f"cannot write {target}: folder {target.parent} is read-only"
        raise UserError(message)


def write_text(path: str | Path, text: str) -> None:
    """Write a file beside its place and rename it, so that nobody ever sees half of it.

    Raises
    ------
    UserError
        If the folder does not exist or cannot be written to.
    """
    target = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        message = f"cannot write {target}: {error.strerror} (folder {target.parent})"
        raise UserError(message) from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        # mkstemp makes private files; a result is an ordinary one.
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        message = f"cannot write {target}: {error.strerror}"
        raise UserError(message) from None
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
