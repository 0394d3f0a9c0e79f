"""Decorators of kernels: functions that Python calls, and those that only kernels call.

Only the former are kept in a cache, each with all it calls.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol, cast

from numba import __version__ as numba_version

from replay.engine.backend.memory import IS_PLAIN, KernelMemory
from replay.engine.backend.memory_types import MemoryType
from replay.engine.compilation import say
from tracegen.shared.errors import UserError

#: Releases of numba that the quick compiler was tried with, from the first to the last.
TRIED = ((0, 61), (0, 68))
COMPILERS = ("quick", "standard")


class KernelCompiler(Protocol):
    """Functions of `quick` and of `standard`."""

    def inner(self, function: Callable[..., Any]) -> Any:
        """Compile a function that only kernels call."""

    def inline(self, function: Callable[..., Any]) -> Any:
        """Compile a function that becomes a part of each kernel that calls it."""

    def compile_entry(self, function: Callable[..., Any]) -> Any:
        """Compile a function that Python calls, when it is first needed."""

    def is_kept(self, kernel: Any, kinds: tuple[Any, ...]) -> bool:
        """Tell whether there is a file with a kernel."""

    def code(self, kernel: Any, kinds: tuple[Any, ...]) -> Callable[..., Any]:
        """Machine code of a kernel for arguments of some kinds: compiled, or from the cache."""


def compiler_name() -> str:
    """Name of the compiler: ``MOEREPLAY_COMPILER``, or the quick one where it was tried with this numba.

    Raises
    ------
    UserError
        If the variable names no compiler.
    """
    wanted = os.environ.get("MOEREPLAY_COMPILER", "")
    if wanted and wanted not in COMPILERS:
        raise UserError(f"MOEREPLAY_COMPILER is {wanted!r}; it is {' or '.join(COMPILERS)}, or not set")
    return wanted or ("quick" if is_tried() else "standard")


def is_tried() -> bool:
    """Tell whether the quick compiler was tried with the numba that is installed."""
    major, minor = numba_version.split(".")[:2]
    return TRIED[0] <= (int(major), int(minor)) <= TRIED[1]


def _compiler() -> KernelCompiler:
    if not (is_tried() or os.environ.get("MOEREPLAY_COMPILER")):
        last = ".".join(map(str, TRIED[1]))
        say(f"numba {numba_version} is not one of {TRIED[0][0]}.{TRIED[0][1]} to {last}: the engine compiles slower")
    return cast("KernelCompiler", import_module(f"{__package__}.{compiler_name()}"))


_found: KernelCompiler | None = None if IS_PLAIN else _compiler()
ENTRIES: list[KernelEntry] = []  # in the order of their definitions


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return function if _found is None else _found.inner(function)


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function that becomes a part of each kernel that calls it."""
    return function if _found is None else _found.inline(function)


def entry(memory: type[KernelMemory]) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of one memory that Python calls, or take it from the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        if _found is None:
            return function
        ENTRIES.append(KernelEntry(_found, function, memory))
        return ENTRIES[-1]

    return decorate


class KernelEntry:
    """A kernel that Python calls; its code is there from its first call on.

    Numba would ask for the type of the argument at every call, in Python.
    """

    def __init__(self, compiler: KernelCompiler, function: Callable[..., Any], memory: type[KernelMemory]) -> None:
        self._compiler, self._kernel = compiler, compiler.compile_entry(function)
        self._memory, self._kinds = memory, (MemoryType(memory),)
        self._code: Callable[[KernelMemory], Any] | None = None
        self.name = function.__name__

    def compile(self) -> Callable[[KernelMemory], Any]:
        """Compile the kernel, or take it from the cache: what runs on a memory."""
        self._code = self._compiler.code(self._kernel, self._kinds)
        return self._code

    def is_missing(self) -> bool:
        """Tell whether it is neither loaded nor in the cache."""
        return self._code is None and not self._compiler.is_kept(self._kernel, self._kinds)

    def __call__(self, memory: KernelMemory) -> Any:
        """Run on a memory."""
        if type(memory) is not self._memory:
            message = f"{self.name} runs on {self._memory.__name__}, not {memory!r}"
            raise TypeError(message)
        return (self._code or self.compile())(memory)
