"""The file a capture appends to: blocks of rows with checksums, readable at any moment.

A killed process leaves whole blocks and at most one torn one, which reading drops. HDF5
cannot promise that, so a capture becomes HDF5 only when it is complete. Layout, integers
little-endian: :data:`MAGIC`; then records of 4 bytes kind, u8 length, u4 CRC-32 of the
payload, payload. ``HEAD`` (first) and ``DONE`` (last, missing after a crash) hold JSON,
``ROWS`` holds u4 number of rows and the columns of :data:`COLUMNS`, one after the other.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array

MAGIC = b"moereplay-capture-journal/1\n"
SUFFIX = ".partial"
MAX_HEAD_BYTES = 2**20
"""Longest header; a longer one is damage."""

_RECORD = struct.Struct("<4sQI")


@dataclass(frozen=True)
class BlockLayout:
    """Sizes that fix the layout of a block of rows."""

    num_layers: int
    topk: int
    num_experts: int
    weights: bool
    token_ids: bool

    def columns(self, rows: int) -> list[tuple[str, np.dtype[Any], tuple[int, ...]]]:
        """Name, type and shape of each column of a block.

        Parameters
        ----------
        rows
            Token rows of the block.
        """
        from tracegen.trace.tables import expert_dtype

        body = (self.num_layers, rows, self.topk)
        ids = expert_dtype(self.num_experts).newbyteorder("<")
        columns: list[tuple[str, Any, tuple[int, ...]]] = [
            ("step", "<u4", (rows,)),
            ("request", "<u4", (rows,)),
            ("position", "<u4", (rows,)),
            ("phase", "u1", (rows,)),
            ("flags", "u1", (self.num_layers, rows)),
            ("expert_ids", ids, body),
        ]
        if self.weights:
            columns.append(("gate_weights", "<f2", body))
        if self.token_ids:
            columns.append(("token_id", "<i4", (rows,)))
        return [(name, np.dtype(dtype), shape) for name, dtype, shape in columns]

    def bytes_per_row(self) -> int:
        """Bytes of one token row."""
        return sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in self.columns(1))


class JournalWriter:
    """Writer of blocks of rows to a new file; every block is given to the system whole.

    A record that was begun and not ended, since the disk is full or the process was interrupted,
    is cut off before the next one, and when the file is closed.

    Parameters
    ----------
    path
        Must not exist.
    layout
        Of the blocks.
    head
        JSON-ready facts about the capture; ``layout`` is added.

    Raises
    ------
    UserError
        If the file cannot be made.
    """

    def __init__(self, path: Path, layout: BlockLayout, head: dict[str, Any]) -> None:
        self.path = path
        self.layout = layout
        # One value, so that an interrupt cannot come between the two.
        self._whole = (0, 0)  # bytes, records
        try:
            self._file = path.open("xb", buffering=0)
        except OSError as error:
            msg = f"{path}: cannot be written ({error})"
            raise UserError(msg) from error
        try:
            self._write(MAGIC)
            self._record(b"HEAD", json.dumps({**head, "layout": vars(layout)}).encode())
        except BaseException:
            self._file.close()
            path.unlink(missing_ok=True)  # nothing can be made of it
            raise

    @property
    def num_records(self) -> int:
        """Whole records that are in the file."""
        return self._whole[1]

    def append(self, block: dict[str, Array]) -> None:
        """Append one block.

        Parameters
        ----------
        block
            Columns by name, as :meth:`BlockLayout.columns` describes them.

        Raises
        ------
        UserError
            If it cannot be written.
        """
        rows = len(block["step"])
        parts = [struct.pack("<I", rows)]
        for name, dtype, shape in self.layout.columns(rows):
            assert block[name].shape == shape, name
            parts.append(np.ascontiguousarray(block[name], dtype).tobytes())
        self._record(b"ROWS", b"".join(parts))

    def finish(self, facts: dict[str, Any]) -> None:
        """Close the journal as complete.

        Parameters
        ----------
        facts
            JSON-ready; what is known only at the end.

        Raises
        ------
        UserError
            If they cannot be written.
        """
        self._record(b"DONE", json.dumps(facts).encode())
        self.close()

    def close(self) -> None:
        """Close the file as it is."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._file.truncate(self._whole[0])
            self._file.close()

    def _record(self, kind: bytes, payload: bytes) -> None:
        self._write(_RECORD.pack(kind, len(payload), zlib.crc32(payload)) + payload)

    def _write(self, record: bytes) -> None:
        """Write a record behind those that are whole."""
        end, records = self._whole
        rest = memoryview(record)
        try:
            self._file.seek(end)
            self._file.truncate()
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            msg = f"{self.path}: cannot be written ({error.strerror or error})"
            raise UserError(msg) from error
        self._whole = (end + len(record), records + 1)


