"""FLAME-MoE traces (huggingface.co/datasets/CMU-FLAME/FLAME-MoE-Traces): a parquet file per layer.

Columns: a list of float16 scores and a list of int16 ids, one row per token. The layer is the last
number in the file's name. Sequences are not marked.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.importers.files import first_line
from tracegen.importers.options import ImportOptions
from tracegen.importers.routed_rows import RoutedRows
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import TRAINING

INSTALL = "pip install 'moereplay[parquet]'"


def read_flame(paths: list[Path], options: ImportOptions) -> RoutedRows:
    """One capture: the files of all layers of one checkpoint.

    Parameters
    ----------
    paths
        Parquet files, one per layer.
    options
        Sizes; at most ``max_tokens`` rows are read, the first ones.

    Raises
    ------
    UserError
        If pyarrow is missing, or a file has other columns or rows than the others.
    """
    layers: dict[int, tuple[Array, Array | None]] = {}
    total = 0
    for path in paths:
        numbers = re.findall(r"\d+", path.stem)
        if not numbers:
            msg = f"{path}: no layer number in the name"
            raise UserError(msg)
        layer = int(numbers[-1])
        if layer in layers:
            msg = f"{path}: layer {layer} is there twice; give the files of one checkpoint"
            raise UserError(msg)
        ids, scores, rows = _layer(path, options.max_tokens)
        layers[layer], total = (ids, scores), max(total, rows)
    shapes = {ids.shape for ids, _ in layers.values()}
    if len(shapes) != 1:
        msg = f"the layers differ in (tokens, slots): {sorted(shapes)}"
        raise UserError(msg)
    order = sorted(layers)
    ids = np.stack([layers[layer][0] for layer in order], axis=1)
    found = [layers[layer][1] for layer in order]
    known = [part for part in found if part is not None]
    weights = np.stack(known, axis=1) if len(known) == len(found) else None
    rows = len(ids)
    routed = RoutedRows(
        ids=ids.astype(np.int64),
        weights=weights,
        request=np.zeros(rows, np.int64),
        position=np.arange(rows),
        phase=np.full(rows, TRAINING, np.uint8),
        step=np.zeros(rows, np.int64),
        layers=tuple(order),
        semantics="router scores as recorded",
    )
    routed.notices.append("Sequence boundaries are not recorded: all tokens are one request.")
    if total > rows:
        routed.dropped[f"after the first {rows} tokens (--max-tokens)"] = total - rows
    return routed


def _layer(path: Path, limit: int) -> tuple[Array, Array | None, int]:
    """Ids, scores and the number of rows of one file."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        msg = f"{path}: reading parquet needs pyarrow: {INSTALL}"
        raise UserError(msg) from error
    ids: list[Array] = []
    scores: list[Array] = []
    try:
        regular.check(path)  # opening a pipe would wait for ever
        with parquet.ParquetFile(path) as file:
            rows = int(file.metadata.num_rows)
            names = _columns(file.schema_arrow)
            taken = 0
            for batch in file.iter_batches(batch_size=65_536, columns=[n for n in names if n]):
                if taken >= limit:
                    break
                for name, parts in zip(names, (ids, scores), strict=True):
                    if name is None:
                        continue
                    column = batch.column(name)
                    values = column.flatten().to_numpy(zero_copy_only=False)
                    if len(values) % max(1, len(column)) or values.dtype.kind not in "iuf":
                        raise ValueError(f"{name} has lists of unequal length, or gaps")
                    parts.append(values.reshape(len(column), -1)[: limit - taken])
                taken += min(len(batch), limit - taken)
    except (pyarrow.ArrowException, OSError, ValueError, AttributeError) as error:
        msg = f"{path}: not the parquet file of a layer ({first_line(error)})"
        raise UserError(msg) from error
    if not ids:
        msg = f"{path}: no rows"
        raise UserError(msg)
    return np.concatenate(ids), np.concatenate(scores) if scores else None, rows


def _columns(schema: Any) -> tuple[str, str | None]:
    """Names of the column of ids and of that of scores.

    Raises
    ------
    ValueError
        If there is not one column of lists of integers, or more than one of floats.
    """
    from pyarrow import types

    lists = [
        field
        for field in schema
        if types.is_list(field.type) or types.is_large_list(field.type) or types.is_fixed_size_list(field.type)
    ]
    ids = [field.name for field in lists if types.is_integer(field.type.value_type)]
    scores = [field.name for field in lists if types.is_floating(field.type.value_type)]
    if len(ids) != 1 or len(scores) > 1:
        told = ", ".join(f"{field.name} ({field.type})" for field in schema)
        raise ValueError(f"one column of lists of integers is expected; it has {told}")
    return ids[0], scores[0] if scores else None
