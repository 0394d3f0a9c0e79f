"""Following sequences through forward passes: new batch, next chunk, next token.

A model may run in several threads. What a call of generate is about belongs to its thread; the
batch that a cache continues belongs to the cache, whichever thread goes on with it.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegen.capture import generation
from tracegen.capture.batch import Batch, StepRows
from tracegen.capture.packed import PackedBatch, check_lengths, sequence_starts
from tracegen.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import ENCODER, TRAINING

PACKED = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens")
"""Arguments of a forward pass that say its one row holds several sequences."""


@dataclass
class Pass:
    """A forward pass under way."""

    batch: Batch | PackedBatch
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


class _Thread(threading.local):
    """What one thread is at: its call of generate and what that call has run so far."""

    call: generation.Call | None = None
    batch: Batch | None = None
    """Of the call."""
    cache: weakref.ref[Any] | None = None
    """Of the call's batch, once a pass has shown it."""
    encoded: tuple[int, int] | None = None
    """First request and sequences that an encoder has seen and no decoder yet."""


class Follower:
    """Numbers requests, and knows which of them a forward pass continues.

    May be used by several threads at a time.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        """Requests seen so far."""
        self._here = _Thread()
        self._by_cache: weakref.WeakKeyDictionary[Any, Batch | PackedBatch]
        self._by_cache = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def begin_generate(self, call: generation.Call) -> None:
        """A call of generate begins: its first decoder pass starts a batch.

        Parameters
        ----------
        call
            Its meaning for the capture.
        """
        here = self._here
        here.call, here.batch, here.cache = call, None, None

    def end_generate(self) -> None:
        """The call is over; what follows is a batch of its own."""
        here = self._here
        here.call = here.batch = here.cache = None

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
        tokens = given.get("input_ids")
        shaped = given.get("inputs_embeds") if tokens is None else tokens
        if shaped is None or shaped.ndim < 2:
            msg = "a forward pass without input_ids or inputs_embeds of (sequence, position)"
            raise UserError(msg)
        size, columns = int(shaped.shape[0]), int(shaped.shape[1])
        mask = given.get("attention_mask")
        phase = ENCODER if encoder else TRAINING if training else None
        starts = self._starts(given, size, columns)
        if starts is not None:
            packed = PackedBatch(self._number(int(starts.sum())), starts)
            return Pass(packed, size, columns, None, tokens, False, phase)
        if encoder:
            batch = self._new_batch(size)
            self._here.encoded = (batch.first_request, size)
            return Pass(batch, size, columns, self._two(mask, columns), tokens, False, phase)
        cache = given.get("past_key_values")
        known, fresh = self._decoder_batch(size, mask, cache)
        from_start = not fresh and cache is None and self._computed_again(known, columns, given)
        first = 0 if from_start else known.columns
        return Pass(
            batch=known,
            size=size,
            columns=columns,
            mask=self._decoder_mask(mask, size, first, columns),
            tokens=tokens,
            from_start=from_start,
            phase=phase,
        )

    def end(self, done: Pass, output: Any, given: dict[str, Any]) -> None:
        """A decoder's forward pass has succeeded: remember its cache.

        Parameters
        ----------
        done
            The pass.
        output
            Of the pass.
        given
            Its arguments by name.
        """
        cache = given.get("past_key_values")
        if cache is None:
            cache = getattr(output, "past_key_values", None)
        if cache is None:
            return
        here = self._here
        try:
            if here.call is not None:
                here.cache = weakref.ref(cache)
            else:
                with self._lock:
                    self._by_cache[cache] = done.batch
        except TypeError:  # a plain tuple, of the time before cache objects
            return

    def _starts(self, given: dict[str, Any], size: int, columns: int) -> Array | None:
        """Where the sequences of a packed batch begin, None if every row is one sequence."""
        stated = next((name for name in PACKED if given.get(name) is not None), None)
        positions = generation.text_positions(given.get("position_ids"), size, columns)
        if stated is not None and (positions is None or size != 1 or self._here.call is not None):
            msg = (
                f"{stated} is given: packed batches are told apart by position_ids of one row, in "
                "a forward pass of their own; pad them instead"
            )
            raise UserError(msg)
        if positions is None:
            return None
        mask = given.get("attention_mask")
        two = mask if getattr(mask, "ndim", 0) == 2 else None
        if two is None and self._here.call is not None:
            return None  # generate pads; its caches of fixed size get a mask per head
        known = None if two is None else self._two(two, columns)
        starts = sequence_starts(positions, None if known is None else generation.to_numpy(known))
        if starts is not None and generation.past_length(given.get("past_key_values")):
            msg = "position_ids begin again in a pass that goes on from a cache; pad the batch"
            raise UserError(msg)
        if stated is not None:
            check_lengths(stated, generation.to_numpy(given[stated]), starts, columns)
        return starts

    def _computed_again(self, batch: Batch | PackedBatch, columns: int, given: Any) -> bool:
        """Whether a later pass of a generation without cache begins with the first column."""
        if columns > batch.columns and columns > 1:
            return True
        if columns == 1 and given.get("use_cache") is not False:
            return False  # a cache under another name
        msg = (
            f"generate ran the model on {columns} columns after {batch.columns}, without a cache: "
            "this is not the next step of its prompts"
        )
        raise UserError(msg)

    def _decoder_batch(self, size: int, mask: Any, cache: Any) -> tuple[Batch | PackedBatch, bool]:
        """The batch of a decoder's pass, and whether it begins here."""
        here, length = self._here, generation.past_length(cache)
        past = length or 0
        if here.call is not None and here.batch is not None:
            if here.cache is not None and here.cache() is not cache:
                msg = (
                    "generate ran the model on a second cache: something within it runs the model "
                    "again (a logits processor, guidance), and its rows are not the prompts'"
                )
                raise UserError(msg)
            return here.batch, False
        if here.call is None:
            known = self._of_cache(cache)
            # A cache that was cut short or emptied begins something else.
            if known is not None and length in (None, known.columns):
                return known, False
            if isinstance(cache, tuple) and cache:
                msg = "past_key_values is a tuple, which does not say whose it is; pass a Cache"
                raise UserError(msg)
        prompt: int | None = None
        stops: tuple[int, ...] = ()
        if here.call is not None:
            wide = int(mask.shape[1]) if getattr(mask, "ndim", 0) == 2 else None
            prompt, stops = here.call.prompt_columns(past, wide), here.call.stop_ids
        encoded, here.encoded = here.encoded, None
        batch = self._new_batch(
            size,
            first_request=encoded[0] if encoded is not None and encoded[1] == size else None,
            prompt_columns=prompt,
            start=generation.past_counts(mask, size, past),
            column=past,
            stop_ids=stops,
        )
        if here.call is not None:
            here.batch = batch
        return batch, True

    def _of_cache(self, cache: Any) -> Batch | PackedBatch | None:
        """Batch that the cache holds the beginning of, if it was seen."""
        try:
            with self._lock:
                return None if cache is None else self._by_cache.get(cache)
        except TypeError:  # a plain tuple
            return None

    def _number(self, count: int) -> int:
        """First of so many new request numbers."""
        with self._lock:
            first = self.num_requests
            self.num_requests += count
        return first

    def _new_batch(self, size: int, first_request: int | None = None, **facts: Any) -> Batch:
        """A batch of new requests, or of requests an encoder has seen."""
        return Batch(self._number(size) if first_request is None else first_request, size, **facts)

    def _decoder_mask(self, mask: Any, size: int, first: int, columns: int) -> Any:
        """Mask of the inputs that are real: from the pass, else from the call of generate."""
        if getattr(mask, "ndim", 2) == 2 and not isinstance(mask, dict):
            return self._two(mask, columns)
        if self._here.call is not None:
            # Caches of fixed size get a mask per head, where padding cannot be told.
            return self._here.call.mask_part(size, first, columns)
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
