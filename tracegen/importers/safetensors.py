"""The safetensors format: u8 length, JSON header, data; all little-endian."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np

from tracegen.importers import files
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

MAX_HEADER_BYTES = 16 * 2**20
"""Longest header of a safetensors file."""
TYPES = {
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "u1",
    "BOOL": "?",
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
}
"""safetensors' names of types, as numpy names them; BF16 by its bits."""


def load_safetensors(path: Path) -> dict[str, Array]:
    """Tensors of numbers of a safetensors file: u8 length, JSON header, data.

    Parameters
    ----------
    path
        Of the file.

    Raises
    ------
    UserError
        If it is damaged or holds other types.
    """
    data = files.load_bytes(path)
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(len(data) - 8, MAX_HEADER_BYTES):
        msg = f"{path}: not a safetensors file"
        raise UserError(msg)
    body = memoryview(data)[8 + length :]
    tensors: dict[str, Array] = {}
    try:
        header = json.loads(data[8 : 8 + length])
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            dtype, (begin, end) = np.dtype(TYPES[entry["dtype"]]), entry["data_offsets"]
            shape = tuple(int(size) for size in entry["shape"])
            if not 0 <= begin <= end <= len(body) or math.prod(shape) * dtype.itemsize != end - begin:
                raise ValueError(f"tensor {name!r} is not where the header says")
            found = np.frombuffer(body[begin:end], dtype).reshape(shape)
            if entry["dtype"] == "BF16":  # the upper half of a float32
                found = (found.astype("<u4") << 16).view("<f4")
            tensors[name] = found
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        msg = f"{path}: not a safetensors file of numbers ({error})"
        raise UserError(msg) from error
    return tensors
