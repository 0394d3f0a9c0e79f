"""Streams of every GPU that stages of several micro-batches share.

Kernels of a stream follow one another. Those that compute have one stream. Those that move rows
have another, with SMs of their own from the first to the last layer, so that kernels that compute
have the rest; or, where the scheme has hooks, they are in the first stream too, and rows travel
while no kernel holds an SM for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.errors import UserError
from replay.model.machine.block_scheduler import BlockScheduler
from replay.schemes.ep.staged import MOVING, STAGES

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.machine import Ints, Machine
    from replay.model.work.layer import LayerWork
    from replay.schemes.ep.staged import Releases, Stage, StagedScheme, Stages


class Stream:
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

    def ended(self, by: Ints) -> Ints:
        """Remember what ends the kernels that were launched: (rank,) tasks."""
        self.last = by
        return by


class Ran(NamedTuple):
    """Kernels that were added to a stream: (rank,) tasks behind which they run, and of their end.

    Behind the first, all before them is over and, in a stream for rows, their SMs are free.
    """

    begun: Ints
    ended: Ints


class Streams:
    """The streams of a scheme's stages."""

    def __init__(self, machine: Machine, releases: Releases) -> None:
        self._machine = machine
        self.compute = Stream(machine)
        self.moving = Stream(machine) if releases == "stream" else self.compute

    def of(self, stage: Stage) -> Stream:
        """The stream that a stage's kernels are in."""
        return self.moving if stage in MOVING else self.compute

    def run(self, stages: Stages, stage: Stage, after: Ints) -> Ran:
        """Add the kernels of one stage of a scheme, which are next.

        Parameters
        ----------
        after
            (rank,): what they follow beside those of their stream; the first stage follows what
            `stages` was given.
        """
        stream = self.of(stage)
        ready = None if stage == STAGES[0] else stream.next(after)
        offered = ready
        if ready is not None and stream is not self.compute:
            ready = self._machine.mark(self._machine.ranks, ready)
        ends, is_over = _next(stages, ready)
        assert is_over == (stage == STAGES[-1]), f"a layer has the stages {', '.join(STAGES)}"
        if ready is not offered:
            assert offered is not None
            assert ready is not None
            ends = self._machine.mark(self._machine.ranks, ends)
            self._hold_sms(offered, ready, ends)
        return Ran(after if ready is None else ready, stream.ended(ends))

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
