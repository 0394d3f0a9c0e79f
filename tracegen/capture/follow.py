"""Following sequences through forward passes: new batch, next chunk, next token.

A model may run in several threads. What a call of generate is about belongs to its thread; the
batch that a cache continues belongs to the cache, whichever thread goes on with it.
"""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegen.capture import caches, generation
from tracegen.capture.batch import SequenceBatch, StepRows
from tracegen.capture.caches import CacheArgument, CacheLedger
from tracegen.capture.packed_batch import PackedBatch, check_lengths, sequence_starts
from tracegen.capture.prepare import TRIED
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.tables import ENCODER, TRAINING

PACKED = ("cu_seq_lens_q", "cu_seqlens_q", "cu_seq_lens")
"""Arguments of a forward pass that say its one row holds several sequences."""


@dataclass
class ForwardPass:
    """A forward pass under way."""

    batch: SequenceBatch | PackedBatch
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
    handed: list[CacheArgument]
    """What it was given that may be a cache."""

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
            mask=mask if mask is None or isinstance(mask, np.ndarray) else generation.to_numpy(mask),
            tokens=None if self.tokens is None else generation.to_numpy(self.tokens),
            from_start=self.from_start,
            phase=self.phase,
        )


class _Thread(threading.local):
    """State of one thread: its call of generate and what that call has run so far."""

    call: generation.GenerateCall | None = None
    batch: SequenceBatch | None = None
    """Of the call."""
    ledger: CacheLedger | None = None
    """Of the call: the caches of its batch."""
    encoded: tuple[int, int] | None = None
    """First request and sequences that an encoder has seen and no decoder yet."""


