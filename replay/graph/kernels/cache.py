# mypy: allow-untyped-defs, allow-untyped-calls
"""Cache of compiled kernels: where it lies, when it is fresh, and what happens to damaged files.

Numba's own cache looks at a function's own file only, dies where it cannot write, and unpickles
whatever it finds. This one

- compiles again when any file of this folder has changed, so that kernels may call one another
  across files;
- lies in ``NUMBA_CACHE_DIR`` if that is set, else beside the source, else in the user's cache
  folder, else in a temporary folder of this user: the first of them that can be written to. Folders
  outside the installation have to be this user's alone, since a cached kernel is unpickled;
- believes a file only with its checksum: what is damaged is deleted and compiled again;
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
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from replay.graph.compilation import announce

_SOURCES = Path(__file__).parent
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
        with self._guard_against_spurious_io_errors():
            found = self._load_overload(signature, target_context)
        if found is None:
            announce()
        return found

    def save_overload(self, signature: Any, kernel: Any) -> None:
        """Keep a kernel that was compiled."""
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

    def load(self, key: Any) -> Any:
        """Read what was saved under a key; None without it, or if it is damaged."""
        path = self._path(key)
        if path is None:
            return None
        try:
            content = path.read_bytes()
        except OSError:
            return None
        digest, data = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(data).digest() == digest:
            return pickle.loads(data)  # of this user, and whole
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
            beside.write_bytes(hashlib.sha256(data).digest() + data)
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            return
        # Files of other versions of the source are never read again.
        for other in path.parent.glob(f"{self._stem()}.*.nbc"):
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
    digest = hashlib.sha256(f"{numba.__version__} {llvmlite.__version__}".encode())
    for path in sorted(_SOURCES.glob("*.py")):
        digest.update(f"{path.name} {path.stat().st_size} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


# --- Where --------------------------------------------------------------------------------------


@cache
def cache_folder() -> Path | None:
    """Folder of the compiled kernels; None if there is none to be had."""
    installation = f"kernels_{hashlib.sha256(str(_SOURCES).encode()).hexdigest()[:16]}"
    given = getattr(numba.config, "CACHE_DIR", "")
    if given:
        folder = Path(given) / installation
        if _is_writable(folder):
            return folder
    if _is_writable(_SOURCES / "__pycache__"):
        return _SOURCES / "__pycache__"
    for parent in (_users_cache(), _temporary()):
        if parent is not None and _is_private(parent) and _is_writable(parent / installation):
            return parent / installation
    return None


def _users_cache() -> Path | None:
    given = os.environ.get("XDG_CACHE_HOME", "")
    if Path(given).is_absolute():
        return Path(given) / "moereplay"
    try:
        return Path.home() / ".cache" / "moereplay"
    except RuntimeError:  # no home is known
        return None


def _temporary() -> Path | None:
    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    try:
        return Path(tempfile.gettempdir()) / f"moereplay-{owner}"
    except OSError:  # no temporary folder can be written to
        return None


def _is_private(folder: Path) -> bool:
    """Whether a folder is there, or can be made, that nobody else can write to."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()  # a link may lead anywhere
    except OSError:
        return False
    if not hasattr(os, "getuid"):
        return folder.is_dir()
    is_ours = status.st_uid == os.getuid() and not status.st_mode & 0o022
    return is_ours and folder.is_dir() and not folder.is_symlink()


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
