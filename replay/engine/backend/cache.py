"""Files of the quick compiler: when they are fresh, and what happens to damaged ones.

A kernel

- is compiled again when any file of the kernels or of this folder has changed, so that kernels may call one another
  across files, and is not kept if one changed while it was compiled (`sources`);
- lies in a folder that is this user's alone (`folder`), and is read only if the file is, too;
- is believed only with its checksum: what is damaged is deleted and compiled again;
- has a file of its own, written whole or not at all, so that processes may compile the same at the same time.
"""

from __future__ import annotations

import contextlib
import hashlib
import uuid
from functools import cache
from pathlib import Path

import llvmlite

from replay.engine.backend import private, sources
from replay.engine.backend.folder import cache_folder

_DIGEST_BYTES = hashlib.sha256().digest_size


class KernelFile:
    """File of one kernel: a checksum, then its machine code.

    Parameters
    ----------
    name
        The kernel's.
    machine
        What the machine code is for.
    """

    def __init__(self, name: str, machine: object) -> None:
        self._name = name
        self._machine = machine

    def is_there(self) -> bool:
        """Tell whether something was saved."""
        path = self._path()
        return path is not None and path.is_file()

    def load(self) -> bytes | None:
        """Read what was saved; None without it, or if it is damaged."""
        path = self._path()
        content = None if path is None else private.read(path)
        if path is None or content is None:
            return None
        digest, made = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
        if hashlib.sha256(made).digest() == digest:
            return made
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def save(self, made: bytes) -> None:
        """Write a file at once, if the code is of the text that its name would say.

        A full disk costs the next process time, and nothing else.
        """
        path = self._path()
        if path is None or sources.digest() != sources.READ:
            return
        beside = path.with_suffix(f".{uuid.uuid4().hex[:16]}")
        try:
            private.write_new(beside, hashlib.sha256(made).digest() + made)
            beside.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            return
        # Files of other versions of the source are never read again, nor halves of them.
        for other in path.parent.glob(f"{self._name}.*"):
            if not other.name.startswith(f"{self._name}.{_stamp()}."):
                with contextlib.suppress(OSError):
                    other.unlink()

    def _path(self) -> Path | None:
        folder = cache_folder()
        if folder is None:
            return None
        of_machine = hashlib.sha256(repr(self._machine).encode()).hexdigest()[:16]
        return folder / f"{self._name}.{_stamp()}.{of_machine}.o"


@cache
def _stamp() -> str:
    """Digest of all that the code of a kernel depends on, but for the machine."""
    return hashlib.sha256(f"{llvmlite.__version__} {sources.READ}".encode()).hexdigest()[:16]
