"""Memory that kernels reach by one pointer: tables of records with named fields, vectors, numbers.

A subclass of :class:`KernelMemory` declares its parts; an instance binds NumPy arrays and numbers
to them. Compiled code gets the address of a list of addresses, one word a part::

    class Ring(KernelMemory):
        slots = Records(SLOT)     # ring.slots[i].owner is a field of a record
        order = Vector(np.int32)  # ring.order[i]
        size = Fixed()            # ring.size, the same for the whole run
        head = Number()           # ring.head, which kernels may set

Every value that a kernel reads is a 64-bit whole number, however narrow it is stored. Indices are
not checked and do not count from the end.

What reads it is translated by ``translation``, or by numba, which ``memory_types`` teaches it. With
``NUMBA_DISABLE_JIT=1`` the same source runs as plain Python on views of the same arrays.
"""

from __future__ import annotations

import os
import sys
from array import array as word_array
from ctypes import c_size_t
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

#: Whether kernels run as plain Python.
IS_PLAIN = os.environ.get("NUMBA_DISABLE_JIT", "") not in ("", "0")
WORD_BYTES = 8


# --- Declarations -------------------------------------------------------------------------------


class RecordLayout:
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

    def unset(self, count: int) -> npt.NDArray[Any]:
        """Records (record,) whose fields are all -1: every bit is set, where NumPy would go field by field."""
        return self.view(np.full((count, self.num_bytes // 4), -1, np.int32))


#: Where an array object holds the address of its data: behind the head that all objects have, which
#: is a part of NumPy's binary interface (``PyArrayObject``).
_DATA = object.__basicsize__


def _holds_address() -> bool:
    """Tell whether array objects are laid out so, as those of CPython are."""
    some = np.zeros(1, np.int64)
    return c_size_t.from_address(id(some) + _DATA).value == some.ctypes.data


def address(array: npt.NDArray[Any]) -> int:
    """Address of an array; zero if it is empty, which nobody reads.

    The array's own ways to say so make objects that describe all of it.
    """
    if not array.size:
        return 0
    return _word_at(id(array) + _DATA).value if _IS_LAID_OUT_SO else int(array.ctypes.data)


_word_at = c_size_t.from_address
_IS_LAID_OUT_SO = sys.implementation.name == "cpython" and _holds_address()


_MISSING = object()


class MemoryPart:
    """A declared part of a memory: one word that kernels read."""

    name = ""
    num_words = 1
    dtype: np.dtype[Any] = np.dtype(np.int64)

    def words(self, value: Any) -> list[int]:
        """Content of the part's words; 0 for None, which is bound before kernels read it."""
        if value is None:
            return [0]
        dtype = value.dtype
        if (dtype is not self.dtype and dtype != self.dtype) or not value.flags.c_contiguous:
            message = f"{self.name} must be a contiguous array of {self.dtype}, not {dtype}"
            raise TypeError(message)
        return [address(value)]

    def plain(self, value: Any) -> Any:
        """View that kernels use as plain Python."""
        return None if value is None else value.data


class Vector(MemoryPart):
    """An array of whole numbers of one width."""

    def __init__(self, dtype: type[np.generic]) -> None:
        self.dtype = np.dtype(dtype)
        if self.dtype.kind != "i":
            message = f"kernels read vectors of signed whole numbers, not of {self.dtype}"
            raise TypeError(message)


#: Bits of a word that a number of each type leaves free.
_FREE_BITS = {np.dtype(kind): 8 * (WORD_BYTES - np.dtype(kind).itemsize) for kind in ("?", "i1", "i2", "i4", "i8")}


#: The smallest pages that memory has. Larger ones begin where one of these does.
_PAGE_BYTES = 4096


class StridedColumn(MemoryPart):
    """A column of whole numbers of any width, perhaps one number that stands for every row.

    A number is read as the last bytes of a word. The words of the part are where the first of these words
    lies, the bytes from row to row, and the bits of a word that a number leaves free.
    """

    num_words = 3

    def words(self, value: Any) -> list[int]:
        """Content of the part's words; nothing where a word would begin on a page before, which may not exist."""
        free_bits, strides = _FREE_BITS.get(value.dtype), value.strides
        if free_bits is None or len(strides) != 1 or not value.flags.aligned:
            message = f"{self.name} must be a column of whole numbers, not {value.dtype}"
            raise TypeError(message)
        if not value.size:
            return [0, 0, free_bits]
        begin = _word_at(id(value) + _DATA).value if _IS_LAID_OUT_SO else address(value)
        before, stride = free_bits >> 3, strides[0]
        if begin % _PAGE_BYTES < before or stride < 0:
            return []
        return [begin - before, stride, free_bits]


def _off_page(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A copy of a column that begins a word behind a word, so that no page begins there."""
    raw = np.empty(column.size * column.itemsize + 3 * WORD_BYTES, np.int8)
    first = -raw.ctypes.data % (2 * WORD_BYTES) + WORD_BYTES
    copy = raw[first : first + column.size * column.itemsize].view(column.dtype)
    copy[:] = column
    return copy


class Records(MemoryPart):
    """A table of records of one layout."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        self.dtype = layout.dtype

    def plain(self, value: Any) -> Any:
        """View that kernels use as plain Python."""
        return _PlainRecords(value)


class FixedNumber(MemoryPart):
    """A whole number that stays the same while kernels run."""

    def words(self, value: Any) -> list[int]:
        """Content of the part's word."""
        return [int(value)]

    def plain(self, value: Any) -> Any:
        """Value that kernels use as plain Python."""
        return int(value)


class Number(FixedNumber):
    """A whole number that kernels may set; 0 where no value is given."""


class KernelMemory:
    """Arrays and numbers bound to the declared parts; they live as long as the memory does.

    Parameters
    ----------
    sources
        What has the parts that are not given by name, as attributes of the same name or, in
        picoseconds, of that name with ``_ps``; the first that has one counts.
    values
        Parts by name.

    Attributes
    ----------
    arrays
        What was given for each part, by name.

    Raises
    ------
    TypeError
        If a part is missing or unknown, or an array has another type than declared.
    """

    parts: ClassVar[dict[str, MemoryPart]] = {}
    offsets: ClassVar[dict[str, int]] = {}
    # Of each part its name, that in picoseconds, its default, type and strides of a whole array, and whether it is a
    # number. Bare tuples, which are unpacked in a third of the time of named ones, for every part of every memory.
    _bound: ClassVar[list[tuple[str, str, Any, MemoryPart, np.dtype[Any] | None, tuple[int, ...], bool]]] = []

    def __init_subclass__(cls) -> None:
        cls.parts = {name: part for name, part in vars(cls).items() if isinstance(part, MemoryPart)}
        cls.offsets, num_words = {}, 0
        for name, part in cls.parts.items():
            part.name = f"{cls.__name__}.{name}"
            cls.offsets[name] = num_words * WORD_BYTES
            num_words += part.num_words
        cls._bound = [
            (
                name,
                f"{name}_ps",
                0 if isinstance(part, Number) else _MISSING,
                part,
                part.dtype if _IS_LAID_OUT_SO and isinstance(part, Vector | Records) else None,
                (part.dtype.itemsize,),
                isinstance(part, FixedNumber),
            )
            for name, part in cls.parts.items()
        ]

    def __init__(self, *sources: object, **values: Any) -> None:
        words: list[int] = []
        for name, in_ps, default, part, dtype, strides, is_number in self._bound:
            value = values.get(name, default)
            if value is _MISSING:
                for source in sources:
                    value = getattr(source, name, _MISSING)
                    if value is _MISSING:
                        value = getattr(source, in_ps, _MISSING)
                    if value is not _MISSING:
                        break
                else:
                    message = f"{part.name} is missing"
                    raise TypeError(message)
            values[name] = value
            # As `words`, without calls for nearly all that kernels read.
            if is_number:
                words.append(int(value))
            elif (
                dtype is not None
                and value is not None
                and value.dtype is dtype
                and value.strides == strides
                and value.size
            ):
                words.append(_word_at(id(value) + _DATA).value)
            else:
                of_part = part.words(value)
                if not of_part:
                    value = values[name] = _off_page(value)
                    of_part = part.words(value)
                words += of_part
            if IS_PLAIN:
                setattr(self, name, part.plain(value))
        if len(values) > len(self.parts):
            message = f"{type(self).__name__} has no {sorted(values.keys() - self.parts.keys())}"
            raise TypeError(message)
        self.arrays = values
        self._words = word_array("q", words)
        self._as_parameter_ = self._words.buffer_info()[0]  # what compiled code gets

    def put(self, **values: Any) -> None:
        """Bind parts anew.

        Raises
        ------
        ValueError
            If a column cannot be read where it lies, of which a new memory takes a copy.
        """
        for name, value in values.items():
            part = self.parts[name]
            words, first = part.words(value), self.offsets[name] // WORD_BYTES
            if len(words) != part.num_words:  # fewer would move the parts behind
                message = f"{part.name} cannot be read where it lies; bind it to a new {type(self).__name__}"
                raise ValueError(message)
            self._words[first : first + part.num_words] = word_array("q", words)
            if IS_PLAIN:
                setattr(self, name, part.plain(value))
        self.arrays |= values


# --- Plain Python -------------------------------------------------------------------------------


class _PlainRecords:
    def __init__(self, array: npt.NDArray[Any]) -> None:
        assert array.dtype.names is not None
        # A class of its own, whose properties are the fields of the record at ``index``.
        fields = {name: property(*_accessors(array[name].data)) for name in array.dtype.names}
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