@dataclass(frozen=True)
class Journal:
    """A journal on disk: its header, and the places of its whole blocks."""

    path: Path
    head: dict[str, Any]
    layout: BlockLayout
    blocks: list[tuple[int, int]]
    """Offset of the columns and number of rows of each whole block."""
    done: dict[str, Any] | None
    """Facts of the end, or None if the capture was killed."""
    torn_bytes: int
    """Bytes after the last whole block."""

    @property
    def num_rows(self) -> int:
        """Token rows of all whole blocks."""
        return sum(rows for _, rows in self.blocks)

    def read(self) -> Iterator[dict[str, Array]]:
        """Columns of each block, one block at a time."""
        with self.path.open("rb") as file:
            for offset, rows in self.blocks:
                file.seek(offset)
                block: dict[str, Array] = {}
                for name, dtype, shape in self.layout.columns(rows):
                    data = file.read(dtype.itemsize * math.prod(shape))
                    block[name] = np.frombuffer(data, dtype).reshape(shape)
                yield block


def is_journal(path: str | Path) -> bool:
    """Tell whether a file begins as a journal does.

    Parameters
    ----------
    path
        Of any file.
    """
    if not regular.is_file(path):  # opening a pipe would wait for ever
        return False
    with contextlib.suppress(OSError), Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC
    return False


def refuse_journal(path: Path) -> None:
    """Refuse a journal that is taken for a trace, and explain what it is.

    Parameters
    ----------
    path
        Of any file.

    Raises
    ------
    UserError
        If it is a journal: with what it holds, and how to make a trace of it.
    """
    if is_journal(path):
        journal = open_journal(path)
        msg = (
            f"{path} is a capture that was not finished: {journal.num_rows} tokens x "
            f"{journal.layout.num_layers} layers; `moereplay trace recover {path}` makes a "
            "trace of them"
        )
        raise UserError(msg)


def open_journal(path: str | Path) -> Journal:
    """Read the header and find the whole blocks of a journal.

    Parameters
    ----------
    path
        Of a ``.partial`` file, complete or not.

    Raises
    ------
    UserError
        If it is not there, is no journal, or its header is torn.
    """
    path = Path(path)
    if not regular.exists(path):
        msg = f"{path}: no such file"
        raise UserError(msg)
    if not is_journal(path):
        msg = f"{path}: not the journal of a capture"
        raise UserError(msg)
    head: dict[str, Any] | None = None
    layout = BlockLayout(0, 0, 0, False, False)
    done: dict[str, Any] | None = None
    blocks: list[tuple[int, int]] = []
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        end = file.seek(len(MAGIC))
        while done is None:
            record = _next_record(file, size)
            if record is None:
                break
            kind, start, payload = record
            if kind == b"ROWS" and head is not None:
                (rows,) = struct.unpack_from("<I", payload)
                if len(payload) != 4 + rows * layout.bytes_per_row():
                    break
                blocks.append((start + 4, rows))
            elif kind == b"HEAD" and head is None:
                head = _json(payload)
                layout = _layout(head, path)
            elif kind == b"DONE" and head is not None:
                done = _json(payload)
            else:
                break
            end = file.tell()
    if head is None:
        msg = f"{path}: the journal of a capture that was killed before its first row"
        raise UserError(msg)
    return Journal(path, head, layout, blocks, done, size - end)


def _next_record(file: BinaryIO, size: int) -> tuple[bytes, int, bytes] | None:
    """Kind, offset and payload of the next record, or None if it is not whole."""
    fixed = file.read(_RECORD.size)
    if len(fixed) < _RECORD.size:
        return None
    kind, length, checksum = _RECORD.unpack(fixed)
    start = file.tell()
    if length > size - start or (kind != b"ROWS" and length > MAX_HEAD_BYTES) or length < 2:
        return None
    payload = file.read(length)
    return (kind, start, payload) if zlib.crc32(payload) == checksum else None


def _json(payload: bytes) -> dict[str, Any]:
    """A JSON object; anything else as an empty one."""
    with contextlib.suppress(ValueError):
        value = regular.parse_json(payload)
        if isinstance(value, dict):
            return value
    return {}


def _layout(head: dict[str, Any], path: Path) -> BlockLayout:
    """Layout as the header states it."""
    try:
        layout = BlockLayout(**head["layout"])
        sizes = (layout.num_layers, layout.topk, layout.num_experts)
        if all(isinstance(size, int) and 0 < size <= 0xFFFF for size in sizes):
            return layout
    except (KeyError, TypeError):
        pass
    msg = f"{path}: the header of this journal is damaged"
    raise UserError(msg)
