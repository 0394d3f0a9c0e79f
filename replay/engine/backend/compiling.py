"""Decorators of kernels: functions that Python calls, and those that only kernels call.

Only the former are kept in a cache, each with all it calls.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from replay.engine.backend import sources
from replay.engine.backend.memory import IS_PLAIN, KernelMemory
from replay.engine.compilation import say
from tracegen.shared.errors import UserError

#: Releases of llvmlite that the quick compiler was tried with, from the first to the last.
TRIED = ((0, 44), (0, 50))
COMPILERS = ("quick", "standard")


class KernelCompiler(Protocol):
    """Functions of `quick` and of `standard`."""

    def inner(self, function: Callable[..., Any]) -> Any:
        """Compile a function that only kernels call."""

    def inline(self, function: Callable[..., Any]) -> Any:
        """Compile a function that becomes a part of each kernel that calls it."""

    def compile_entry(self, function: Callable[..., Any]) -> Any:
        """Compile a function that Python calls, when it is first needed."""

    prefetch: Any  # start to load the cache line of an element; no effect but on speed

    def is_kept(self, kernel: Any) -> bool:
        """Tell whether there is a file with a kernel."""

    def code(self, kernel: Any, memory: type[KernelMemory]) -> Callable[[KernelMemory], Any]:
        """Machine code of a kernel that runs on a memory: compiled, or from the cache."""


def compiler_name() -> str:
    """Name of the compiler: ``MOEREPLAY_COMPILER``, or the quick one where it was tried and has a source.

    Raises
    ------
    UserError
        If the variable names no compiler.
    """
    wanted = os.environ.get("MOEREPLAY_COMPILER", "")
    if wanted and wanted not in COMPILERS:
        raise UserError(f"MOEREPLAY_COMPILER is {wanted!r}; it is {' or '.join(COMPILERS)}, or not set")
    return wanted or ("quick" if sources.TEXTS and is_tried() else "standard")


def llvmlite_version() -> str:
    """Release that is installed, of which there has to be none where nothing is compiled."""
    from llvmlite import __version__

    return str(__version__)


def is_tried() -> bool:
    """Tell whether the quick compiler was tried with the llvmlite that is installed."""
    release = re.match(r"(\d+)\.(\d+)(\.|$)", llvmlite_version())
    return release is not None and TRIED[0] <= (int(release[1]), int(release[2])) <= TRIED[1]


def _compiler() -> KernelCompiler:
    if not (is_tried() or os.environ.get("MOEREPLAY_COMPILER")):
        first, last = (".".join(map(str, one)) for one in TRIED)
        say(f"llvmlite {llvmlite_version()} is not one of {first} to {last}: the engine compiles slower")
    name = compiler_name()
    if name == "standard":
        import_module(f"{__package__}.settings")  # before all that imports numba
    return cast("KernelCompiler", import_module(f"{__package__}.{name}"))


_found: KernelCompiler | None = None if IS_PLAIN else _compiler()


def _prefetch_nothing(part: Any, index: int) -> None:
    """Stand-in where nothing is compiled."""


#: Elements ahead of the one that a pass looks at whose memory it asks for; half and a quarter of them where
#: one has to be there before the next is known.
AHEAD = 16
#: Records of a table up to which a pass does not look ahead, as that takes longer than it saves where a processor's
#: own cache holds them. A record is the cells of a key, up to 32 bytes: about 300 KB.
#: That is a guess of what such a cache holds. Only small layers were measured, which became faster.
IN_CACHE = 1 << 13
prefetch: Any = _prefetch_nothing if _found is None else _found.prefetch
ENTRIES: list[KernelEntry] = []  # in the order of their definitions
_TURN = threading.RLock()  # one thread at a time compiles or loads; who listens to that may compile others


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return function if _found is None else _found.inner(function)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function that becomes a part of each kernel that calls it."""
    return function if _found is None else _found.inline(function)


def entry(memory: type[KernelMemory]) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of one memory that Python calls, or take it from the cache.

    Raises
    ------
    ValueError
        If another has its name, which also names its file and its machine code.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        if _found is None:
            return function
        if any(one.name == function.__name__ for one in ENTRIES):
            message = f"{function.__module__}.{function.__name__}: another kernel that Python calls has this name"
            raise ValueError(message)
        ENTRIES.append(KernelEntry(_found, function, memory))
        return ENTRIES[-1]

    return decorate


class KernelEntry:
    """A kernel that Python calls; its code is there from its first call on.

    Numba would ask for the type of the argument at every call, in Python.
    """

    def __init__(self, compiler: KernelCompiler, function: Callable[..., Any], memory: type[KernelMemory]) -> None:
        self._compiler, self._kernel = compiler, compiler.compile_entry(function)
        self._memory = memory
        self._code: Callable[[KernelMemory], Any] | None = None
        self.name = function.__name__

    def compile(self) -> Callable[[KernelMemory], Any]:
        """Compile the kernel, or take it from the cache: what runs on a memory."""
        with _TURN:
            if self._code is None:
                self._code = self._compiler.code(self._kernel, self._memory)
            return self._code

    def is_missing(self) -> bool:
        """Tell whether it is neither loaded nor in the cache."""
        return self._code is None and not self._compiler.is_kept(self._kernel)

    def __call__(self, memory: KernelMemory) -> Any:
        """Run on a memory."""
        if type(memory) is not self._memory:
            message = f"{self.name} runs on {self._memory.__name__}, not {memory!r}"
            raise TypeError(message)
        return (self._code or self.compile())(memory)
