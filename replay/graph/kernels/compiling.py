# mypy: allow-untyped-defs, allow-untyped-calls
"""How kernels are compiled: functions that Python calls, and those that only kernels call.

Only the former are kept in the cache, each with all it calls. Kernels allocate nothing, so they do
without numba's reference counts (``_nrt``): these are atomic operations on every array that is
passed on. Functions that Python does not call need no wrappers, which are a third of the time it
takes to compile a small one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit, types

from replay.graph.kernels.cache import KernelCache
from replay.graph.kernels.memory import IS_PLAIN, Memory, MemoryType

_INNER: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_ENTRIES: list[tuple[Any, type[Memory]]] = []


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return _without_literals(njit(**_INNER)(function))


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that becomes a part of each kernel that calls it."""
    return _without_literals(njit(forceinline=True, **_INNER)(function))


def _without_literals(kernel: Any) -> Any:
    """Compile once for all whole numbers; numba compiles again for each literal argument."""
    if not IS_PLAIN:
        look_for = kernel.get_call_template

        def get_call_template(args: Any, keywords: Any) -> Any:
            return look_for(tuple(types.unliteral(kind) for kind in args), keywords)

        kernel.get_call_template = get_call_template
    return kernel


def entry(memory: type[Memory]) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of one memory that Python calls, or take it from the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        if IS_PLAIN:
            return function
        kernel = njit(_nrt=False, no_cfunc_wrapper=True)(function)
        kernel._cache = KernelCache(function)
        _ENTRIES.append((kernel, memory))
        return kernel

    return decorate


def compile_all() -> None:
    """Compile every kernel that is not in the cache, and load the others."""
    for kernel, memory in _ENTRIES:
        kernel.compile((MemoryType(memory),))
