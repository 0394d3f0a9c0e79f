"""Request and position of every row of a forward pass. Knows no torch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import DECODE, PREFILL

"""Values of the ``phase`` column."""

PADDING = "padding, masked by the attention mask"
FINISHED = "fed to sequences that had ended, while others of the batch went on"
RECOMPUTED = "positions computed again because generation ran without a cache"
"""Reasons for which rows are dropped."""


@dataclass(frozen=True)
class StepRows:
    """Rows of one forward pass of q columns, batch-major: row r is sequence r // q, column r % q."""

    keep: Array
    """Whether the row is a token of a request, bool (rows of the pass,)."""
    request: Array
    """Request number of each kept row, uint32."""
    position: Array
    """Position in its sequence of each kept row, padding not counted, uint32."""
    phase: Array
    """Of each kept row, uint8."""
    dropped: dict[str, int]
    """Reason to number of rows."""


class SequenceBatch:
    """Sequences that run together, from their prompt to their last token.

    Parameters
    ----------
    first_request
        Number of the first sequence's request; the others follow.
    size
        Sequences.
    prompt_columns
        Columns of the padded prompts, those in a cache included; None if not known,
        in which case a single column after others is a decode step.
    start
        Real tokens of each sequence that a cache already holds, (size,).
    column
        Columns that the cache already holds.
    stop_ids
        Tokens that end a sequence, when fed after the prompt.
    """

    def __init__(
        self,
        first_request: int,
        size: int,
        *,
        prompt_columns: int | None = None,
        start: Array | None = None,
        column: int = 0,
        stop_ids: tuple[int, ...] = (),
    ) -> None:
        self.first_request = first_request
        self.size = size
        self._prompt_columns = prompt_columns
        self._counts = np.zeros(size, np.int64) if start is None else start.astype(np.int64)
        self._column = column
        self._stop_ids = np.array(stop_ids, np.int64)
        self._finished = np.zeros(size, np.bool_)

    @property
    def columns(self) -> int:
        """Columns that the passes so far have covered, those of the cache included."""
        return self._column

    def step(
        self,
        num_sequences: int,
        num_columns: int,
        *,
        mask: Array | None = None,
        tokens: Array | None = None,
        from_start: bool = False,
        phase: int | None = None,
    ) -> StepRows:
        """Rows of one forward pass.

        Parameters
        ----------
        num_sequences, num_columns
            Shape of its input.
        mask
            Whether each input is a real token, bool (sequence, column); None if all are.
        tokens
            Input ids (sequence, column), to see where sequences end.
        from_start
            Whether the pass has no cache and begins with the first column again.
        phase
            Phase of all rows, if it does not follow from the columns.

        Raises
        ------
        UserError
            If the number of sequences is not the batch's, or the mask holds other values than
            0 and 1.
        """
        if num_sequences != self.size:
            msg = (
                f"the batch changed from {self.size} to {num_sequences} sequences within a "
                "generation; sequences that split or reorder cannot be followed"
            )
            raise UserError(msg)
        first = 0 if from_start else self._column
        base = np.zeros_like(self._counts) if from_start else self._counts
        columns = np.arange(first, first + num_columns)
        real = _real(mask, (self.size, num_columns))
        position = base[:, None] + np.cumsum(real, axis=1) - 1
        known = columns < self._column
        ended = self._is_over(columns, tokens)
        keep = real & ~known & ~ended
        shape = keep.shape
        phases = np.broadcast_to(self._phases(columns, phase), shape)
        request = np.broadcast_to(self.first_request + np.arange(self.size)[:, None], shape)
        dropped = {
            PADDING: int((~real & ~known).sum()),
            RECOMPUTED: int(np.broadcast_to(known, shape).sum()),
            FINISHED: int((real & ~known & ended).sum()),
        }
        self._counts = base + real.sum(axis=1)
        self._column = max(self._column, first + num_columns)
        return StepRows(
            keep=keep.ravel(),
            request=request[keep].astype(np.uint32),
            position=position[keep].astype(np.uint32),
            phase=phases[keep].astype(np.uint8),
            dropped={why: rows for why, rows in dropped.items() if rows},
        )

    def _is_over(self, columns: Array, tokens: Array | None) -> Array:
        """Tell whether the sequence had ended at each input, (sequence, column)."""
        shape = (self.size, columns.size)
        if tokens is None or self._prompt_columns is None or not self._stop_ids.size:
            return np.zeros(shape, np.bool_)
        stops = np.isin(tokens, self._stop_ids) & (columns >= self._prompt_columns)
        ended: Array = self._finished[:, None] | np.logical_or.accumulate(stops, axis=1)
        self._finished = ended[:, -1]
        return ended

    def _phases(self, columns: Array, phase: int | None) -> Array:
        """Phase of each column."""
        if phase is not None:
            return np.full(columns.shape, phase)
        if self._prompt_columns is not None:
            return np.where(columns < self._prompt_columns, PREFILL, DECODE)
        decoding = columns.size == 1 and columns[0] > 0
        return np.full(columns.shape, DECODE if decoding else PREFILL)


def _real(mask: Array | None, shape: tuple[int, int]) -> Array:
    """Tell whether each input is a real token; collators that pack may number sequences in a mask."""
    if mask is None:
        return np.ones(shape, np.bool_)
    real = mask.astype(np.bool_)
    if not np.array_equal(mask, real):
        msg = (
            "attention_mask holds other values than 0 and 1: numbers of packed sequences, or what "
            "is added to scores; give it as 0 and 1, or pack with position_ids and no mask"
        )
        raise UserError(msg)
    return real
