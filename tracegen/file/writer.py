"""Trace files written as HDF5: complete, or not at all."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tracegen.errors import UserError
from tracegen.file import header, schema
from tracegen.file.draft import draft_of
from tracegen.file.schema import COLUMNS, Column
from tracegen.trace import content_id
from tracegen.trace.arrays import Array
from tracegen.trace.routing import RoutingTrace


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
    target = Path(path)
    if target.exists() and not overwrite:
        msg = f"{target} exists; overwriting must be asked for"
        raise UserError(msg)
    if not target.absolute().parent.is_dir():
        msg = f"{target}: the folder {target.absolute().parent} does not exist"
        raise UserError(msg)
    trace.validate()
    digest = content_id.content_id(trace)
    info = trace.info
    if trace.stored_content_id not in ("", digest):
        # Part of a file, or changed since: a new trace, which must not claim the old identity.
        info = dataclasses.replace(info, trace_id="", created_utc="")
    attributes = header.root_attributes(info, digest)
    arrays = 1 + sum(array is not None for array in (trace.gate_weights, trace.flags))
    reserve = schema.metadata_bytes(trace.num_layers * arrays, trace.num_tokens)
    with draft_of(target) as draft, h5py.File(draft, "x", meta_block_size=reserve) as file:
        _write_body(file, trace)
        _write_attributes(file, attributes)
    return digest


def _write_body(file: h5py.File, trace: RoutingTrace) -> None:
    """Write groups, their attributes and every dataset, in the order of the schema."""
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
    for column in COLUMNS.values():
        array = arrays[column.path]
        if array is not None:
            _write_column(file, column, array)
    info, routing = trace.info, file["routing"]
    _write_attributes(file["model"], header.model_attributes(trace.model))
    slots = {"id_space": info.id_space, "slot_order": info.slot_order}
    _write_attributes(routing["expert_ids"], slots)
    if trace.gate_weights is not None:
        weights = {"semantics": info.weight_semantics, "row_sum": info.weight_row_sum}
        _write_attributes(routing["gate_weights"], weights)


def _write_attributes(node: h5py.Group | h5py.Dataset, values: dict[str, Any]) -> None:
    """Write scalars, text as strings of fixed length."""
    for name, value in values.items():
        if isinstance(value, str):
            encoded = value.encode("utf-8")
            # HDF5 has no strings of no bytes.
            dtype = h5py.string_dtype("utf-8", max(1, len(encoded)))
            node.attrs.create(name, np.array(encoded, dtype=dtype), dtype=dtype)
        else:
            node.attrs[name] = value


def _write_column(file: h5py.File, column: Column, array: Array) -> None:
    """One dataset: chunked and compressed along tokens, plain where that gains nothing."""
    if array.dtype.kind == "U":
        encoded = [text.encode("utf-8") for text in array.tolist()]
        longest = max(map(len, encoded), default=1)
        if longest > schema.MAX_TEXT_BYTES:
            msg = f"/{column.path}: a text of {longest} bytes; at most {schema.MAX_TEXT_BYTES}"
            raise UserError(msg)
        dtype = h5py.string_dtype("utf-8", max(1, longest))
        array = np.array(encoded, dtype=dtype)
    else:
        dtype = array.dtype.newbyteorder("<")
    options: dict[str, Any] = {}
    # A filter needs chunks, and chunks need data; a handful of numbers is smaller as it is.
    if array.size > 64:
        token_axis = column.dims.index("token") if "token" in column.dims else 0
        chunks = list(array.shape)
        chunks[token_axis] = min(
            chunks[token_axis], schema.TOKENS_PER_CHUNK * (4 if array.ndim == 1 else 1)
        )
        if array.ndim > 1 and "token" in column.dims:
            chunks[0] = 1
        options = {
            "chunks": tuple(chunks),
            "compression": "gzip",
            "compression_opts": 4,
            "shuffle": True,
            "fletcher32": True,
        }
    file.create_dataset(column.path, data=array, dtype=dtype, **options)
