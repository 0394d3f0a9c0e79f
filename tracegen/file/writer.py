"""Trace files written as HDF5: complete, or not at all."""

from __future__ import annotations

import dataclasses
import math
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tracegen.file import header, schema
from tracegen.file.schema import COLUMNS, DatasetSchema
from tracegen.shared import output
from tracegen.shared.errors import UserError
from tracegen.trace import content_id
from tracegen.trace.arrays import Array
from tracegen.trace.routing import RoutingTrace

_INDEX_BYTES = 256
"""Of a chunk: its place in the index, and its checksum."""
_MARGIN_BYTES = 2**16
"""Of a file: groups, attributes and whatever else is neither data nor index."""


def write(trace: RoutingTrace, path: str | Path, *, overwrite: bool = False) -> str:
    """Write a trace to a file that appears complete or not at all.

    Parameters
    ----------
    trace
        Checked in full before anything is written.
    path
        Of the file; its folder must exist.
    overwrite
        Whether an existing file may be replaced.

    Returns
    -------
    The content id, 64 hexadecimal digits.

    Raises
    ------
    UserError
        If the trace breaks an invariant, or the file cannot be written.
    """
    if output.replaces(path) and not overwrite:
        msg = f"{path} exists; overwrite=True replaces it"
        raise UserError(msg)
    output.check(path)
    trace.validate()
    digest = content_id.content_id(trace)
    info = trace.info
    if trace.stored_content_id not in ("", digest):
        # Part of a file, or changed since: a new trace, which must not claim the old identity.
        info = dataclasses.replace(info, trace_id="", created_utc="")
    attributes = header.root_attributes(info, digest)
    arrays = 1 + sum(array is not None for array in (trace.gate_weights, trace.flags))
    reserve = schema.metadata_bytes(trace.num_layers * arrays, trace.num_tokens)
    columns = _columns(trace)
    with output.draft_of(path) as draft:
        room = reserve + _MARGIN_BYTES + sum(_most_bytes(*pair) for pair in columns)
        output.set_aside(draft, room)
        with h5py.File(draft, "w", meta_block_size=reserve) as file:
            output.set_aside(draft, room)  # HDF5 has given back what there was
            for column, array in columns:
                _write_column(file, column, array)
            _describe(file, trace)
            _write_attributes(file, attributes)
            file.flush()
            os.truncate(draft, file.id.get_filesize())
    return digest


def _columns(trace: RoutingTrace) -> list[tuple[DatasetSchema, Array]]:
    """Every dataset that the trace has, as it is stored, in the order of the schema."""
    arrays: dict[str, Array | None] = {
        "model/moe_layer_index": trace.moe_layer_index,
        "routing/expert_ids": trace.expert_ids,
        "routing/gate_weights": trace.gate_weights,
        "routing/flags": trace.flags,
        "steps/indptr": trace.steps_indptr,
        "summary/load": trace.load_per_expert(),
        **{f"tokens/{name}": column for name, column in vars(trace.tokens).items()},
        **{f"requests/{name}": column for name, column in vars(trace.requests).items()},
    }
    present = ((column, arrays[column.path]) for column in COLUMNS.values())
    return [(column, _store(column, array)) for column, array in present if array is not None]


def _describe(file: h5py.File, trace: RoutingTrace) -> None:
    """Write what says how groups and datasets are to be read."""
    info, routing = trace.info, file["routing"]
    _write_attributes(file["model"], header.model_attributes(trace.model))
    slots = {"id_space": info.id_space, "slot_order": info.slot_order}
    _write_attributes(routing["expert_ids"], slots)
    if trace.gate_weights is not None:
        weights = {"semantics": info.weight_semantics, "row_sum": info.weight_row_sum}
        _write_attributes(routing["gate_weights"], weights)
    if info.num_ranks:
        _write_attributes(file["tokens/rank"], {"num_ranks": info.num_ranks})


def _write_attributes(node: h5py.Group | h5py.Dataset, values: dict[str, Any]) -> None:
    """Write scalars, text as strings of fixed length.

    Raises
    ------
    UserError
        If a text is longer than a reader takes.
    """
    for name, value in values.items():
        if isinstance(value, str):
            encoded = value.encode("utf-8")
            if len(encoded) > schema.most_bytes(name):
                msg = f"{name} has {len(encoded)} bytes; at most {schema.most_bytes(name)}"
                raise UserError(msg)
            # HDF5 has no strings of no bytes.
            dtype = h5py.string_dtype("utf-8", max(1, len(encoded)))
            node.attrs.create(name, np.array(encoded, dtype=dtype), dtype=dtype)
        else:
            node.attrs[name] = value


def _store(column: DatasetSchema, array: Array) -> Array:
    """The values of a dataset in the type that the file has.

    Raises
    ------
    UserError
        If a text is too long.
    """
    if array.dtype.kind != "U":
        return array.astype(array.dtype.newbyteorder("<"), copy=False)
    encoded = [text.encode("utf-8") for text in array.tolist()]
    longest = max(map(len, encoded), default=1)
    if longest > schema.MAX_TEXT_BYTES:
        msg = f"/{column.path}: a text of {longest} bytes; at most {schema.MAX_TEXT_BYTES}"
        raise UserError(msg)
    return np.array(encoded, dtype=h5py.string_dtype("utf-8", max(1, longest)))


def _chunks(column: DatasetSchema, array: Array) -> tuple[int, ...] | None:
    """Shape of the parts that are compressed, along tokens; None where that gains nothing."""
    # A filter needs chunks, and chunks need data; a handful of numbers is smaller as it is.
    if array.size <= 64:
        return None
    token_axis = column.dims.index("token") if "token" in column.dims else 0
    chunks = list(array.shape)
    chunks[token_axis] = min(chunks[token_axis], schema.TOKENS_PER_CHUNK * (4 if array.ndim == 1 else 1))
    if array.ndim > 1 and "token" in column.dims:
        chunks[0] = 1
    return tuple(chunks)


def _most_bytes(column: DatasetSchema, array: Array) -> int:
    """Bytes that a dataset takes at most: what cannot be compressed is stored as it is."""
    chunks = _chunks(column, array)
    if chunks is None:
        return array.nbytes
    number = math.prod(-(-size // each) for size, each in zip(array.shape, chunks, strict=True))
    return int(number * (math.prod(chunks) * array.itemsize + _INDEX_BYTES))


def _write_column(file: h5py.File, column: DatasetSchema, array: Array) -> None:
    """One dataset: chunked and compressed along tokens, plain where that gains nothing."""
    options: dict[str, Any] = {}
    if (chunks := _chunks(column, array)) is not None:
        options = {
            "chunks": chunks,
            "compression": "gzip",
            "compression_opts": 4,
            "shuffle": True,
            "fletcher32": True,
        }
    file.create_dataset(column.path, data=array, dtype=array.dtype, **options)
