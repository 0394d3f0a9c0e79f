"""Following sequences through forward passes: new batch, next chunk, next token."""

from __future__ import annotations

import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegen.capture import generation
from tracegen.capture.batch import Batch, StepRows
from tracegen.errors import UserError
from tracegen.trace.tables import ENCODER, TRAINING

PACKED = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens")
"""Arguments of a forward pass that say its one row holds several sequences."""


@dataclass
class Pass:
    """A forward pass under way."""

    batch: Batch
    size: int
    """Sequences of its input."""
    columns: int
    """Columns of its input."""
    mask: Any
    """Tensor or array (sequence, column), None if everything is real."""
    tokens: Any
    """Input ids (sequence, column), or None."""
    from_start: bool
    """Whether it computes everything again, having no cache."""
    phase: int | None
    """Phase of all rows, if it does not follow from the columns."""

    @property
    def num_rows(self) -> int:
        """Rows that every layer must route."""
        return self.size * self.columns

    def rows(self) -> StepRows:
        """Requests and positions of the rows; called once, when the pass has succeeded."""
        mask = self.mask
        return self.batch.step(
            self.size,
            self.columns,
            mask=mask
            if mask is None or isinstance(mask, np.ndarray)
            else generation.to_numpy(mask),
            tokens=None if self.tokens is None else generation.to_numpy(self.tokens),
            from_start=self.from_start,
            phase=self.phase,
        )


class Follower:
    """Numbers requests, and knows which of them a forward pass continues."""

    def __init__(self) -> None:
        self.num_requests = 0
        """Requests seen so far."""
        self._call: generation.Call | None = None
        self._batch: Batch | None = None
        self._cache: weakref.ref[Any] | None = None
        self._encoded: tuple[int, int] | None = None

    def begin_generate(self, call: generation.Call) -> None:
        """A call of generate begins: its first decoder pass starts a batch.

        Parameters
        ----------
        call
            Its meaning for the capture.
        """
        self._call, self._batch = call, None

    def end_generate(self) -> None:
        """The call is over; what follows is a batch of its own."""
        self._call = self._batch = self._cache = None

    def begin(self, given: dict[str, Any], *, encoder: bool, training: bool) -> Pass:
        """A forward pass begins.

        Parameters
        ----------
        given
            Its arguments by name.
        encoder
            Whether it is an encoder's.
        training
            Whether gradients are wanted.

        Raises
        ------
        UserError
            If it is one whose rows cannot be assigned to requests.
        """
        packed = [name for name in PACKED if given.get(name) is not None]
        if packed:
            msg = f"{packed[0]} is given: packed batches cannot be taken apart; pad them instead"
            raise UserError(msg)
        tokens = given.get("input_ids")
        shaped = given.get("inputs_embeds") if tokens is None else tokens
        if shaped is None or shaped.ndim < 2:
            msg = "a forward pass without input_ids or inputs_embeds of (sequence, position)"
            raise UserError(msg)
        size, columns = int(shaped.shape[0]), int(shaped.shape[1])
        mask = given.get("attention_mask")
        if encoder:
            batch = self._new_batch(size)
            self._encoded = (batch.first_request, size)
            return Pass(batch, size, columns, self._two(mask, columns), tokens, False, ENCODER)
        cache = given.get("past_key_values")
        batch, fresh = self._decoder_batch(size, mask, cache)
        from_start = not fresh and cache is None and columns > 1 and columns > batch.columns
        first = 0 if from_start else batch.columns
        return Pass(
            batch=batch,
            size=size,
            columns=columns,
            mask=self._decoder_mask(mask, size, first, columns),
            tokens=tokens,
            from_start=from_start,
            phase=TRAINING if training else None,
        )

    def end(self, output: Any, given: dict[str, Any]) -> None:
        """A decoder's forward pass has succeeded: remember its cache.

        Parameters
        ----------
        output
            Of the pass.
        given
            Its arguments by name.
        """
        cache = given.get("past_key_values")
        if cache is None:
            cache = getattr(output, "past_key_values", None)
        try:
            self._cache = None if cache is None else weakref.ref(cache)
        except TypeError:  # a plain tuple, of the time before cache objects
            self._cache = None

    def _decoder_batch(self, size: int, mask: Any, cache: Any) -> tuple[Batch, bool]:
        """The batch of a decoder's pass, and whether it begins here."""
        if self._batch is not None:
            same = cache is not None and self._cache is not None and self._cache() is cache
            if self._call is not None or same:
                return self._batch, False
        past = generation.past_length(cache)
        prompt: int | None = None
        stops: tuple[int, ...] = ()
        if self._call is not None:
            wide = int(mask.shape[1]) if getattr(mask, "ndim", 0) == 2 else None
            prompt, stops = self._call.prompt_columns(past, wide), self._call.stop_ids
        encoded, self._encoded = self._encoded, None
        known = encoded[0] if encoded is not None and encoded[1] == size else None
        self._batch = self._new_batch(
            size,
            first_request=known,
            prompt_columns=prompt,
            start=generation.past_counts(mask, size, past),
            column=past,
            stop_ids=stops,
        )
        return self._batch, True

    def _new_batch(self, size: int, first_request: int | None = None, **facts: Any) -> Batch:
        """A batch of new requests, or of requests an encoder has seen."""
        if first_request is None:
            first_request = self.num_requests
            self.num_requests += size
        return Batch(first_request, size, **facts)

    def _decoder_mask(self, mask: Any, size: int, first: int, columns: int) -> Any:
        """Mask of the inputs that are real: from the pass, else from the call of generate."""
        if getattr(mask, "ndim", 2) == 2 and not isinstance(mask, dict):
            return self._two(mask, columns)
        if self._call is not None:
            # Caches of fixed size get a mask per head, where padding cannot be told.
            return self._call.mask_part(size, first, columns)
        warnings.warn(
            "attention_mask has not two dimensions: every input is taken for a real token",
            stacklevel=2,
        )
        return None

    def _two(self, mask: Any, columns: int) -> Any:
        """Last columns of a mask (sequence, column), None if it is not there or too short."""
        if mask is None or mask.shape[1] < columns:
            return None
        return mask[:, -columns:]
