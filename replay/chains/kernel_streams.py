"""Streams of every GPU that stages of a scheme share, and what keeps them busy.

Kernels of a stream follow one another. Those that compute have one stream. Those that move rows
have another, with SMs of their own from the first to the last layer, so that kernels that compute
have the rest; or, where the scheme has hooks, they are in the first stream too, and rows travel
while no kernel holds an SM for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from replay.errors import UserError
from replay.model.machine.block_scheduler import BlockScheduler
from replay.schemes.ep.base import LayerRefusedError
from replay.schemes.ep.staged_schemes import MOVING, STAGES, StagedScheme
from replay.schemes.registry import COMPARED

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes import Scheme
    from replay.schemes.ep.staged_schemes import Interleave, Releases, Stage, Stages


class KernelStream:
    """A stream of every GPU, whose kernels run one after the other.

    Attributes
    ----------
    last
        (rank,): what ends its kernels so far; None before the first.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.last: Ints | None = None

    def next(self, after: Ints) -> Ints:
        """(rank,) tasks that the stream's next kernel follows: its last one and `after`."""
        if self.last is None or self.last is after:
            return after
        return self._machine.gather(self.last, self._machine.ranks, after)

    def remember_ends(self, by: Ints) -> Ints:
        """Remember what ends the kernels that were launched: (rank,) tasks."""
        self.last = by
        return by


class StageStreams:
    """The streams of a scheme's stages."""

    def __init__(self, machine: Machine, releases: Releases) -> None:
        self._machine = machine
        self.compute = KernelStream(machine)
        self.moving = KernelStream(machine) if releases == "stream" else self.compute

    def of(self, stage: Stage) -> KernelStream:
        """The stream that a stage's kernels are in."""
        return self.moving if stage in MOVING else self.compute

    def run(self, stages: Stages, stage: Stage, after: Ints, *, is_backward: bool = False) -> KernelSpan:
        """Add the kernels of one stage of a scheme, which are next.

        Their span begins when all before them is over and, in a stream for rows, their SMs are
        free.

        Parameters
        ----------
        after
            (rank,): what they follow beside those of their stream; the first stage follows what
            `stages` was given.
        is_backward
            The layer's pass.
        """
        stream = self.of(stage)
        ready = None
        if stage != STAGES[0]:
            ready = self._machine.enter(stage, stream.next(after), is_backward=is_backward)
        offered = ready
        if ready is not None and stream is not self.compute:
            ready = self._machine.mark(self._machine.ranks, ready)
        ends, is_over = _next(stages, ready)
        assert is_over == (stage == STAGES[-1]), f"a layer has the stages {', '.join(STAGES)}"
        ends = self._machine.leave(ends)
        if ready is not offered:
            assert offered is not None
            assert ready is not None
            ends = self._machine.mark(self._machine.ranks, ends)
            self._hold_sms(offered, ready, ends)
        of: Occupation = "rows" if stage in MOVING else "experts"
        return KernelSpan(of, after if ready is None else ready, stream.remember_ends(ends))

    def move(self, after: Ints, add: Callable[[Ints], Ints]) -> Ints:
        """Add kernels that move rows, and hold SMs of a stream of their own: (rank,) their end.

        Parameters
        ----------
        after
            (rank,): what they follow, those of their stream included.
        add
            Adds them once they have their SMs: (rank,) tasks to (rank,) tasks of their end.
        """
        if self.moving is self.compute:
            return self.moving.remember_ends(add(after))
        begun = self._machine.mark(self._machine.ranks, after)
        ended = self._machine.mark(self._machine.ranks, add(begun))
        self._hold_sms(after, begun, ended)
        return self.moving.remember_ends(ended)

    def _hold_sms(self, offered: Ints, begun: Ints, ended: Ints) -> None:
        """Let kernels of the communication stream wait for SMs, and keep them: (rank,) tasks."""
        machine, sms = self._machine, self._machine.sms
        rank = np.repeat(machine.ranks, sms.count - sms.compute)
        blocks = BlockScheduler(machine, sms.count)
        blocks.hold(begun[rank], ended[rank], rank, offered[rank])


