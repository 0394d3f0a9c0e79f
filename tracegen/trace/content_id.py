"""Identity of a trace by what it means, not by the bytes of its file."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from tracegen.trace.tables import TraceData, TraceInfo, TraceModel

HASHED_INFO = ("id_space", "slot_order", "weight_semantics", "weight_row_sum", "num_ranks")
"""Fields of :class:`tracegen.trace.tables.TraceInfo` that change how the arrays are read."""

Part = tuple[str, np.dtype[Any], tuple[int, ...], Iterable[npt.NDArray[Any]]]
"""Name, type, shape and blocks (in C order, along the first axis) of one array."""


def header(model: TraceModel, info: TraceInfo) -> bytes:
    """Canonical text of everything that counts and is not an array.

    Parameters
    ----------
    model, info
        Of the trace. Title, licence, provenance, dates and the prose of the
        model's shape do not count.

    Returns
    -------
    JSON in UTF-8, keys sorted, no spaces.
    """
    described = _not_default(model, (f.name for f in dataclasses.fields(model)))
    if model.shape is not None:
        described["shape"] = model.sizes_of_shape()
    reading = _not_default(info, HASHED_INFO)
    document = {"format": "moe-routing-trace/1", "model": described, "reading": reading}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _not_default(record: TraceModel | TraceInfo, names: Iterable[str]) -> dict[str, Any]:
    """Fields that differ from their default: one that a later version adds changes no id."""
    defaults = {f.name: f.default for f in dataclasses.fields(record)}
    values: dict[str, Any] = {}
    for name in names:
        value, default = getattr(record, name), defaults[name]
        if isinstance(default, float):
            value = float(value)  # 1 and 1.0 are one value, and one text
        if value != default:
            values[name] = value
    return values


def digest(head: bytes, parts: Iterable[Part]) -> str:
    """SHA-256 over the header and the arrays.

    Parameters
    ----------
    head
        From :func:`header`.
    parts
        Arrays in the order of :func:`parts`; absent ones are left out.

    Returns
    -------
    64 hexadecimal digits. Integers and floats are hashed little-endian, text as
    UTF-8 with a zero byte after each string.
    """
    sha = hashlib.sha256()
    sha.update(len(head).to_bytes(8, "little") + head)
    for name, dtype, shape, blocks in parts:
        text = dtype.kind == "U"
        kind = "text" if text else f"{dtype.kind}{dtype.itemsize}"
        sha.update(f"{name} {kind} {','.join(map(str, shape))}\n".encode())
        for block in blocks:
            if text:
                sha.update(b"".join(str(s).encode() + b"\0" for s in block.tolist()))
            else:
                little = block.astype(block.dtype.newbyteorder("<"), copy=False)
                sha.update(np.ascontiguousarray(little).data)
    return sha.hexdigest()


def parts(trace: TraceData) -> Iterator[Part]:
    """Arrays of a trace that count, in the order in which they are hashed.

    Parameters
    ----------
    trace
        Whole; the id of part of a trace is another one.

    Yields
    ------
    Name, type, shape and blocks. The boundaries of steps follow from the step
    column and are left out.
    """
    named = [
        ("model/moe_layer_index", trace.moe_layer_index),
        ("routing/expert_ids", trace.expert_ids),
        ("routing/gate_weights", trace.gate_weights),
        ("routing/flags", trace.flags),
        *((f"tokens/{name}", column) for name, column in vars(trace.tokens).items()),
        *((f"requests/{name}", column) for name, column in vars(trace.requests).items()),
    ]
    for name, array in named:
        if array is not None:
            yield name, array.dtype, array.shape, array if array.ndim > 1 else (array,)


def content_id(trace: TraceData) -> str:
    """SHA-256 of the meaning of a trace.

    Parameters
    ----------
    trace
        Whole.

    Returns
    -------
    64 hexadecimal digits, equal for equal routing whoever wrote the file and when.
    """
    return digest(header(trace.model, trace.info), parts(trace))
