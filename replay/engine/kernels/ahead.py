"""Compilation of all kernels before they are needed, in two processes if it pays."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from replay.engine.backend.compiling import ENTRIES, KernelEntry
from replay.engine.backend.folder import cache_folder
from replay.engine.compilation import announce
from tracegen.shared.processors import num_processors

if TYPE_CHECKING:
    import subprocess


def compile_all(progress: Callable[[int, int], None] | None = None) -> None:
    """Compile every kernel of this folder that is not in the cache, in two processes if it pays.

    The second begins at the other end, and each takes from the cache what the other has compiled.

    Parameters
    ----------
    progress
        Told how many are compiled, out of how many.
    """
    _import_all()
    if _missing():
        announce()  # who listens may ask for the same, and have it
    wanted = _missing()
    if not wanted:
        return
    helper = _start_helper() if len(wanted) > _FEW else None
    try:
        for number, kernel in enumerate(wanted, 1):
            kernel.compile()
            if progress is not None:
                progress(max(number, len(wanted) - len(_missing())), len(wanted))
    finally:
        if helper is not None:
            helper.kill()
            helper.wait()


_FEW = 4  # kernels take as long as the start of another process


def _import_all() -> None:
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        import_module(f"{__package__}.{path.stem}")


def _missing() -> list[KernelEntry]:
    """Kernels that are neither loaded nor in the cache; the loop first, which takes longest."""
    found = [one for one in ENTRIES if one.is_missing()]
    return sorted(found, key=lambda one: (one.name != "run", one.name))


def compile_backwards() -> None:
    """Help another process: compile what is not in the cache, the last first."""
    _import_all()
    for kernel in reversed(_missing()):
        kernel.compile()


def _start_helper() -> subprocess.Popen[bytes] | None:
    """Have another process compile, where a second processor and a folder for both are there."""
    import subprocess  # which hardly any process needs

    if num_processors() < 2 or cache_folder() is None or not sys.executable:
        return None
    code = f"import sys; sys.path[:] = {sys.path!r}\nfrom {__name__} import compile_backwards; compile_backwards()"
    nowhere = subprocess.DEVNULL
    with contextlib.suppress(OSError):  # it is compiled here, then
        return subprocess.Popen([sys.executable, "-P", "-c", code], stdin=nowhere, stdout=nowhere, stderr=nowhere)
    return None