class Follower:
    """Numbering of requests, and memory of which of them a forward pass continues.

    May be used by several threads at a time.
    """

    def __init__(self) -> None:
        self.num_requests = 0
        """Requests seen so far."""
        self._here = _Thread()
        self._ledger = CacheLedger()
        self._lock = threading.Lock()

    def begin_generate(self, call: generation.GenerateCall) -> None:
        """Begin a call of generate: its first decoder pass starts a batch.

        Parameters
        ----------
        call
            Its meaning for the capture.

        Raises
        ------
        UserError
            If it is within another call of this thread.
        """
        here = self._here
        if here.call is not None:
            msg = "generate was called within generate: whose rows those are is not known"
            raise UserError(msg)
        here.call, here.batch, here.ledger = call, None, CacheLedger(generate=True)

    def end_generate(self) -> None:
        """End the call of generate; later passes start a batch of their own."""
        here = self._here
        here.call = here.batch = here.ledger = None

    def begin(self, given: dict[str, Any], *, encoder: bool, training: bool) -> ForwardPass:
        """Begin a forward pass: find the requests of its rows.

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
        handed = [] if encoder else self._cache_arguments(given, size)
        starts = self._starts(given, size, columns, handed)
        if starts is not None:
            packed = PackedBatch(self._number(int(starts.sum())), starts)
            return ForwardPass(packed, size, columns, None, tokens, False, phase, handed)
        if encoder:
            batch = self._new_batch(size)
            self._here.encoded = (batch.first_request, size)
            return ForwardPass(batch, size, columns, self._two(mask, columns), tokens, False, phase, [])
        held, past = _batch_of(handed)
        known = self._goes_on(held, handed)
        from_start = False
        if known is None:
            known = self._begun_here(size, columns, mask, past)
        elif held is None:  # in generate, without a cache
            from_start = self._computed_again(known, columns)
        first = 0 if from_start else known.columns
        return ForwardPass(
            batch=known,
            size=size,
            columns=columns,
            mask=self._decoder_mask(mask, size, first, columns),
            tokens=tokens,
            from_start=from_start,
            phase=phase,
            handed=handed,
        )

    def end(self, done: ForwardPass, output: Any) -> None:
        """Remember the caches of a decoder's forward pass that has succeeded.

        Parameters
        ----------
        done
            The pass.
        output
            Of the pass.

        Raises
        ------
        UserError
            If it continued a cache whose content is not known.
        """
        filled = [one for one in done.handed if one.batch is not None or one.changed()]
        found = caches.find([*(one.cache for one in filled), output])
        told = any(one.tells for one in done.handed)
        for one in done.handed:
            if not told and one.state.tensors and any(one.cache is cache for cache in found):
                msg = (
                    f"the {type(one.cache).__name__} that the pass was given holds something, and "
                    f"does not say how many tokens, or was changed since the last pass {TRIED}"
                )
                raise UserError(msg)
        ledger = self._of_caches()
        with self._lock:
            for cache in found:
                ledger.write(cache, done.batch)

    def _cache_arguments(self, given: dict[str, Any], size: int) -> list[CacheArgument]:
        """Arguments of a pass that may be caches."""
        for name, value in given.items():
            if caches.is_tuple_of_layers(value, size):
                msg = f"{name} is a tuple, which does not say whose it is; pass a Cache {TRIED}"
                raise UserError(msg)
        ledger = self._of_caches()
        with self._lock:
            return [ledger.argument_of(cache) for cache in caches.find(given.values())]

    def _of_caches(self) -> CacheLedger:
        """The caches of this thread's call of generate, else those of all loops."""
        here = self._here
        return self._ledger if here.ledger is None else here.ledger

    def _starts(self, given: dict[str, Any], size: int, columns: int, handed: list[CacheArgument]) -> Array | None:
        """Begins of the sequences of a packed batch, None if every row is one sequence."""
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
        if starts is not None and any(one.state.length for one in handed):
            msg = "position_ids begin again in a pass that goes on from a cache; pad the batch"
            raise UserError(msg)
        if stated is not None:
            check_lengths(stated, generation.to_numpy(given[stated]), starts, columns)
        return starts

    def _computed_again(self, batch: SequenceBatch | PackedBatch, columns: int) -> bool:
        """Tell whether a later pass of a generation without cache begins with the first column."""
        if columns > batch.columns:
            return True
        msg = (
            f"generate ran the model on {columns} columns after {batch.columns}, without a cache: "
            f"this is not the next step of its prompts {TRIED}"
        )
        raise UserError(msg)

    def _goes_on(self, held: Any, handed: list[CacheArgument]) -> SequenceBatch | PackedBatch | None:
        """The batch that a pass goes on with, None if one begins here."""
        here = self._here
        if here.call is None or here.batch is None:
            known: SequenceBatch | PackedBatch | None = held
            return known
        if held is not here.batch and (self._of_caches() or any(one.tells for one in handed)):
            msg = (
                "generate ran the model on a second cache: something within it runs the model "
                "again, or changes its cache (a logits processor, guidance), and its rows are "
                f"not the prompts' {TRIED}"
            )
            raise UserError(msg)
        return here.batch

    def _begun_here(self, size: int, columns: int, mask: Any, past: int) -> SequenceBatch:
        """The batch that begins with a pass, on a cache that may hold the beginning of it."""
        here = self._here
        prompt: int | None = None
        stops: tuple[int, ...] = ()
        if here.call is not None:
            prompt, stops = here.call.prompt_columns(past, columns), here.call.stop_ids
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
        return batch

    def _number(self, count: int) -> int:
        """First of so many new request numbers."""
        with self._lock:
            first = self.num_requests
            self.num_requests += count
        return first

    def _new_batch(self, size: int, first_request: int | None = None, **facts: Any) -> SequenceBatch:
        """A batch of new requests, or of requests an encoder has seen."""
        return SequenceBatch(self._number(size) if first_request is None else first_request, size, **facts)

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


def _batch_of(handed: list[CacheArgument]) -> tuple[Any, int]:
    """The batch that the caches of a pass hold, None if it is not known; and how many columns."""
    batches = {id(one.batch): one.batch for one in handed if one.batch is not None}
    lengths = {one.state.length for one in handed if one.batch is None and one.tells}
    if len(batches) + len(lengths) > 1:
        msg = (
            "the pass is given several caches that do not hold the same sequences; which of them "
            f"it goes on from is not known {TRIED}"
        )
        raise UserError(msg)
    return next(iter(batches.values()), None), next(iter(lengths), 0) or 0
