"""Trace files read from HDF5, whole or in part.

A file from someone else is not trusted: before anything is read or allocated, each
object's link, type, shape, filters and stored size are checked (:mod:`tracegen.file.guard`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np

from tracegen.file import header, part
from tracegen.file.deferred_file import DeferredFile
from tracegen.file.guard import Guard, damage
from tracegen.file.journal import refuse_journal
from tracegen.file.schema import COLUMNS, columns_of
from tracegen.shared import regular
from tracegen.shared.errors import UserError
from tracegen.trace import checks, content_id, provenance
from tracegen.trace.arrays import Array
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import RequestTable, TokenTable

_Calls = Callable[[], contextlib.AbstractContextManager[None]]

MAX_LOAD_BYTES = 4 * 2**30
"""Decoded bytes that reading allocates unless it is told that more is meant."""


class TraceFile:
    """An open trace file: its header now, its body on request. Made by :func:`open_trace`.

    Parameters
    ----------
    file
        Open for reading.
    name
        Name of the source in errors.
    file_bytes
        Its size.
    calls
        Surrounds what calls HDF5, and raises what failed below it; none for a file of the system.
    """

    def __init__(self, file: h5py.File, name: str, file_bytes: int, calls: _Calls = contextlib.nullcontext) -> None:
        self._calls = calls
        self.name = name
        """Path, or how to call the file in messages."""
        self.file_bytes = file_bytes
        """Size of the file, in bytes."""
        self._guard = Guard(file, file_bytes, h5py.HardLink, h5py.Group, h5py.Dataset)
        root = self._guard.attributes("", header.ROOT)
        header.check_version(root)
        self.content_id: str = root["content_sha256"]
        """Identity of the whole trace, as stored; :meth:`verify` and :meth:`read` recompute it."""
        self.model = header.read_model(self._guard.attributes("model", header.MODEL))
        """Header of the model that was routed."""
        self._columns = {path: self._guard.column(column) for path, column in COLUMNS.items()}
        ids = self._columns["routing/expert_ids"]
        self.num_layers, self.num_tokens, self.topk = (int(size) for size in ids.shape)
        if self._guard.sizes["expert"] != self.model.num_experts:
            msg = f"/summary/load is for {self._guard.sizes['expert']} experts, /model says {self.model.num_experts}"
            raise UserError(msg)
        slots = self._guard.attributes("routing/expert_ids", header.SLOTS)
        weights = self._guard.attributes("routing/gate_weights", header.WEIGHTS) if self.has_gate_weights else {}
        ranks = self._guard.attributes("tokens/rank", header.RANKS) if self.has_rank else {}
        self.info = header.read_info(root, slots, weights, ranks)
        """Origin of the trace, and how its slots are to be read."""

    @property
    def num_experts(self) -> int:
        """Routed experts of a layer."""
        return self.model.num_experts

    @property
    def num_steps(self) -> int:
        """Steps with at least one token."""
        return self._guard.sizes["step"]

    @property
    def has_gate_weights(self) -> bool:
        """Tell whether gate weights were recorded."""
        return self._columns["routing/gate_weights"] is not None

    @property
    def has_rank(self) -> bool:
        """Tell whether every token has a source GPU."""
        return self._columns["tokens/rank"] is not None

    @property
    def num_ranks(self) -> int | None:
        """Source GPUs, idle ones too, as the ranks of all tokens tell; None without ranks."""
        if not self.has_rank:
            return None
        rank = self._whole("tokens/rank")
        return max(self.info.num_ranks, int(rank.max()) + 1 if rank.size else 0)

    @property
    def has_token_ids(self) -> bool:
        """Tell whether vocabulary entries were kept: they are the text."""
        return self._columns["tokens/token_id"] is not None

    @property
    def moe_layer_index(self) -> Array:
        """Decoder layer number of each MoE layer, uint16 (layer,)."""
        return self._whole("model/moe_layer_index")

    @property
    def load_per_expert(self) -> Array:
        """Tokens that chose each expert, uint64 (layer, expert), as the summary says."""
        return self._whole("summary/load")

    def read(
        self,
        layers: Sequence[int] | None = None,
        tokens: slice | None = None,
        max_bytes: int = MAX_LOAD_BYTES,
    ) -> RoutingTrace:
        """Read the trace, or part of it, touching only the chunks that hold that part.

        Parameters
        ----------
        layers
            Positions among the MoE layers, ascending; None for all.
        tokens
            Token rows, without stride; None for all.
        max_bytes
            Refuse to allocate more than this, in bytes.

        Returns
        -------
        With every value read checked. What is not read cannot be: a part has a content id of its
        own, and only of a whole trace is the file's compared.

        Raises
        ------
        UserError
            If the file is damaged, its values break an invariant, its content is not what its id
            says, or the part does not exist.
        """
        chosen = part.chosen_layers(layers, self.num_layers, self.name)
        rows = part.chosen_rows(tokens, self.num_tokens, self.name)
        self._check_memory(len(chosen), rows.stop - rows.start, max_bytes)
        with self._reading(self.name):
            index = self._whole("model/moe_layer_index")
            checks.check_layer_index(index)
            columns: dict[str, Any] = {column.field: self._rows(column.path, rows) for column in columns_of("tokens")}
            table = TokenTable(**columns)
            indptr = checks.boundaries(table.step)
            if tokens is None:
                checks.check_steps(table.step, self._whole("steps/indptr"))
            checks.check_phase(table.phase)
            requests = {c.field: self._text_or_whole(c.path) for c in columns_of("requests")}
            ids = self._body("routing/expert_ids", chosen, rows, index)
            assert ids is not None  # required by the schema
            trace = RoutingTrace(
                model=self.model,
                moe_layer_index=index[chosen],
                expert_ids=ids,
                gate_weights=self._body("routing/gate_weights", chosen, rows, index),
                flags=self._body("routing/flags", chosen, rows, index),
                tokens=table,
                steps_indptr=indptr,
                requests=RequestTable(**requests),
                info=self.info,
                stored_content_id=self.content_id,
            )
        if layers is None and tokens is None:
            self._check_content(trace.content_id)
        return trace

    def verify(self) -> None:
        """Read everything, one layer at a time, and check every value and the content id.

        Raises
        ------
        UserError
            If an invariant is broken, or the content is not what was written.
        """
        load = self.load_per_expert
        for layer in range(self.num_layers):
            one = self.read([layer])
            if not np.array_equal(one.load_per_expert()[0], load[layer]):
                number = int(one.moe_layer_index[0])
                msg = f"{self.name}: /summary/load of layer {number} is not what the ids say"
                raise UserError(msg)
        with self._reading(self.name):
            provenance.check(self.info.provenance)
            found = content_id.digest(content_id.header(self.model, self.info), self._parts())
        self._check_content(found)

    @contextlib.contextmanager
    def _reading(self, where: str) -> Iterator[None]:
        """Calls of HDF5: what goes wrong in them, or below them, in one line."""
        with self._calls(), damage(where):
            yield

    def _check_content(self, found: str) -> None:
        """Refuse a content that is not the one that the file names."""
        if found != self.content_id:
            msg = f"{self.name}: content does not match content_sha256: it was changed or damaged"
            raise UserError(msg)

    def _parts(self) -> Iterator[content_id.Part]:
        """Arrays that the content id covers, one layer at a time."""
        for path, dataset in self._columns.items():
            if dataset is None or path in ("steps/indptr", "summary/load"):
                continue
            if len(dataset.shape) > 1:
                blocks = (dataset[layer] for layer in range(self.num_layers))
                yield path, dataset.dtype, dataset.shape, blocks
            else:
                array = self._text_or_whole(path)
                assert array is not None
                yield path, array.dtype, array.shape, (array,)

    def _check_memory(self, num_layers: int, num_rows: int, max_bytes: int) -> None:
        """Refuse to allocate more than the caller means."""
        wanted = 0
        for path, dataset in self._columns.items():
            if dataset is None or path.startswith("summary"):
                continue
            fraction = num_layers * num_rows if len(dataset.shape) > 1 else num_rows
            whole = self.num_layers * self.num_tokens if len(dataset.shape) > 1 else self.num_tokens
            size = dataset.size * dataset.dtype.itemsize * (4 if dataset.dtype.kind == "S" else 1)
            per_token = not path.startswith(("requests", "steps", "model"))
            wanted += size * fraction // max(1, whole) if per_token else size
        if wanted > max_bytes:
            msg = (
                f"{self.name}: needs {wanted / 1e9:.1f} GB of memory, the limit is "
                f"{max_bytes / 1e9:.1f} GB; read fewer layers or tokens, or raise max_bytes"
            )
            raise UserError(msg)

    def _body(self, path: str, layers: list[int], rows: slice, index: Array) -> Array | None:
        """Part of an array over (layer, token, ...), each layer checked as it arrives."""
        dataset = self._columns[path]
        if dataset is None:
            return None
        shape = (len(layers), rows.stop - rows.start, *dataset.shape[2:])
        out = np.empty(shape, dataset.dtype.newbyteorder("="))
        for i, layer in enumerate(layers):
            with self._reading(f"{self.name}: /{path}"):
                out[i] = dataset[layer, rows]
            if path == "routing/expert_ids":
                checks.check_layer(out[i], self.num_experts, int(index[layer]), rows.start)
            elif path == "routing/gate_weights":
                checks.check_weights(out[i], int(index[layer]), rows.start)
            else:
                checks.check_flags(out[i], int(index[layer]), rows.start)
        return out

    def _rows(self, path: str, rows: slice) -> Array | None:
        """Part of a column over (token,)."""
        dataset = self._columns[path]
        if dataset is None:
            return None
        with self._reading(f"{self.name}: /{path}"):
            column: Array = dataset[rows]
        return column.astype(column.dtype.newbyteorder("="), copy=False)

    def _whole(self, path: str) -> Array:
        """Read a required array entirely."""
        with self._reading(f"{self.name}: /{path}"):
            array: Array = self._columns[path][...]
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    def _text_or_whole(self, path: str) -> Array | None:
        """Read an optional column entirely, text decoded."""
        if self._columns[path] is None:
            return None
        array = self._whole(path)
        if array.dtype.kind != "S":
            return array
        with self._reading(f"{self.name}: /{path}"):
            return np.array([text.decode("utf-8") for text in array.tolist()], dtype=np.str_)


@contextlib.contextmanager
def open_trace(source: str | Path | BinaryIO) -> Iterator[TraceFile]:
    """Open a trace file and read its header, not its body.

    Parameters
    ----------
    source
        Path, or a binary file object that can seek.

    Yields
    ------
    The open file.

    Raises
    ------
    UserError
        If it cannot be read or is not a trace this reader knows.
    """
    opened: Path | DeferredFile
    calls: _Calls
    name = str(source) if isinstance(source, str | Path) else getattr(source, "name", "stream")
    if isinstance(source, str | Path):
        path = Path(source)
        if reason := regular.why_no_file(path):
            msg = f"{name}: {reason}"
            raise UserError(msg)
        refuse_journal(path)
        opened, size, calls = path, path.stat().st_size, contextlib.nullcontext
    else:
        with damage(name):
            size = source.seek(0, os.SEEK_END)
        opened = DeferredFile(source, name, size)
        calls = opened.raising
    with contextlib.ExitStack() as stack:
        with calls(), damage(name):
            # Closed whatever comes: what HDF5 closes at the end of the process calls back too late.
            file = stack.enter_context(h5py.File(opened, "r"))
            trace_file = TraceFile(file, name, size, calls)
        yield trace_file
