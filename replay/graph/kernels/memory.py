# mypy: allow-untyped-defs, allow-untyped-calls
# Numba infers the types of kernels; what teaches it a type has its untyped interfaces.
"""Memory that kernels reach by one pointer: tables of records with named fields, vectors, numbers.

A subclass of :class:`Memory` declares its parts; an instance binds NumPy arrays and numbers to
them. Compiled code gets the address of a list of addresses, one word a part::

    class Ring(Memory):
        slots = Records(SLOT)     # ring.slots[i].owner is a field of a record
        order = Vector(np.int32)  # ring.order[i]
        size = Fixed()            # ring.size, the same for the whole run
        head = Number()           # ring.head, which kernels may set

Every value that a kernel reads is a 64-bit whole number, however narrow it is stored. Indices are
not checked and do not count from the end.

Passed as tuples of arrays, the same state is some three hundred values at each call. Both numba
and LLVM take most of their time to pass them: compiling took 36 s of CPU instead of 9, and the
loop itself was slower. With ``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python on views
of the same arrays.
"""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from llvmlite import ir  # type: ignore[import-untyped]
from numba import config, types
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

#: Whether kernels run as plain Python.
IS_PLAIN = bool(getattr(config, "DISABLE_JIT", 0))
_WORD_BYTES = 8
_I64 = ir.IntType(64)
_POINTER = ir.IntType(8).as_pointer()


# --- Declarations -------------------------------------------------------------------------------