def _next(stages: Stages, ready: Ints | None) -> tuple[Ints, bool]:
    """Add a stage: (rank,) tasks of its end, and whether it is the last."""
    try:
        return (next(stages) if ready is None else stages.send(ready)), False
    except StopIteration as stop:
        return stop.value, True


def set_aside(scheme: StagedScheme, work: LayerWork, system: System) -> int:
    """SMs per GPU of the communication stream.

    Raises
    ------
    UserError
        If the scheme leaves no SM to the kernels that compute.
    """
    number = scheme.stream_sms(work, system)
    if number >= system.sm.num_sms:
        message = (
            f"scheme {scheme.name!r} takes {number} SMs for rows; the GPU has "
            f"{system.sm.num_sms}, and another micro-batch must compute beside it"
        )
        raise UserError(message)
    return number


def as_staged(scheme: Scheme, kind: Interleave) -> StagedScheme:
    """Give the form of a scheme whose stages can be interleaved.

    Raises
    ------
    LayerRefusedError
        If it keeps its SMs for a whole layer, has no kernels for this, or is not described in
        stages, naming the schemes that can.
    """
    if isinstance(scheme, StagedScheme) and kind in scheme.interleaves:
        return scheme.interleave(kind)
    can = [name for name, one in COMPARED.items() if isinstance(one, StagedScheme) and kind in one.interleaves]
    if kind == "sbo":
        message = (
            f"scheme {scheme.name!r}: no kernel that sends results while its second GEMM runs; "
            f"--interleave sbo has: {', '.join(can)}"
        )
        raise LayerRefusedError(message)
    message = (
        f"scheme {scheme.name!r}: no stages between which another micro-batch could run; "
        f"--interleave {kind} have: {', '.join(can)}"
    )
    raise LayerRefusedError(message)


# ---- what keeps streams busy ---------------------------------------------------------------------

Occupation = Literal["attention", "dense", "experts", "rows"]
"""What a stream is busy with: attention with norms and gate, shared experts, other kernels of the
MoE layer that compute, or those that move rows, in a stream of their own."""

COMPUTE: tuple[Occupation, ...] = tuple(one for one in get_args(Occupation) if one != "rows")

DENSE: tuple[Occupation, ...] = ("attention", "dense")


class KernelSpan(NamedTuple):
    """Kernels of a stream of every GPU, which runs nothing else meanwhile.

    Attributes
    ----------
    of
        Kind of the kernels.
    begun, ended
        (rank,): tasks after which they run, and tasks of their end; or the times of these, in
        picoseconds.
    """

    of: Occupation
    begun: Ints
    ended: Ints

    def at(self, visible_ps: Picoseconds) -> KernelSpan:
        """Put times in place of its tasks: those at which they are visible, (task,) in picoseconds."""
        return self._replace(begun=visible_ps[self.begun], ended=visible_ps[self.ended])


class StreamUse(NamedTuple):
    """Times of every GPU, (rank,) in picoseconds.

    Attributes
    ----------
    busy_ps
        Time by what a stream is busy with, one thing at a time. It is busy from when nothing before
        holds its kernels back until they have ended, gaps between kernels and waits for other GPUs
        included.
    both_ps
        Time in which both streams are busy.
    """

    busy_ps: dict[Occupation, Picoseconds]
    both_ps: Picoseconds

    @property
    def computing_ps(self) -> Picoseconds:
        """(rank,): time in which the stream that computes is busy."""
        return sum((self.busy_ps[one] for one in COMPUTE[1:]), self.busy_ps[COMPUTE[0]])


def stream_use(spans: Iterable[KernelSpan], num_ranks: int) -> StreamUse:
    """Add up the times that spans keep streams busy; spans of one stream do not overlap."""
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
    return StreamUse(busy, both)
