# mypy: allow-untyped-defs, allow-untyped-calls
"""Cache of compiled kernels: where it lies, when it is fresh, and what happens to damaged files.

Numba's own cache looks at a function's own file only, dies where it cannot write, and unpickles
whatever it finds. This one

- compiles again when any file of this folder has changed, so that kernels may call one another
  across files, and keeps nothing that was compiled while one changed (`sources`);
- lies in ``NUMBA_CACHE_DIR`` if that is set, else beside the source, else in the user's cache
  folder, else in a temporary folder of this user: the first of them that can be written to and
  that is this user's alone, since a cached kernel is unpickled (`private`). Beside the source that
  is asked of the folder, and not of the way to it: who can change that can change the source;
- reads a file only if it is this user's alone, too, and believes it only with its checksum: what is
  damaged is deleted and compiled again;
- has one file per kernel and signature, written whole or not at all, so that processes may compile
  the same at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
import uuid
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from replay.engine.compilation import announce, say
from replay.engine.kernels import private, sources

_SOURCES = sources.FOLDER
_DIGEST_BYTES = hashlib.sha256().digest_size


class KernelCache(FunctionCache):
    """Cache of one kernel, in place of numba's."""

    def __init__(self, function: Any) -> None:
        self._name = repr(function)
        self._py_func = function
        self._impl = _Implementation(function)
        self._cache_path = ""
        self._cache_file: Any = _KernelFile(function.__name__)
        self.enable()

    def load_overload(self, signature: Any, target_context: Any) -> Any:
        """Cached kernel, or None; numba compiles it then.

        Numba's own first loads all that a compilation may need, SciPy among it, which takes longer
        than most replays. Machine code needs none of it, and a compilation loads it for itself.
        """
        found = self._found(signature, target_context)
        if found is None:
            _tell_of_others()
            announce()  # who listens may have it compiled, with all others
            found = self._found(signature, target_context)
        return found

    def _found(self, signature: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target_context)

    def has(self, signature: Any, codegen: Any) -> bool:
        """Tell whether there is a file with this kernel."""
        return bool(self._cache_file.is_there(self._index_key(signature, codegen)))

    def save_overload(self, signature: Any, kernel: Any) -> None:
        """Keep a kernel that was compiled, if it is of the text that its name would say."""
        if sources.digest() != sources.READ:
            return
        key = self._index_key(signature, kernel.codegen)
        self._cache_file.save(key, self._impl.reduce(kernel))


class _Implementation(CompileResultCacheImpl):
    """Numba's way of packing a kernel; the place of the file is chosen elsewhere."""

    def __init__(self, function: Any) -> None:
        self._lineno = function.__code__.co_firstlineno
        self._filename_base = function.__name__


class _KernelFile:
    """Files of one kernel: a checksum, then what numba pickles."""

    def __init__(self, name: str) -> None:
        self._name = name

    def is_there(self, key: Any) -> bool:
        """Tell whether something was saved under a key."""
        path = self._path(key)
        return path is not None and path.is_file()

    def load(self, key: Any) -> Any:
        """Read what was saved under a key; None without it, or if it is damaged."""
        path = self._path(key)
        if path is None:
            return None
        content = private.read(path)
        if content is None:
            return None
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() == digest:
            return pickle.loads(data)  # of this user alone, and whole
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def save(self, key: Any, content: Any) -> None:
        """Write a file at once; a full disk costs the next process time, and nothing else."""
        path = self._path(key)
        if path is None:
            return
        data = dumps(content)
        beside = path.with_suffix(f".{uuid.uuid4().hex[:16]}")
        try:
            private.write_new(beside, hashlib.sha256(data).digest() + data)
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            return
        # Files of other versions of the source are never read again, nor halves of them.
        for other in path.parent.glob(f"{self._stem()}.*"):
            if not other.name.startswith(f"{self._stem()}.{_stamp()}."):
                with contextlib.suppress(OSError):
                    other.unlink()

    def flush(self) -> None:
        """Forget everything."""
        for path in (cache_folder() or _SOURCES).glob(f"{self._stem()}.*.nbc"):
            path.unlink()

    def _stem(self) -> str:
        return f"{self._name}.{sys.implementation.cache_tag}"

    def _path(self, key: Any) -> Path | None:
        folder = cache_folder()
        if folder is None:
            return None
        key_digest = hashlib.sha256(repr(key).encode()).hexdigest()[:16]
        return folder / f"{self._stem()}.{_stamp()}.{key_digest}.nbc"


@cache
def _stamp() -> str:
    """Digest of all that the code of a kernel depends on, but for the processor."""
    of = f"{numba.__version__} {llvmlite.__version__} {sources.READ}"
    return hashlib.sha256(of.encode()).hexdigest()[:16]


# --- Where --------------------------------------------------------------------------------------


@cache
def cache_folder() -> Path | None:
    """Folder of the compiled kernels; None if there is none to be had."""
    installation = f"kernels_{hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:16]}"
    shared: list[str] = []
    found = next(filter(None, (_made(one, shared) for one in _candidates(installation))), None)
    if shared:
        place = "every process compiles them again" if found is None else f"they are in {found}"
        _left_aside.append(f"compiled kernels are not kept where {' and where '.join(shared)}: {place}")
    if os.environ.get("NUMBA_CACHE_DIR"):  # its user should know, whatever is read elsewhere
        _tell_of_others()
    return found


_left_aside: list[str] = []


def _tell_of_others() -> None:
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


def _made(candidate: tuple[Path, ...], shared: list[str]) -> Path | None:
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