class Layout:
    """Fields of a record, in memory in the order given.

    Parameters
    ----------
    name
        A name of its own for every layout.
    shares
        Fields that lie where another one lies, because no record needs both.
    fields
        Width of each field in bytes: 4 or 8. Widths have to fall on multiples of themselves.
    """

    def __init__(self, name: str, shares: dict[str, str] | None = None, **fields: int) -> None:
        self.name = name
        offset, offsets = 0, {}
        for field, width in fields.items():
            offsets[field] = offset
            offset += width
        self.fields = {field: (offsets[field], width) for field, width in fields.items()}
        self.fields |= {field: self.fields[same] for field, same in (shares or {}).items()}
        self.num_bytes = offset
        self.dtype = np.dtype(
            {
                "names": list(self.fields),
                "formats": [f"i{width}" for _, width in self.fields.values()],
                "offsets": [offset for offset, _ in self.fields.values()],
                "itemsize": offset,
            }
        )

    def view(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Records (record,) over an array of whole numbers (record, word) of the same size."""
        return array.reshape(-1).view(self.dtype)


class Part:
    """A declared part of a memory: one word that kernels read."""

    name = ""
    num_words = 1
    dtype: np.dtype[Any] | None = None

    def words(self, value: Any) -> list[int]:
        """Content of the part's words."""
        assert self.dtype is not None
        if value.dtype != self.dtype or not value.flags.c_contiguous:
            message = f"{self.name} must be a contiguous array of {self.dtype}, not {value.dtype}"
            raise TypeError(message)
        return [value.__array_interface__["data"][0]]

    def plain(self, value: Any) -> Any:
        """View that kernels use as plain Python."""
        return memoryview(value)

    def numba_type(self) -> types.Type:
        """Type of the part in compiled code."""
        raise NotImplementedError


class Vector(Part):
    """An array of whole numbers of one width."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype)

    def numba_type(self) -> types.Type:
        """Type of the part in compiled code."""
        assert self.dtype is not None
        return VectorType(8 * self.dtype.itemsize)


class Stepped(Part):
    """A column as (array, step): step 0 means one value for every row; see `columns.stepped`."""

    num_words = 2

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype)

    def words(self, value: Any) -> list[int]:
        """Content of the part's words."""
        array, step = value
        return [*super().words(array), step]

    def plain(self, value: Any) -> Any:
        """View that kernels use as plain Python."""
        return _PlainColumn(*value)

    def numba_type(self) -> types.Type:
        """Type of the part in compiled code."""
        assert self.dtype is not None
        return ColumnType(8 * self.dtype.itemsize)


class Records(Part):
    """A table of records of one layout."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.dtype = layout.dtype

    def plain(self, value: Any) -> Any:
        """View that kernels use as plain Python."""
        return _PlainRecords(value)

    def numba_type(self) -> types.Type:
        """Type of the part in compiled code."""
        return RecordsType(self.layout)


class Fixed(Part):
    """A whole number that stays the same while kernels run."""

    def words(self, value: Any) -> list[int]:
        """Content of the part's word."""
        return [int(value)]

    def plain(self, value: Any) -> Any:
        """Value that kernels use as plain Python."""
        return int(value)

    def numba_type(self) -> types.Type:
        """Type of the part in compiled code."""
        return types.int64


class Number(Fixed):
    """A whole number that kernels may set; 0 where no value is given."""


class Memory:
    """Arrays and numbers bound to the declared parts; they live as long as the memory does.

    Attributes
    ----------
    arrays
        What was given for each part, by name.

    Raises
    ------
    TypeError
        If a part is missing or unknown, or an array has another type than declared.
    """

    _parts: ClassVar[dict[str, Part]] = {}
    _offsets: ClassVar[dict[str, int]] = {}

    def __init_subclass__(cls) -> None:
        cls._parts = {name: part for name, part in vars(cls).items() if isinstance(part, Part)}
        cls._offsets, num_words = {}, 0
        for name, part in cls._parts.items():
            part.name = f"{cls.__name__}.{name}"
            cls._offsets[name] = num_words * _WORD_BYTES
            num_words += part.num_words

    def __init__(self, **values: Any) -> None:
        if values.keys() - self._parts.keys():
            message = f"{type(self).__name__} has no {sorted(values.keys() - self._parts.keys())}"
            raise TypeError(message)
        words: list[int] = []
        for name, part in self._parts.items():
            if name not in values and not isinstance(part, Number):
                message = f"{part.name} is missing"
                raise TypeError(message)
            value = values.get(name, 0)
            words += part.words(value)
            if IS_PLAIN:
                setattr(self, name, part.plain(value))
        self.arrays = values
        self._words = np.array(words, np.int64)
        self.address = self._words.__array_interface__["data"][0]


# --- Plain Python -------------------------------------------------------------------------------


class _PlainColumn:
    def __init__(self, array: npt.NDArray[Any], step: int) -> None:
        self._view, self._step = memoryview(array), step

    def __getitem__(self, row: int) -> int:
        return int(self._view[row * self._step])


class _PlainRecords:
    def __init__(self, array: npt.NDArray[Any]) -> None:
        assert array.dtype.names is not None
        # A class of its own, whose properties are the fields of the record at ``index``.
        fields = {
            name: property(*_accessors(memoryview(array[name]))) for name in array.dtype.names
        }
        self._record = type("Record", (), {"__slots__": ("index",), **fields})

    def __getitem__(self, index: int) -> Any:
        record = self._record()
        record.index = index
        return record


def _accessors(view: memoryview) -> tuple[Any, Any]:
    def get(record: Any) -> Any:
        return view[record.index]

    def put(record: Any, value: int) -> None:
        view[record.index] = value

    return get, put


# --- Types of compiled code ---------------------------------------------------------------------


class MemoryType(types.Type):
    """A memory of some class: the address of its words."""

    def __init__(self, memory: type[Memory]) -> None:
        self.memory = memory
        super().__init__(name=f"{memory.__module__}.{memory.__qualname__}")


class VectorType(types.Type):
    """Address of whole numbers of some width."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__(name=f"vector{bits}")


class ColumnType(types.Type):
    """Address of two words: that of the numbers, and the step."""

    def __init__(self, bits: int) -> None:
        self.bits = bits
        super().__init__(name=f"column{bits}")


class RecordsType(types.Type):
    """Address of the first of some records."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        super().__init__(name=f"records.{layout.name}")


class RecordType(types.Type):
    """Address of one record."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        super().__init__(name=f"record.{layout.name}")


for _type in (MemoryType, VectorType, ColumnType, RecordsType, RecordType):
    register_model(_type)(models.OpaqueModel)


@typeof_impl.register(Memory)
def _typeof_memory(value, context):
    return MemoryType(type(value))


@unbox(MemoryType)
def _unbox_memory(kind, value, context):
    address = context.pyapi.object_getattr_string(value, "address")
    pointer = context.pyapi.long_as_voidptr(address)
    context.pyapi.decref(address)
    return NativeValue(pointer)


@infer_getattr
class _AttributesOfMemory(AttributeTemplate):
    key = MemoryType

    def generic_resolve(self, kind, name):
        part = kind.memory._parts.get(name)
        return None if part is None else part.numba_type()


@infer_getattr
class _AttributesOfRecord(AttributeTemplate):
    key = RecordType

    def generic_resolve(self, kind, name):
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


def _scaled(builder, index, num_bytes):
    return builder.mul(index, _I64(num_bytes))


@lower_getattr_generic(MemoryType)
def _get_part(context, builder, kind, value, name):
    part, offset = kind.memory._parts[name], kind.memory._offsets[name]
    if isinstance(part, Number):
        return _load(builder, value, _I64(offset), 64, f"number {name}")
    if isinstance(part, Fixed):
        return _load_word(builder, value, offset, _I64)
    if isinstance(part, Stepped):
        return builder.gep(value, [_I64(offset)], inbounds=True)
    return _load_word(builder, value, offset, _POINTER)


@lower_setattr_generic(MemoryType)
def _set_number(context, builder, sig, args, name):
    memory = sig.args[0].memory
    if not isinstance(memory._parts[name], Number):
        message = f"{memory.__name__}.{name} is fixed"
        raise TypeError(message)
    _store(builder, args[0], _I64(memory._offsets[name]), 64, args[1], f"number {name}")


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
    offset = _scaled(builder, args[1], sig.args[0].layout.num_bytes)
    return builder.gep(args[0], [offset], inbounds=True)


@lower_builtin(operator.getitem, VectorType, types.int64)
def _get_element(context, builder, sig, args):
    bits = sig.args[0].bits
    return _load(builder, args[0], _scaled(builder, args[1], bits // 8), bits, f"vector{bits}")


@lower_builtin(operator.setitem, VectorType, types.int64, types.int64)
def _set_element(context, builder, sig, args):
    bits = sig.args[0].bits
    offset = _scaled(builder, args[1], bits // 8)
    _store(builder, args[0], offset, bits, args[2], f"vector{bits}")
    return context.get_dummy_value()


@lower_builtin(operator.getitem, ColumnType, types.int64)
def _get_of_column(context, builder, sig, args):
    bits = sig.args[0].bits
    base = _load_word(builder, args[0], 0, _POINTER)
    step = _load_word(builder, args[0], _WORD_BYTES, _I64)
    offset = _scaled(builder, builder.mul(args[1], step), bits // 8)
    return _load(builder, base, offset, bits, f"vector{bits}")


# --- Asking for memory before it is needed ------------------------------------------------------


def _prefetch_nothing(part, index):
    """Stand-in where nothing is compiled."""


@intrinsic
def _prefetch_line(typing_context, part, index):
    """Start to load the cache line of ``part[index]``; no effect but on speed."""
    num_bytes = part.layout.num_bytes if isinstance(part, RecordsType) else part.bits // 8

    def code(context, builder, sig, args):
        number = ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [_POINTER, number, number, number]),
            "llvm.prefetch.p0",
        )
        address = builder.gep(args[0], [_scaled(builder, args[1], num_bytes)])
        read, keep, data = number(0), number(3), number(1)
        builder.call(function, [address, read, keep, data])
        return context.get_dummy_value()

    return types.void(part, types.int64), code


prefetch: Any = _prefetch_nothing if IS_PLAIN else _prefetch_line
