# mypy: allow-untyped-defs, allow-untyped-calls
# What teaches numba a type goes through its untyped interfaces.
"""Memories as numba sees them: their types, and the code of reading and writing them.

Everything is an address. Words of a memory do not change while kernels run, but for numbers, and a
store to one field changes no other: LLVM is told both, and need not load the same twice.
"""

from __future__ import annotations

import operator
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import (
    NativeValue,
    intrinsic,
    lower_builtin,
    lower_getattr_generic,
    lower_setattr_generic,
    models,
    register_model,
    typeof_impl,
    unbox,
)

from replay.engine.backend.memory import (
    WORD_BYTES,
    FixedNumber,
    KernelMemory,
    Number,
    RecordLayout,
    Records,
    StridedColumn,
    Vector,
)

_I64 = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


# --- Types of compiled code ---------------------------------------------------------------------


class MemoryType(types.Type):
    """A memory of some class: the address of its words."""

    def __init__(self, memory: type[KernelMemory]) -> None:
        self.memory = memory
        super().__init__(name=f"{memory.__module__}.{memory.__qualname__}")


class VectorType(types.Type):
    """Address of whole numbers of some width."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__(name=f"vector{bits}")


class ColumnType(types.Type):
    """Address of three words: that of the numbers, the step, and what their width leaves free."""

    def __init__(self) -> None:
        super().__init__(name="column")


class RecordsType(types.Type):
    """Address of the first of some records."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        super().__init__(name=f"records.{layout.name}")


