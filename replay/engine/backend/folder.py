"""The folder of compiled kernels: the first that can be written to and is this user's alone.

It lies in ``NUMBA_CACHE_DIR`` if that is set, else beside the source, else in the user's cache
folder, else in a temporary folder of this user. A compiled kernel is executed, so that it has to be
this user's alone (`private`). Beside the source that is asked of the folder, and not of the way to
it: who can change that can change the source.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from replay.engine.backend import private, sources
from replay.engine.compilation import say

_SOURCES = sources.FOLDER


@cache
def cache_folder() -> Path | None:
    """Folder of the compiled kernels; None if there is none to be had."""
    installation = f"kernels_{hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:16]}"
    shared: list[str] = []
    found = next(filter(None, (_make(one, shared) for one in _candidates(installation))), None)
    if shared:
        place = "every process compiles them again" if found is None else f"they are in {found}"
        _left_aside.append(f"compiled kernels are not kept where {' and where '.join(shared)}: {place}")
    if os.environ.get("NUMBA_CACHE_DIR"):  # its user should know, whatever is read elsewhere
        tell_of_others()
    return found


_left_aside: list[str] = []


def tell_of_others() -> None:
    """Say that a folder was left aside which others can write to, once.

    Beside the source that is common (Python makes ``__pycache__`` with the rights that the user's
    umask gives), and costs nothing but the one compilation that has to be explained.
    """
    while _left_aside:
        say(_left_aside.pop())


def _candidates(installation: str) -> Iterator[tuple[Path, ...]]:
    """The way to each folder that may do, and below it the folders that must be this user's."""
    # Not `numba.config`: that is also read from a file in the current folder.
    given = os.environ.get("NUMBA_CACHE_DIR")
    if given:
        yield Path(given), Path(installation)
    yield _SOURCES, Path("__pycache__")
    users = _users_cache()
    if users is not None:
        yield users, Path("moereplay"), Path(installation)
    scratch = _temporary()
    if scratch is not None:
        owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
        yield scratch, Path(f"moereplay-{owner}"), Path(installation)


def _make(candidate: tuple[Path, ...], shared: list[str]) -> Path | None:
    """The folder, if nobody else can change what lies in it, and this process can."""
    folder, *own = candidate
    try:
        if folder != _SOURCES:
            folder = private.make_way(folder)
        for name in own:
            folder /= name
            private.make_own(folder)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except private.SharedFolderError as error:
        shared.append(str(error))
    except OSError:
        pass
    return None


def _users_cache() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # no home is known
        return None


def _temporary() -> Path | None:
    try:
        found, here = tempfile.gettempdir(), str(Path.cwd())
    except OSError:  # no temporary folder can be written to
        return None
    named = {os.environ.get(name) for name in ("TMPDIR", "TEMP", "TMP")}
    # The current folder, which is Python's last resort, may hold what somebody else has sent.
    is_last_resort = found == here and found not in {
        "/tmp",
        "/var/tmp",
        "/usr/tmp",
        *named,
    }
    return None if is_last_resort else Path(found)
