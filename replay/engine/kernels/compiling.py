# mypy: allow-untyped-defs, allow-untyped-calls
"""Compilation of kernels: functions that Python calls, and those that only kernels call.

Only the former are kept in the cache, each with all it calls. Kernels allocate nothing, so they do
without numba's reference counts (``_nrt``): these are atomic operations on every array that is
passed on. Functions that Python does not call need no wrappers, which are a third of the time it
takes to compile a small one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.typed_passes import NativeLowering

from replay.engine.kernels.cache import KernelCache
from replay.engine.kernels.compiled_memory import MemoryType
from replay.engine.kernels.memory import IS_PLAIN, KernelMemory

_INNER: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_ENTRIES: list[_Entry] = []


class _InnerLibrary(JITCodeLibrary):
    """Code of a function that only kernels call: neither optimised nor turned into machine code.

    Numba does both for each function, with all it calls: the innermost one again at each level.
    Here it is done once, for the entry that links all of them.
    """

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_final_module(self) -> None:
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerOnly(NativeLowering):
    """Numba's last step, without an address of the code."""

    _name = "lower_only"

    def run_pass(self, state: Any) -> bool:
        state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # Callers find the code by a built-in function of its own; it is never called.
        stand_in: Any = [].clear
        state.targetctx.insert_user_function(stand_in, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=stand_in)
        return True


class _InnerCompiler(CompilerBase):
    """Numba's steps, but for the last."""

    def define_pipelines(self) -> list[Any]:
        steps = DefaultPassBuilder.define_nopython_pipeline(self.state)
        steps.passes = [
            (_LowerOnly if step is NativeLowering else step, what) for step, what in steps.passes
        ]
        steps._finalized = False
        steps.finalize()
        return [steps]


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return _without_literals(njit(pipeline_class=_InnerCompiler, **_INNER)(function))


def inlined(function: Callable[..., Any]) -> Any:
    """Compile a function that becomes a part of each kernel that calls it."""
    return _without_literals(
        njit(pipeline_class=_InnerCompiler, forceinline=True, **_INNER)(function)
    )


def _without_literals(kernel: Any) -> Any:
    """Compile once for all whole numbers; numba compiles again for each literal argument."""
    if not IS_PLAIN:
        look_for = kernel.get_call_template

        def get_call_template(args: Any, keywords: Any) -> Any:
            return look_for(tuple(types.unliteral(kind) for kind in args), keywords)

        kernel.get_call_template = get_call_template
    return kernel


def entry(memory: type[KernelMemory]) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function of one memory that Python calls, or take it from the cache."""

    def decorate(function: Callable[..., Any]) -> Any:
        if IS_PLAIN:
            return function
        options: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True}
        kernel: Any = njit(**options)(function)
        kernel._cache = KernelCache(function)
        found = _Entry(kernel, memory)
        _ENTRIES.append(found)
        return found

    return decorate


class _Entry:
    """A kernel that Python calls; its code is there from its first call on.

    Numba would ask for the type of the argument at every call, in Python.
    """

    def __init__(self, kernel: Any, memory: type[KernelMemory]) -> None:
        self._kernel, self._memory = kernel, memory
        self._code: Callable[[KernelMemory], Any] | None = None

    def compile(self) -> Callable[[KernelMemory], Any]:
        """Compile the kernel, or take it from the cache: what runs on a memory."""
        self._code = self._kernel.compile((MemoryType(self._memory),))
        return self._code

    def __call__(self, memory: KernelMemory) -> Any:
        if type(memory) is not self._memory:
            message = f"{self._kernel.__name__} runs on {self._memory.__name__}, not {memory!r}"
            raise TypeError(message)
        return (self._code or self.compile())(memory)


def compile_all() -> None:
    """Compile every kernel of this folder that is not in the cache, and load the others."""
    for path in sorted(Path(__file__).parent.glob("[a-z]*.py")):
        import_module(f"{__package__}.{path.stem}")
    for kernel in _ENTRIES:
        kernel.compile()