class RecordType(types.Type):
    """Address of one record."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        super().__init__(name=f"record.{layout.name}")


def _type_of(part):
    """Type of a part of a memory."""
    if isinstance(part, Records):
        return RecordsType(part.layout)
    if isinstance(part, Vector):
        return VectorType(8 * part.dtype.itemsize)
    if isinstance(part, StridedColumn):
        return ColumnType()
    return types.int64


for _type in (MemoryType, VectorType, ColumnType, RecordsType, RecordType):
    register_model(_type)(models.OpaqueModel)


@cache
def _memory_type(memory: Any) -> Any:
    return MemoryType(memory)


@typeof_impl.register(KernelMemory)
def _typeof_memory(value: Any, context: Any) -> Any:
    memory: Any = type(value)
    return _memory_type(memory)


@unbox(MemoryType)
def _unbox_memory(kind, value, context):
    address = context.pyapi.object_getattr_string(value, "_as_parameter_")
    pointer = context.pyapi.long_as_voidptr(address)
    context.pyapi.decref(address)
    return NativeValue(pointer)


@infer_getattr
class _AttributesOfMemory(AttributeTemplate):
    key = MemoryType

    def generic_resolve(self, kind, name):  # type: ignore[override]  # numba's is a placeholder
        part = kind.memory.parts.get(name)
        return None if part is None else _type_of(part)


@infer_getattr
class _AttributesOfRecord(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, kind, name):  # type: ignore[override]  # numba's is a placeholder
        return types.int64 if name in kind.layout.fields else None


@infer_global(operator.getitem)
class _GetItem(AbstractTemplate):
    def generic(self, args, keywords):
        target, index = args
        if not isinstance(index, types.Integer):
            return None
        if isinstance(target, (VectorType, ColumnType)):
            return signature(types.int64, target, types.int64)
        if isinstance(target, RecordsType):
            return signature(RecordType(target.layout), target, types.int64)
        return None


@infer_global(operator.setitem)
class _SetItem(AbstractTemplate):
    def generic(self, args, keywords):
        target, index, _ = args
        if isinstance(target, VectorType) and isinstance(index, types.Integer):
            return signature(types.none, target, types.int64, types.int64)
        return None


# --- Code ---------------------------------------------------------------------------------------


def _pointer(builder, base, offset, kind):
    """Pointer to a value of some LLVM type, ``offset`` bytes behind ``base``."""
    return builder.bitcast(builder.gep(base, [offset], inbounds=True), kind.as_pointer())


def _tag(builder, instruction, name):
    """Tell LLVM that what has another tag lies elsewhere: no store to one field changes another."""
    module = builder.module
    root = module.add_metadata(["memory of the kernels"])
    kind = module.add_metadata([name, root, _I64(0)])
    instruction.set_metadata("tbaa", module.add_metadata([kind, kind, _I64(0)]))


def _load(builder, base, offset, bits, tag):
    value = builder.load(_pointer(builder, base, offset, ir.IntType(bits)))
    _tag(builder, value, tag)
    return value if bits == 64 else builder.sext(value, _I64)


def _store(builder, base, offset, bits, value, tag):
    if bits < 64:
        value = builder.trunc(value, ir.IntType(bits))
    _tag(builder, builder.store(value, _pointer(builder, base, offset, ir.IntType(bits))), tag)


def _load_word(builder, base, offset, kind):
    """Word of a memory that stays the same, as a value of some LLVM type."""
    value = builder.load(_pointer(builder, base, _I64(offset), kind))
    value.set_metadata("invariant.load", builder.module.add_metadata([]))
    return value


def _scale(builder, index, num_bytes):
    return builder.mul(index, _I64(num_bytes))


@lower_getattr_generic(MemoryType)
def _get_part(context, builder, kind, value, name):
    part, offset = kind.memory.parts[name], kind.memory.offsets[name]
    if isinstance(part, Number):
        return _load(builder, value, _I64(offset), 64, f"number {name}")
    if isinstance(part, FixedNumber):
        return _load_word(builder, value, offset, _I64)
    if isinstance(part, StridedColumn):
        return builder.gep(value, [_I64(offset)], inbounds=True)
    return _load_word(builder, value, offset, _POINTER)


@lower_setattr_generic(MemoryType)
def _set_number(context, builder, sig, args, name):
    memory = sig.args[0].memory
    if not isinstance(memory.parts[name], Number):
        message = f"{memory.__name__}.{name} is fixed"
        raise TypeError(message)
    _store(builder, args[0], _I64(memory.offsets[name]), 64, args[1], f"number {name}")


@lower_getattr_generic(RecordType)
def _get_field(context, builder, kind, value, name):
    offset, width = kind.layout.fields[name]
    return _load(builder, value, _I64(offset), 8 * width, f"{kind.layout.name}+{offset}")


@lower_setattr_generic(RecordType)
def _set_field(context, builder, sig, args, name):
    layout = sig.args[0].layout
    offset, width = layout.fields[name]
    _store(builder, args[0], _I64(offset), 8 * width, args[1], f"{layout.name}+{offset}")


@lower_builtin(operator.getitem, RecordsType, types.int64)
def _get_record(context, builder, sig, args):
    offset = _scale(builder, args[1], sig.args[0].layout.num_bytes)
    return builder.gep(args[0], [offset], inbounds=True)


@lower_builtin(operator.getitem, VectorType, types.int64)
def _get_element(context, builder, sig, args):
    bits = sig.args[0].bits
    return _load(builder, args[0], _scale(builder, args[1], bits // 8), bits, f"vector{bits}")


@lower_builtin(operator.setitem, VectorType, types.int64, types.int64)
def _set_element(context, builder, sig, args):
    bits = sig.args[0].bits
    offset = _scale(builder, args[1], bits // 8)
    _store(builder, args[0], offset, bits, args[2], f"vector{bits}")
    return context.get_dummy_value()


@lower_builtin(operator.getitem, ColumnType, types.int64)
def _get_of_column(context, builder, sig, args):
    """Number of any width: the last bytes of a word, without a branch."""
    base = _load_word(builder, args[0], 0, _I64)
    step = _load_word(builder, args[0], WORD_BYTES, _I64)
    free = _load_word(builder, args[0], 2 * WORD_BYTES, _I64)
    address = builder.add(base, builder.mul(args[1], step))
    value = builder.load(builder.inttoptr(address, _I64.as_pointer()), align=1)
    _tag(builder, value, "column")
    return builder.ashr(value, free)


# --- Asking for memory before it is needed ------------------------------------------------------


@intrinsic
def prefetch(typing_context, part, index):
    """Start to load the cache line of ``part[index]``; no effect but on speed."""
    num_bytes = part.layout.num_bytes if isinstance(part, RecordsType) else part.bits // 8

    def code(context, builder, sig, args):
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_POINTER, number, number, number]),
            "llvm.prefetch.p0",
        )
        address = builder.gep(args[0], [_scale(builder, args[1], num_bytes)])
        read, keep, data = number(0), number(3), number(1)
        builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(part, types.int64), code
