"""Rows that a reader hands on, before they are checked and become a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array, place_in_group
from tracegen.trace.tables import DECODE, PREFILL

if TYPE_CHECKING:
    from tracegen.importers.options import ImportOptions
    from tracegen.trace.routing import RoutingTrace

UNTOLD = "of speculative decoding, accepted and rejected ones, which cannot be told apart"
"""Said of draft tokens, which are left out."""


class ImportedTrace(NamedTuple):
    """A trace, and what to tell the user about the dump."""

    trace: RoutingTrace
    notices: list[str]
    """Sentences with numbers: what looks wrong, what was dropped."""


@dataclass
class RoutedRows:
    """Rows as a reader found them."""

    ids: Array
    """Expert ids, integer (token, layer, k); -1 where a slot is empty."""
    request: Array
    """Request of each row, integer (token,)."""
    position: Array
    """Position in the request, integer (token,)."""
    phase: Array
    """uint8 (token,)."""
    step: Array
    """Forward pass of each row, integer, never falling (token,)."""
    layers: tuple[int, ...] | None = None
    """Decoder layer numbers if the dump has them."""
    left_out: tuple[int, ...] = ()
    """Decoder layers that the dump has, and in which it recorded nothing; not in ``ids``."""
    weights: Array | None = None
    """Gate weights, float (token, layer, k)."""
    rank: Array | None = None
    """Source GPU, integer (token,)."""
    num_ranks: int | None = None
    """Source GPUs, those without a token included; None where ``rank`` tells."""
    ranks_recorded: bool = False
    """Whether the dump says how many ranks there were."""
    num_experts: int | None = None
    """If the dump says so."""
    empty: int | None = None
    """Largest value of unsigned ids: an empty slot, where it is no expert."""
    labels: list[str] | None = None
    """Category of each request."""
    datasets: list[str] | None = None
    """Data set of each request."""
    order: str = "native"
    """Order of slots that the dump promises."""
    semantics: str = ""
    """Meaning of a weight."""
    drawn: bool = False
    """Whether the rows were drawn from counts."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Reason to number of rows."""
    notices: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """Anything of the dump worth keeping in the provenance, JSON-ready."""

    def keep(self, rows: Array, why: str) -> None:
        """Drop the other rows, and remember how many and why.

        Parameters
        ----------
        rows
            Whether each row stays, bool (token,).
        why
            Reason for those that do not.
        """
        gone = int((~rows).sum())
        if not gone:
            return
        self.dropped[why] = self.dropped.get(why, 0) + gone
        for name in ("ids", "request", "position", "phase", "step", "weights", "rank"):
            array = getattr(self, name)
            if array is not None:
                setattr(self, name, array[rows])


class Sequence(NamedTuple):
    """Rows of one request."""

    ids: Array
    """Expert ids, integer (token, layer, k)."""
    prompt_len: int | None = None
    """Tokens of its prompt; None if that is not known."""
    begin: int = 0
    """Position of its first row."""


