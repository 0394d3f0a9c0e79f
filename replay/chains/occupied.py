"""What two streams of every GPU are busy with, and when both are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

if TYPE_CHECKING:
    from replay.model.machine.machine import Ints

Occupation = Literal["attention", "dense", "experts", "rows"]
"""What a stream is busy with: attention with norms and gate, shared experts, other kernels of the
MoE layer that compute, or those that move rows, in a stream of their own."""

COMPUTE: tuple[Occupation, ...] = tuple(one for one in get_args(Occupation) if one != "rows")

DENSE: tuple[Occupation, ...] = ("attention", "dense")


class Span(NamedTuple):
    """Kernels of a stream of every GPU, which runs nothing else meanwhile.

    Attributes
    ----------
    of
        What they do.
    begun, ended
        (rank,): tasks behind which they run, and of their end.
    """

    of: Occupation
    begun: Ints
    ended: Ints


class Timed(NamedTuple):
    """When kernels of a `Span` ran: two (rank,), in picoseconds."""

    of: Occupation
    begun_ps: Ints
    ended_ps: Ints


class Occupied(NamedTuple):
    """Times of every GPU, (rank,) in picoseconds.

    Attributes
    ----------
    busy_ps
        By what a stream is busy with. A stream does one thing at a time, and is busy from when
        nothing before holds its kernels back until they have ended: with gaps between kernels, and
        waiting for other GPUs within one.
    both_ps
        In which both streams are busy.
    """

    busy_ps: dict[Occupation, Ints]
    both_ps: Ints

    @property
    def computing_ps(self) -> Ints:
        """(rank,): time in which the stream that computes is busy."""
        return sum((self.busy_ps[one] for one in COMPUTE[1:]), self.busy_ps[COMPUTE[0]])


def occupied(spans: Iterable[Timed], num_ranks: int) -> Occupied:
    """Add up what streams are busy with; spans of one stream do not overlap."""
    nothing = np.zeros(num_ranks, np.int64)
    busy: dict[Occupation, Ints] = dict.fromkeys(get_args(Occupation), nothing)
    computing: list[tuple[Ints, Ints]] = [(nothing, nothing)]
    moving: list[tuple[Ints, Ints]] = []
    for of, begun, ended in spans:
        busy[of] = busy[of] + (ended - begun)
        (moving if of == "rows" else computing).append((begun, ended))
    begun, ended = (np.array(times) for times in zip(*computing, strict=True))
    both = nothing
    for first, last in moving:
        common = np.minimum(ended, last) - np.maximum(begun, first)
        both = both + np.maximum(common, 0).sum(axis=0)
    return Occupied(busy, both)
