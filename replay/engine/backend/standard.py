# mypy: allow-untyped-decorators
"""Kernels by numba's own decorator and cache, which other releases of numba have, too.

The results are the same, and compiling takes thirteen times as long: numba finds out types, and each function is
optimised by itself, with all it calls. Numba's cache looks at a function's own file only, so that its folder is
named by the text of all of them; it lies where others cannot write, for numba unpickles what it finds.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from numba import __version__ as numba_version
from numba import njit

from replay.engine.backend import private, sources
from replay.engine.backend.folder import cache_folder, tell_of_others
from replay.engine.backend.memory import KernelMemory
from replay.engine.backend.memory_types import MemoryType
from replay.engine.backend.memory_types import prefetch as prefetch
from replay.engine.backend.settings import config
from replay.engine.compilation import announce


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return njit(function)


inline = inner  # LLVM decides


def compile_entry(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, when it is first needed, or take it from numba's cache."""
    folder = _folder()
    if folder is None:
        return njit(function)
    with _kept_in(folder):
        return njit(cache=True)(function)


def is_kept(kernel: Any) -> bool:
    """Tell whether there is a file with a kernel; each runs on arguments of one kind."""
    folder = _folder()
    return folder is not None and any(folder.rglob(f"*.{kernel.__name__}-*.nbc"))


def code(kernel: Any, memory: type[KernelMemory]) -> Callable[[KernelMemory], Any]:
    """Machine code of a kernel that runs on a memory: compiled, or from the cache."""
    is_new = not is_kept(kernel)
    if is_new:
        tell_of_others()
        announce()
    made: Callable[[KernelMemory], Any] = kernel.compile((MemoryType(memory),))
    if is_new and sources.digest() != sources.READ and (folder := _folder()) is not None:
        shutil.rmtree(folder, ignore_errors=True)  # of a text that its name does not say
    return made


@cache
def _folder() -> Path | None:
    """Folder of what is compiled from this text by this numba; None if there is none to be had, or no text."""
    place = cache_folder() if sources.TEXTS else None
    if place is None:
        return None
    stamp = hashlib.sha256(f"{numba_version} {sources.READ}".encode()).hexdigest()[:16]
    try:
        for name in ("standard", stamp):
            place /= name
            private.make_own(place)
    except OSError:
        return None
    for other in place.parent.iterdir():  # those of other versions of the source are never read again
        if other != place:
            shutil.rmtree(other, ignore_errors=True)
    return place


@contextlib.contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Have numba choose this folder for a function that is decorated meanwhile."""
    settings: Any = config
    before = settings.CACHE_DIR
    settings.CACHE_DIR = str(folder)
    try:
        yield
    finally:
        settings.CACHE_DIR = before
