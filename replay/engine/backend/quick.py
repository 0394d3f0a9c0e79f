# mypy: allow-untyped-defs, allow-untyped-calls
"""The quick compiler: numba's steps without those that kernels do not need, and one optimisation of all.

Kernels allocate nothing, so they do without numba's reference counts (``_nrt``): these are atomic
operations on every array that is passed on. Functions that Python does not call need no wrappers,
which are a third of the time it takes to compile a small one.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm  # type: ignore[import-untyped]
from numba import njit, types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager, register_pass
from numba.core.typed_passes import (
    AnnotateTypes,
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import FixupArgs, IRProcessing, ReconstructSSA, TranslateByteCode

from replay.engine.backend.cache import KernelCache

_INNER: dict[str, Any] = {"_nrt": False, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}


class _EntryLibrary(JITCodeLibrary):
    """Code of an entry with all that it calls: optimised once, when all of it is there."""

    def add_linking_library(self, library: Any) -> None:
        """Add the code of a function that is called, and of those that it calls."""
        if library not in self._linking_libraries:
            super().add_linking_library(library)
            for called in library._linking_libraries:
                self.add_linking_library(called)

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        # At levels 2 and 3 kernels are as fast (ENGINE.md), and take a tenth longer to compile.
        tuning = llvm.create_pipeline_tuning_options(speed_level=1)
        builder = llvm.create_pass_builder(self._codegen._tm, tuning)
        builder.getModulePassManager().run(self._final_module, builder)


class _InnerLibrary(_EntryLibrary):
    """Code of a function that only kernels call: neither linked, optimised nor made machine code.

    Numba does all of it for each function, with all it calls: the innermost one again at each
    level. Here it is done once, for the entry.
    """

    def finalize(self) -> None:
        """Take no more code."""
        self._finalized = True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerEntry(NativeLowering):
    """Numba's last step for a function that Python calls."""

    _name = "lower_entry"

    def run_pass(self, state: Any) -> bool:
        state.library = _EntryLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return bool(super().run_pass(state))


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerInner(NativeLowering):
    """Numba's last step for other functions, without an address of the code."""

    _name = "lower_inner"

    def run_pass(self, state: Any) -> bool:
        state.library = _InnerLibrary(state.targetctx.codegen(), state.func_id.func_qualname)
        state.flags.no_compile = True
        super().run_pass(state)
        # Callers find the code by a built-in function of its own; it is never called.
        stand_in: Any = [].clear
        state.targetctx.insert_user_function(stand_in, state.cr.fndesc, [state.library])
        state.cr = state.cr._replace(cfunc=stand_in)
        return True


_SIGNATURES: dict[Any, Any] = {}
"""Types of operators and functions of numba, by those of arguments: it goes through all rules."""


@register_pass(mutates_CFG=True, analysis_only=False)
class _InferTypes(NopythonTypeInference):
    """Numba's inference of types, which looks for the rule of each operator once."""

    _name = "infer_types"

    def run_pass(self, state: Any) -> bool:
        context = state.typingctx
        look_for = context.resolve_function_type

        def resolve(function: Any, args: Any, keywords: Any) -> Any:
            if type(function) is not types.Function or keywords:
                return look_for(function, args, keywords)
            key = (function, *args)
            if key not in _SIGNATURES:
                found = look_for(function, args, keywords)
                if found is None:
                    return None
                _SIGNATURES[key] = found
            return _SIGNATURES[key]

        context.resolve_function_type = resolve
        try:
            return bool(super().run_pass(state))
        finally:
            context.resolve_function_type = look_for


class _Compiler(CompilerBase):
    """Numba's steps without those for what kernels do not have.

    These are closures, contexts, literals, arrays, exceptions and functions of NumPy. Numba goes
    through the whole of a function several times at each step, whatever there is to do.
    """

    lowering: type[NativeLowering]

    def define_pipelines(self) -> list[Any]:
        steps = PassManager("kernel")
        for step in (
            TranslateByteCode,
            FixupArgs,
            IRProcessing,
            ReconstructSSA,
            _InferTypes,
            PreLowerStripPhis,
            IRLegalization,
            AnnotateTypes,
            self.lowering,
            NoPythonBackend,
        ):
            steps.add_pass(step, step.__name__)
        steps.finalize()
        return [steps]


class _InnerCompiler(_Compiler):
    lowering = _LowerInner


class _EntryCompiler(_Compiler):
    lowering = _LowerEntry

    def compile_extra(self, function: Any) -> Any:
        # Objects by the hundred thousand, which stay: Python would look through them over and over.
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return super().compile_extra(function)
        finally:
            if was_enabled:
                gc.enable()


def inner(function: Callable[..., Any]) -> Any:
    """Compile a function that only kernels call."""
    return _without_literals(njit(pipeline_class=_InnerCompiler, **_INNER)(function))


def inline(function: Callable[..., Any]) -> Any:
    """Compile a function that becomes a part of each kernel that calls it."""
    return _without_literals(njit(pipeline_class=_InnerCompiler, forceinline=True, **_INNER)(function))


def _without_literals(kernel: Any) -> Any:
    """Compile once for all whole numbers; numba compiles again for each literal argument."""
    look_for = kernel.get_call_template

    def get_call_template(args: Any, keywords: Any) -> Any:
        return look_for(tuple(types.unliteral(kind) for kind in args), keywords)

    kernel.get_call_template = get_call_template
    return kernel


def compile_entry(function: Callable[..., Any]) -> Any:
    """Compile a function that Python calls, when it is first needed, or take it from our cache."""
    options: dict[str, Any] = {"_nrt": False, "no_cfunc_wrapper": True}
    kernel: Any = njit(pipeline_class=_EntryCompiler, **options)(function)
    kernel._cache = KernelCache(function)
    return kernel


def is_kept(kernel: Any, kinds: tuple[Any, ...]) -> bool:
    """Tell whether there is a file with a kernel."""
    return bool(kernel._cache.has(kinds, kernel.targetctx.codegen()))


def code(kernel: Any, kinds: tuple[Any, ...]) -> Callable[..., Any]:
    """Machine code of a kernel for arguments of some kinds: compiled, or from the cache."""
    made: Callable[..., Any] = kernel.compile(kinds)
    return made
