"""Arrays of numpy in files of ``torch.save``, without numpy's own way of unpickling them.

Numpy rebuilds an array by calls that a file chooses the arguments of: memory that nothing was
written to, a row that is repeated a billion times, a type whose flags say that numbers are
references. What stands here in numpy's place takes bytes, a shape and a type of numbers.
"""

from __future__ import annotations

import _codecs
import math
from typing import Any

import numpy as np

from tracegen.trace.arrays import Array

CODES = frozenset(f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)) | {
    "f2",
    "f4",
    "f8",
    "b1",
}
"""Types of numbers, as numpy pickles them."""
ORDERS = ("<", ">", "=", "|")


class SavedType:
    """A type of numbers; in the place of ``numpy.dtype``."""

    def __init__(self, code: str, *_: Any) -> None:
        if code not in CODES:
            msg = f"an array of {str(code)[:40]!r}, which are no numbers"
            raise ValueError(msg)
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        order = state[1]
        if order not in ORDERS or any(part is not None for part in state[2:5]):
            msg = "a type of numbers that has parts"
            raise ValueError(msg)
        self.dtype = self.dtype.newbyteorder(order)


class SavedArray:
    """An array of numbers; in the place of ``numpy.ndarray``, which is its own argument."""

    def __init__(self, *given: Any) -> None:
        if given:
            msg = "an array that is made otherwise than of its bytes"
            raise ValueError(msg)
        self.array: Array = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, data = state
        if not isinstance(kind, SavedType) or not isinstance(data, bytes):
            msg = "an array of what are no numbers"
            raise ValueError(msg)
        if any(size < 0 for size in shape) or math.prod(shape) * kind.dtype.itemsize != len(data):
            msg = f"an array {tuple(shape)} of {kind.dtype} in {len(data)} bytes"
            raise ValueError(msg)
        self.array = np.frombuffer(data, kind.dtype).reshape(shape, order="F" if is_fortran else "C")


def _reconstruct(*_: Any) -> SavedArray:
    """Begin an array, whatever class it is to be of; its state follows."""
    return SavedArray()


def stand_ins() -> list[Any]:
    """Pairs of what is called, and the name by which a file of torch calls it."""
    found: list[Any] = [
        (SavedType, "numpy.dtype"),
        (SavedArray, "numpy.ndarray"),
        _codecs.encode,  # bytes, as pickles of protocol 2 have them
    ]
    # numpy 2 renamed the module, and a file names the one it was written with.
    found += [(_reconstruct, f"numpy.{name}.multiarray._reconstruct") for name in ("core", "_core")]
    return found
