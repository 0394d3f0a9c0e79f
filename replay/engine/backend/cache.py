# mypy: allow-untyped-defs, allow-untyped-calls
"""Cache of the quick compiler: when it is fresh, and what happens to damaged files.

Numba's own cache looks at a function's own file only, dies where it cannot write, and unpickles
whatever it finds. This one

- compiles again when any file of the kernels or of this folder has changed, so that kernels may call one another
  across files, and keeps nothing that was compiled while one changed (`sources`);
- lies in a folder that is this user's alone (`folder`), and reads a file only if that is, too;
- believes a file only with its checksum: what is damaged is deleted and compiled again;
- has one file per kernel and signature, written whole or not at all, so that processes may compile
  the same at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import sys
import uuid
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite  # type: ignore[import-untyped]
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache
from numba.core.serialize import dumps

from replay.engine.backend import private, sources
from replay.engine.backend.folder import cache_folder, tell_of_others
from replay.engine.compilation import announce

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
        found = self._look_up(signature, target_context)
        if found is None:
            tell_of_others()
            announce()  # who listens may have it compiled, with all others
            found = self._look_up(signature, target_context)
        return found

    def _look_up(self, signature: Any, target_context: Any) -> Any:
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
        for path in (cache_folder() or sources.FOLDER).glob(f"{self._stem()}.*.nbc"):
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