def from_sequences(sequences: list[Sequence], options: ImportOptions, **facts: Any) -> RoutedRows:
    """Rows of dumps that hold one array per request.

    Parameters
    ----------
    sequences
        Requests, in order.
    options
        ``prompts`` or ``prompt_len`` say where prompts end that a request does not say itself;
        where nothing does, all its rows are prefill, and that is told.
    **facts
        Further fields of :class:`RoutedRows`.

    Raises
    ------
    UserError
        If the sequences differ in layers or slots, or the prompts are not theirs.
    """
    shapes = {sequence.ids.shape[1:] for sequence in sequences}
    if len(shapes) != 1:
        msg = f"requests differ in (layers, slots): {sorted(shapes)}"
        raise UserError(msg)
    lengths = np.array([len(sequence.ids) for sequence in sequences])
    begins = np.array([sequence.begin for sequence in sequences])
    place = place_in_group(lengths)
    request = np.repeat(np.arange(len(lengths)), lengths)
    position = begins[request] + place
    known = prompt_lengths([sequence.prompt_len for sequence in sequences], (begins + lengths).tolist(), options)
    # Without a length, the prompt is all there is.
    prompts = np.array([end if one is None else one for one, end in zip(known, begins + lengths, strict=True)])
    phase = np.where(position < prompts[request], PREFILL, DECODE).astype(np.uint8)
    # One request at a time: a prompt is one pass, each later token another.
    step = np.cumsum((place == 0) | (phase == DECODE)) - 1
    routed = RoutedRows(
        ids=np.concatenate([sequence.ids for sequence in sequences]).astype(np.int64),
        request=request,
        position=position,
        phase=phase,
        step=step,
        **facts,
    )
    unknown = [one is None for one in known]
    if any(unknown):
        routed.notices.append(
            f"{sum(unknown)} of {len(unknown)} requests do not say where their prompt ends: all "
            f"their {int(lengths[unknown].sum())} rows were taken for one prefill (--prompts or "
            "--prompt-len says otherwise)."
        )
    routed.notices.append(
        "How requests were batched is not recorded: steps were assumed to be one request at a "
        "time, a prompt one step and every later token another."
    )
    return routed


def prompt_lengths(own: list[int | None], ends: list[int], options: ImportOptions) -> list[int | None]:
    """Tokens of the prompt of each request: as it says itself, else as the user does.

    Parameters
    ----------
    own
        As each request says it, in order.
    ends
        Position behind the last row of each request.
    options
        ``prompts`` and ``prompt_len``.

    Raises
    ------
    UserError
        If there are not as many prompts as requests, or one contradicts its request.
    """
    from tracegen.importers import files

    if options.prompts is None:
        if None in own and options.prompt_len is not None:
            for number, (one, end) in enumerate(zip(own, ends, strict=True)):
                _refuse_longer(options.prompt_len, end, one, f"--prompt-len, request {number}")
        return [options.prompt_len if one is None else one for one in own]
    given = files.load_prompt_lengths(options.prompts, len(own))
    if len(given) != len(own):
        msg = f"{options.prompts}: {len(given)} prompts for {len(own)} requests"
        raise UserError(msg)
    for number, (one, other, end) in enumerate(zip(own, given, ends, strict=True)):
        if one is not None and one != other:
            msg = f"{options.prompts}: prompt {number} has {other} tokens, its request says {one}"
            raise UserError(msg)
        _refuse_longer(other, end, one, f"--prompts {options.prompts}, request {number}")
    return list(given)


def _refuse_longer(given: int, end: int, own: int | None, where: str) -> None:
    """Refuse a prompt that goes on behind the last row; the last token may have none."""
    if own is None and given > end + 1:
        msg = f"{where}: a prompt of {given} tokens, and rows end at position {end - 1}: at most {end + 1} tokens fit"
        raise UserError(msg)


def first_position(rows: int, start: int | None, tokens: int | None, prompt: int | None, where: str) -> int:
    """Position of the first row of a request whose last token is never routed.

    Parameters
    ----------
    rows
        Rows of the request.
    start
        Position as stated; None if it is not.
    tokens
        Tokens of the request, to check the rows by; None if that is not known.
    prompt
        Tokens of its prompt, beyond which no first row can lie.
    where
        For errors.

    Raises
    ------
    UserError
        If there are more or fewer rows than are due.
    """
    begin = start or 0
    if tokens is None or begin + rows == tokens - 1:
        return begin
    asked = f" from position {begin}" if begin else ""
    msg = f"{where}: {rows} rows for {tokens} tokens{asked}; {tokens - 1 - begin} are due"
    missing = tokens - 1 - rows
    if start is None and prompt is not None and 0 < missing <= prompt:
        msg += f". Were they asked for with routed_experts_start_len? Then give --start-len {missing}"
    raise UserError(msg)
