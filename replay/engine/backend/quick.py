# mypy: allow-untyped-defs, allow-untyped-calls
"""The quick compiler: kernels straight from their source to LLVM, and what was compiled kept as machine code.

Of llvmlite it takes public parts only, and of numba nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any, cast

import llvmlite.binding as llvm

from replay.engine.backend.cache import KernelFile
from replay.engine.backend.folder import tell_of_others
from replay.engine.backend.memory import KernelMemory
from replay.engine.backend.translation import KernelFunction, Prefetch, Translation
from replay.engine.compilation import announce

inner = compile_entry = KernelFunction
prefetch = Prefetch()

#: The first release of LLVM whose addresses do not say what lies there; before it llvmlite asks for the old ones.
_PLAIN_ADDRESSES = 17


def inline(function: Callable[..., Any]) -> KernelFunction:
    """Compile a function that becomes a part of each kernel that calls it."""
    return KernelFunction(function, is_part=True)


def is_kept(kernel: KernelFunction) -> bool:
    """Tell whether there is a file with a kernel."""
    return _file(kernel).is_there()


def code(kernel: KernelFunction, memory: type[KernelMemory]) -> Callable[[KernelMemory], Any]:
    """Machine code of a kernel that runs on a memory: compiled, or from the cache."""
    file = _file(kernel)
    made = file.load()
    if made is None:
        tell_of_others()
        announce()  # who listens may have it compiled, with all others
        made = file.load()
    if made is None:
        made = compile_kernel(kernel, memory)
        file.save(made)
    return load(kernel.name, made)


def _file(kernel: KernelFunction) -> KernelFile:
    return KernelFile(kernel.name, (llvm.get_process_triple(), *_processor(), llvm.llvm_version_info))


@cache
def _processor() -> tuple[str, str]:
    """Name of this processor, and what it can do beside others of that name."""
    return llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


def target_machine() -> Any:
    """LLVM's way from its language to machine code of this processor."""
    name, features = _processor()
    _initialize()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    return target.create_target_machine(
        cpu=name, features=features, opt=2, reloc="default", codemodel="jitdefault", jit=True
    )


@cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


def compile_kernel(kernel: KernelFunction, memory: type[KernelMemory]) -> bytes:
    """Machine code of a kernel with all that it calls: optimised once, together."""
    machine = target_machine()
    target = f'target datalayout = "{machine.target_data}"\ntarget triple = "{llvm.get_process_triple()}"\n'
    has_pointer_types = llvm.llvm_version_info[0] < _PLAIN_ADDRESSES
    module = llvm.parse_assembly(target + Translation(has_pointer_types=has_pointer_types).entry(kernel, memory))
    module.verify()
    # At levels 2 and 3 kernels are as fast (ENGINE.md), and take a tenth longer to compile.
    passes = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=1))
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


@cache
def _engine() -> Any:
    """One for all kernels: LLVM takes an engine's code away with it. One thread at a time asks (`compiling`)."""
    machine = target_machine()  # the engine's own, from here on
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)


def load(name: str, made: bytes) -> Callable[[KernelMemory], Any]:
    """Function of this process out of machine code; it takes the address of a memory, which says its own."""
    engine = _engine()
    engine.add_object_file(llvm.ObjectFileRef.from_data(made))
    engine.finalize_object()
    found: Any = ctypes.PYFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)(engine.get_function_address(name))
    found.engine = engine  # lives as long as its code is called
    return cast("Callable[[KernelMemory], Any]", found)
