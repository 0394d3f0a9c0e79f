"""A trace as a table, for programs that read tables and not HDF5, such as the Hub's viewer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracegen.library.catalogue import sha256_of
from tracegen.shared.errors import UserError
from tracegen.trace.tables import PHASES

if TYPE_CHECKING:
    from tracegen.file.reader import TraceFile
    from tracegen.trace.arrays import Array
    from tracegen.trace.routing import RoutingTrace

ROWS = 2**17
"""Rows of a table that are made at a time: what a reader has to unpack to see one of them."""


class CatalogueColumn(NamedTuple):
    """One column of the table."""

    name: str
    kind: str
    """Data type as Croissant calls it."""
    is_list: bool
    meaning: str


COLUMNS = (
    CatalogueColumn("layer", "sc:Integer", False, "Number of the decoder layer"),
    CatalogueColumn("token", "sc:Integer", False, "Row of the token, the same in all layers"),
    CatalogueColumn("step", "sc:Integer", False, "Forward pass in which the token was routed"),
    CatalogueColumn("request", "sc:Integer", False, "Sequence that the token belongs to"),
    CatalogueColumn("position", "sc:Integer", False, "Position of the token in its sequence, from 0"),
    CatalogueColumn("phase", "sc:Text", False, f"One of {', '.join(PHASES)}"),
    CatalogueColumn("rank", "sc:Integer", False, "GPU that the token was on"),
    CatalogueColumn("experts", "sc:Integer", True, "Experts that the token visited in the layer"),
    CatalogueColumn("weights", "sc:Float", True, "Gate weight of each of these experts, as recorded"),
)


@dataclass(frozen=True)
class View:
    """The table of one trace.

    Attributes
    ----------
    file
        Path relative to the folder that is published.
    file_bytes, sha256
        Of the file.
    columns
        Those that this trace has.
    """

    file: str
    file_bytes: int
    sha256: str
    columns: tuple[CatalogueColumn, ...]


def check_installed() -> None:
    """Refuse to begin without the library that writes tables.

    Raises
    ------
    UserError
        Saying what to install, and how to do without.
    """
    try:
        import pyarrow  # noqa: F401 (whether it is there)
    except ImportError as error:
        msg = (
            "the tables for the Hub's viewer need pyarrow: pip install 'moereplay[parquet]'; "
            "--no-parquet leaves them out"
        )
        raise UserError(msg) from error


def write(trace: Path, folder: Path, file: str) -> View:
    """Write the table of a trace, a row for each token of each layer, as Parquet.

    Vocabulary entries, that is the texts, are left out.

    Parameters
    ----------
    trace
        Path of the trace file.
    folder
        Folder that is published.
    file
        Path of the table, relative to the folder.

    Raises
    ------
    UserError
        If the trace is damaged.
    """
    from pyarrow import parquet

    from tracegen.file import reader

    target = folder / file
    target.parent.mkdir(exist_ok=True)
    with reader.open_trace(trace) as opened:
        columns = _columns(opened)
        first = _table(opened.read([], slice(0, 0)), columns, 0)
        with parquet.ParquetWriter(target, first.schema, compression="zstd") as out:
            for start, part in _parts(opened):
                out.write_table(_table(part, columns, start))
    return View(file, target.stat().st_size, sha256_of(target), columns)


def _columns(trace: TraceFile) -> tuple[CatalogueColumn, ...]:
    """The columns that a trace has."""
    absent = set() if trace.has_rank else {"rank"}
    absent |= set() if trace.has_gate_weights else {"weights"}
    return tuple(column for column in COLUMNS if column.name not in absent)


def _parts(trace: TraceFile) -> Iterator[tuple[int, RoutingTrace]]:
    """Each layer in pieces of `ROWS` tokens, with the row that a piece begins at."""
    for layer in range(trace.num_layers):
        for start in range(0, trace.num_tokens, ROWS):
            yield start, trace.read([layer], slice(start, start + ROWS))


def _table(part: RoutingTrace, columns: tuple[CatalogueColumn, ...], start: int) -> Any:
    """The rows of one layer (or no rows, of none), as an Arrow table."""
    import pyarrow

    tokens, rows = part.tokens, part.num_tokens * part.num_layers
    ids = part.expert_ids.reshape(rows, part.topk)
    is_used = ids != part.empty_slot
    values: dict[str, Any] = {
        "layer": np.repeat(part.moe_layer_index, part.num_tokens),
        "token": np.arange(start, start + rows, dtype=np.uint32),
        "step": tokens.step[:rows],
        "request": tokens.request[:rows],
        "position": tokens.position[:rows],
        "phase": _texts(tokens.phase[:rows]),
        "rank": None if tokens.rank is None else tokens.rank[:rows],
        "experts": _lists(ids.astype(np.uint16), is_used),
        "weights": None
        if part.gate_weights is None
        else _lists(part.gate_weights.reshape(rows, part.topk).astype(np.float32), is_used),
    }
    return pyarrow.table({column.name: values[column.name] for column in columns})


def _texts(phase: Array) -> Any:
    """Phases by name, each name stored once."""
    import pyarrow

    indices = pyarrow.array(phase.astype(np.int8))
    return pyarrow.DictionaryArray.from_arrays(indices, list(PHASES))


def _lists(values: Array, is_used: Array) -> Any:
    """Lists of the slots that are used, one per row: of (row, k)."""
    import pyarrow

    ends = np.concatenate([[0], np.cumsum(is_used.sum(axis=1))]).astype(np.int32)
    return pyarrow.ListArray.from_arrays(ends, values[is_used])
