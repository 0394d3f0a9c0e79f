"""Recorder of steps: rows are gathered into blocks, which go to the journal before memory grows."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from tracegen.capture.batch import StepRows
from tracegen.file.journal import BlockLayout, JournalWriter
from tracegen.shared.errors import UserError
from tracegen.trace import checks
from tracegen.trace.arrays import Array
from tracegen.trace.tables import expert_dtype

MAX_HOLD_S = 5.0
"""Longest time that rows wait in memory while the model runs, in seconds."""
DROPPED = 1
"""Flag of a token that a layer's capacity left without an expert."""
F16_MAX = 65504.0
"""Largest finite half-precision number."""


class Recorder:
    """Collector of the rows of steps, which appends them to a journal.

    Parameters
    ----------
    path
        Of the journal, which must not exist.
    layout
        Sizes of a row.
    layers
        Decoder layer number of each MoE layer, for messages.
    head
        Facts about the capture.
    buffer_bytes
        Rows kept in memory, in bytes.
    """

    def __init__(
        self,
        path: Path,
        layout: BlockLayout,
        layers: list[int],
        head: dict[str, Any],
        buffer_bytes: int,
    ) -> None:
        self.num_rows = 0
        """Rows recorded so far, those in memory included."""
        self._layout = layout
        self._layers = layers
        self._journal = JournalWriter(path, layout, head)
        self._rows_per_block = max(1, buffer_bytes // layout.bytes_per_row())
        # Blocks that wait, and how many records the journal had before them. One value: an
        # interrupt may come at any moment, and they are to be written once.
        self._held: tuple[int, list[dict[str, Array]]] = (self._journal.num_records, [])
        self._held_rows = 0
        self._flushed_s = time.monotonic()

    def add(
        self,
        step: int,
        rows: StepRows,
        sites: list[int],
        ids: list[Array],
        weights: list[Array] | None,
        tokens: Array | None,
    ) -> None:
        """Add one step, in memory; :meth:`settle` says when it is written.

        Parameters
        ----------
        step
            Number of the forward pass.
        rows
            Whose rows these are, and which of them count.
        sites
            Positions of the layers that ran, among all layers.
        ids, weights
            Of each of them, (row, k), padding rows included.
        tokens
            Vocabulary entries of all rows, if they are to be kept.

        Raises
        ------
        UserError
            If an id is not one of an expert, or a token has an expert twice.
        """
        layout, count = self._layout, rows.request.size
        body = (layout.num_layers, count, layout.topk)
        dtype = expert_dtype(layout.num_experts)
        block: dict[str, Array] = {
            "step": np.full(count, step, np.uint32),
            "request": rows.request,
            "position": rows.position,
            "phase": rows.phase,
            "expert_ids": np.full(body, np.iinfo(dtype).max, dtype),
            "flags": np.zeros(body[:2], np.uint8),
        }
        if layout.weights:
            block["gate_weights"] = np.zeros(body, np.float16)
        if layout.token_ids:
            given = np.full(rows.keep.size, -1) if tokens is None else tokens.ravel()
            block["token_id"] = given[rows.keep].astype(np.int32)
        for place, site in enumerate(sites):
            kept = ids[place][rows.keep]
            # -1 and, in transformers' experts, the number of experts stand for "none".
            missing = (kept == -1) | (kept == layout.num_experts)
            self._check(kept, missing, site)
            width = kept.shape[1]
            stored = kept.astype(dtype)
            stored[missing] = np.iinfo(dtype).max
            checks.check_layer(stored, layout.num_experts, self._layers[site], self.num_rows)
            block["expert_ids"][site, :, :width] = stored
            block["flags"][site] = np.where(missing.any(axis=1), DROPPED, 0)
            if weights is not None and layout.weights:
                values = np.where(missing, 0.0, weights[place][rows.keep])
                block["gate_weights"][site, :, :width] = np.clip(values, -F16_MAX, F16_MAX)
        self._held[1].append(block)
        self._held_rows += count
        self.num_rows += count

    def _check(self, ids: Array, missing: Array, site: int) -> None:
        """Refuse ids that no expert has, before they are narrowed."""
        bad = ~missing & ((ids < 0) | (ids > self._layout.num_experts))
        if bad.any():
            row, slot = divmod(int(np.argmax(bad)), ids.shape[1])
            msg = (
                f"layer {self._layers[site]}, row {self.num_rows + row}: expert "
                f"{ids[row, slot]} was routed to; the model has {self._layout.num_experts}"
            )
            raise UserError(msg)

    def settle(self) -> None:
        """Write what is in memory if it is much, or has been there for long."""
        late = time.monotonic() - self._flushed_s > MAX_HOLD_S
        if self._held_rows >= self._rows_per_block or late:
            self.flush()

    def flush(self) -> None:
        """Write the rows in memory as one block."""
        self._flushed_s = time.monotonic()
        before, held = self._held
        body = ("expert_ids", "gate_weights", "flags")
        if held and self._journal.num_records == before:
            self._journal.append(
                {name: np.concatenate([b[name] for b in held], axis=1 if name in body else 0) for name in held[0]}
            )
        self._held = (self._journal.num_records, [])
        self._held_rows = 0

    def finish(self, facts: dict[str, Any]) -> None:
        """Write the rest and close the journal as complete.

        Parameters
        ----------
        facts
            Known only at the end.
        """
        self.flush()
        self._journal.finish(facts)

    def close(self) -> None:
        """Write the rest and close the journal as it is."""
        try:
            self.flush()
        finally:
            self._journal.close()
