"""Batches: the tokens of one step out of a routing trace.

Public traces were recorded one request at a time, so that which tokens run together is decided
here, never in a scheme. A trace that carries its own ``rank`` column was batched when it was made,
and is replayed as it stands. BATCHES.md has the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from replay.errors import UserError, unknown
from replay.model.work.ragged import firsts

if TYPE_CHECKING:
    from tracegen import RoutingTrace

Phase = Literal["prefill", "decode"]
PHASES: tuple[str, ...] = get_args(Phase)
DEFAULT_TOKENS_PER_RANK = {"prefill": 4096, "decode": 64}
MOST_TOKENS = 1 << 22  # of a step; the least replay of so many at top-8 takes 20 GB
DECODE_ROW = 1  # FORMAT.md: the value of /tokens/phase for a decode row
TRAINING_ROW = 2  # and for a row of a training step

# Running requests are of all ages. The fractional parts of multiples of the golden ratio spread any
# number of slots evenly over the generations, without a random number.
_GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class BatchOrigin:
    """Everything that decided a batch, for the result's provenance.

    Attributes
    ----------
    batching
        How tokens came to run together.
    step
        The step.
    tokens_per_rank
        None where the trace carries its own ranks.
    num_requests, num_slots_sharing_a_request
        Decode of a trace without ranks: the requests it holds, and the slots that run a request
        which another slot runs too.
    num_steps
        Likewise: steps after which every slot has begun again with its first request, so that later
        ones hold no new tokens.
    """

    batching: str
    step: int
    tokens_per_rank: int | None = None
    num_requests: int | None = None
    num_slots_sharing_a_request: int | None = None
    num_steps: int | None = None


@dataclass(frozen=True)
class Batch:
    """The tokens of one step and the rank that owns each.

    Attributes
    ----------
    rows
        int64 (token,): position of each token on the trace's token axis, ordered by owner.
    source_rank
        int32 (token,): the rank that owns the token, ascending.
    num_ranks
        Number of ranks in the group; ranks without a token are allowed.
    phase
        ``"prefill"`` or ``"decode"``.
    origin
        Settings that decided the batch.
    """

    rows: npt.NDArray[np.int64]
    source_rank: npt.NDArray[np.int32]
    num_ranks: int
    phase: str
    origin: BatchOrigin

    @property
    def num_tokens(self) -> int:
        """Tokens over all ranks."""
        return len(self.rows)

    def halves(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cut every rank's tokens in two: places of the first half's tokens, and of the second's.

        Of an odd number the second has one more. A request may be cut, as vLLM does it (at half of
        the tokens); SGLang cuts between requests, unless the parts would differ too much.
        """
        tokens = np.bincount(self.source_rank, minlength=self.num_ranks)
        place = np.arange(self.num_tokens) - firsts(tokens)[self.source_rank]
        is_first = place < (tokens // 2)[self.source_rank]
        return np.flatnonzero(is_first), np.flatnonzero(~is_first)

    def of_tokens(self, places: npt.NDArray[np.int64]) -> Batch:
        """The part of the batch that some of its tokens (token,) are."""
        return replace(self, rows=self.rows[places], source_rank=self.source_rank[places])


def form_batch(
    trace: RoutingTrace,
    *,
    num_ranks: int | None = None,
    default_ranks: int = 8,
    tokens_per_rank: int | None = None,
    phase: str | None = None,
    step: int = 0,
) -> Batch:
    """Form the batch of one step.

    Parameters
    ----------
    trace
        The routing trace; only its token columns are read.
    num_ranks
        Number of ranks to spread the tokens over. None takes the trace's own, or `default_ranks`.
    default_ranks
        Number of ranks if neither the caller nor the trace gives one.
    tokens_per_rank
        Prefill: consecutive tokens of its own requests that each rank takes. Decode: running
        requests on each rank. None takes 4096 (fewer if the trace is short) or 64.
    phase
        ``"prefill"`` or ``"decode"``. None takes decode if every row of the trace is a decode row,
        and prefill otherwise.
    step
        Position of the step, from 0; later steps take the tokens that follow.

    Returns
    -------
    The batch, its tokens ordered by rank.

    Raises
    ------
    UserError
        If the trace cannot give such a batch; the message says which ones it can give.
    """
    if phase is not None and phase not in PHASES:
        raise unknown("phase", phase, PHASES)
    for name, value, least in (
        ("ranks", num_ranks, 1),
        ("tokens per rank", tokens_per_rank, 0),
        ("step", step, 0),
    ):
        if value is not None and value < least:
            message = f"{name} must be at least {least}, not {value}"
            raise UserError(message)
    if trace.tokens.rank is not None:
        return _as_recorded(trace, num_ranks, tokens_per_rank, phase, step)
    is_decode = trace.tokens.phase == DECODE_ROW
    if phase is None:
        phase = "decode" if trace.num_tokens and is_decode.all() else "prefill"
    ranks = num_ranks or default_ranks
    if phase == "prefill":
        return _prefill(trace, ranks, tokens_per_rank, step)
    if not is_decode.any():
        message = "the trace has no decode rows; it can be replayed with phase 'prefill'"
        raise UserError(message)
    return _decode(trace, ranks, tokens_per_rank, step, np.flatnonzero(is_decode))


def _as_recorded(
    trace: RoutingTrace,
    num_ranks: int | None,
    tokens_per_rank: int | None,
    phase: str | None,
    step: int,
) -> Batch:
    has_ranks = trace.num_ranks
    assert trace.tokens.rank is not None
    assert has_ranks is not None
    if num_ranks is not None and num_ranks != has_ranks:
        message = (
            f"the trace was made for {has_ranks} ranks and is replayed as it stands; "
            f"{num_ranks} were asked for. Make one for {num_ranks} with `moereplay trace generate`"
            + (f", or import it with --ranks {num_ranks}" if num_ranks > has_ranks else "")
        )
        raise UserError(message)
    if trace.num_steps == 0:
        message = "the trace has no tokens; there is no step to replay"
        raise UserError(message)
    if step >= trace.num_steps:
        message = f"the trace has {trace.num_steps} steps (0..{trace.num_steps - 1}), not a step {step}"
        raise UserError(message)
    first, last = (int(row) for row in trace.steps_indptr[step : step + 2])
    owner = trace.tokens.rank[first:last].astype(np.int32)
    counts = np.bincount(owner, minlength=has_ranks)
    if tokens_per_rank is not None and (counts != tokens_per_rank).any():
        held = f"{counts.min()} to {counts.max()}" if counts.min() < counts.max() else counts.max()
        message = (
            f"the trace holds {held} tokens per rank in step {step} and is replayed as it stands; "
            f"{tokens_per_rank} were asked for. Make one of them with `moereplay trace generate "
            f"--tokens-per-rank {tokens_per_rank}`"
        )
        raise UserError(message)
    is_decode = bool(last > first) and bool((trace.tokens.phase[first:last] == DECODE_ROW).all())
    recorded_phase = "decode" if is_decode else "prefill"
    if phase is not None and phase != recorded_phase:
        message = (
            f"step {step} of the trace is a {recorded_phase} step; {phase} was asked for. Make one with "
            f"`moereplay trace generate --phase {phase}`"
        )
        raise UserError(message)
    order = np.argsort(owner, kind="stable")
    return Batch(
        rows=first + order,
        source_rank=owner[order],
        num_ranks=has_ranks,
        phase=recorded_phase,
        origin=BatchOrigin(f"as recorded{_in_training(trace, slice(first, last))}", step),
    )


def _in_training(trace: RoutingTrace, rows: slice | npt.NDArray[np.int64]) -> str:
    """Word on rows of training, which run through a layer as those of a prefill do; empty for others."""
    phases = trace.tokens.phase[rows]
    return ", rows of training" if phases.size and (phases == TRAINING_ROW).all() else ""


def _by_request(
    trace: RoutingTrace, rows: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rows ordered by (request, position), and the offset at which each request begins."""
    request, position = trace.tokens.request[rows], trace.tokens.position[rows]
    is_new = request[1:] > request[:-1]
    is_next = (request[1:] == request[:-1]) & (position[1:] >= position[:-1])
    if not (is_new | is_next).all():  # most traces hold their requests one after another
        order = np.lexsort((position, request))
        rows, request = rows[order], request[order]
        is_new = request[1:] != request[:-1]
    begins = np.flatnonzero(is_new) + 1
    return rows, np.concatenate(([0] if len(rows) else [], begins, [len(rows)])).astype(np.int64)


def tokens_of_each(trace: RoutingTrace, num_ranks: int) -> int:
    """Tokens that every rank has at least, where requests are dealt to the ranks in turn."""
    _, indptr = _by_request(trace, np.arange(trace.num_tokens, dtype=np.int64))
    return int(_deal(np.diff(indptr), num_ranks)[1].min())


def steps_in(trace: RoutingTrace, first: Batch) -> int:
    """Count the steps of a trace: those that were recorded, or as many as its tokens fill.

    Parameters
    ----------
    first
        The batch of its first step; later ones are as large, where they are made.
    """
    if trace.tokens.rank is not None:
        return trace.num_steps
    if first.phase == "prefill":
        each = first.origin.tokens_per_rank
        return tokens_of_each(trace, first.num_ranks) // each if each else 1
    tokens = int((trace.tokens.phase == DECODE_ROW).sum())
    return max(tokens // max(first.num_tokens, 1), 1)


def _deal(lengths: npt.NDArray[np.int64], num_ranks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Rank of every token of the requests, one after another, and tokens of every rank."""
    owner = np.repeat(np.arange(len(lengths)) % num_ranks, lengths)
    return owner, np.bincount(owner, minlength=num_ranks)


def _prefill(trace: RoutingTrace, num_ranks: int, tokens_per_rank: int | None, step: int) -> Batch:
    """Deal the requests to the ranks in turn; each rank takes consecutive tokens of its own."""
    rows, indptr = _by_request(trace, np.arange(trace.num_tokens, dtype=np.int64))
    lengths = np.diff(indptr)
    owner, available = _deal(lengths, num_ranks)
    least = int(available.min())
    wanted = tokens_per_rank
    if wanted is None:
        wanted = min(DEFAULT_TOKENS_PER_RANK["prefill"], least // (step + 1))
        if not wanted and len(rows):
            message = (
                f"prefill step {step} on {num_ranks} ranks leaves no token for some of them: the "
                f"trace has {len(lengths)} requests of {len(rows)} tokens; fewer ranks (--ranks) "
                "have some"
            )
            raise UserError(message)
    if wanted * (step + 1) > least:
        message = (
            f"prefill step {step} on {num_ranks} ranks can take at most {least // (step + 1)} "
            f"tokens per rank from the {len(lengths)} requests of this trace; "
            f"{wanted} were asked for"
        )
        raise UserError(message)
    order = np.argsort(owner, kind="stable")
    begins = firsts(available) + step * wanted
    chosen = order[(begins[:, None] + np.arange(wanted)).ravel()]
    return Batch(
        rows=rows[chosen],
        source_rank=np.repeat(np.arange(num_ranks, dtype=np.int32), wanted),
        num_ranks=num_ranks,
        phase="prefill",
        origin=BatchOrigin(
            f"consecutive tokens of each rank's own requests{_in_training(trace, chosen)}",
            step,
            tokens_per_rank=wanted,
        ),
    )


def _decode(
    trace: RoutingTrace,
    num_ranks: int,
    tokens_per_rank: int | None,
    step: int,
    decode_rows: npt.NDArray[np.int64],
) -> Batch:
    """Take one token of each running request; a slot goes to its next request when one ends.

    Slot s runs requests s, s + S, s + 2S, ... of the S slots, beginning in their middle (see
    `_GOLDEN`), so that the batch holds requests of all ages as in a server that has run for a
    while. With fewer requests than slots, several slots run the same request at different
    positions.
    """
    wanted = DEFAULT_TOKENS_PER_RANK["decode"] if tokens_per_rank is None else tokens_per_rank
    if num_ranks * wanted > MOST_TOKENS:
        message = (
            f"a step has at most {MOST_TOKENS} tokens, {MOST_TOKENS // num_ranks} on each of "
            f"{num_ranks} ranks; {wanted} per rank were asked for"
        )
        raise UserError(message)
    rows, indptr = _by_request(trace, decode_rows)
    num_requests, num_slots = len(indptr) - 1, num_ranks * wanted
    slots = np.arange(num_slots, dtype=np.int64)
    if num_requests >= num_slots:
        queue = np.arange(num_requests, dtype=np.int64)
        queue = queue[np.argsort(queue % max(num_slots, 1), kind="stable")]
        per_slot = np.bincount(queue % max(num_slots, 1), minlength=num_slots)[:num_slots]
    else:
        queue = slots % num_requests
        per_slot = np.ones(num_slots, np.int64)
    ends = np.cumsum(np.diff(indptr)[queue])  # of each queued request, on one axis for all slots
    last = np.cumsum(per_slot) - 1
    slot_end = ends[last] if num_slots else slots
    slot_begin = np.concatenate(([0], slot_end[:-1])) if num_slots else slots
    length = slot_end - slot_begin
    age = np.floor((slots * _GOLDEN % 1.0) * length).astype(np.int64)
    target = slot_begin + (age + step) % np.maximum(length, 1)
    which = np.searchsorted(ends, target, side="right")
    begin_of = ends - np.diff(indptr)[queue]
    chosen = indptr[queue[which]] + target - begin_of[which]
    return Batch(
        rows=rows[chosen],
        source_rank=np.repeat(np.arange(num_ranks, dtype=np.int32), wanted),
        num_ranks=num_ranks,
        phase="decode",
        origin=BatchOrigin(
            "one token of each running request",
            step,
            tokens_per_rank=wanted,
            num_requests=num_requests,
            num_slots_sharing_a_request=max(0, num_slots - num_requests),
            num_steps=int(length.max(initial=0)),
        ),
    )
