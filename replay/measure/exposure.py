"""Exposure: the time of a GPU while nothing, or not all of it, computes.

MEASURES.md defines each number, with an example worked by hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.engine.covers import Intervals, activities, coverage
from replay.engine.scheduler import OutOfOrderError
from replay.engine.sums import drawn_waits
from replay.engine.taskgraph import NEVER
from replay.measure.parts import Exposure, SmTime, WaitTimes
from replay.model.arrays import Ints, Picoseconds
from replay.model.machine.kinds import ACKS, COMPUTE, KINDS, Kind, among
from replay.model.machine.resources import ResourceClass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.engine import Timeline
    from replay.measure.pools import Pools
    from replay.measure.progress import TaskProgress

MOVING = frozenset(kind for kind in Kind if KINDS[kind].role in ("serialisation", "copying") and kind not in ACKS)
"""Messages, and work of SMs and memory for rows that travel; nobody waits for acknowledgements."""

_OF_ROLE = {role: among(kind for kind in Kind if KINDS[kind].role == role) for role in ("compute", "copying")}

_ROLE_OF_KIND = np.select(list(_OF_ROLE.values()), np.arange(len(_OF_ROLE)), -1)
"""(kind,): place among these, -1 for others."""

TILES, WHOLE, MOVES, COPIES, GAPS, LATE = range(6)
"""Computing on SMs, other computing, messages, SMs and memory that copy rows, gaps between kernels, kernels that wait
for their launch alone: what a GPU is busy with."""


def _flags_of_kinds() -> npt.NDArray[np.int8]:
    """(2, kind): what a GPU is busy with in a task that is not, or is, on an SM; -1 for nothing."""
    flags = np.full((2, len(Kind)), -1, np.int8)
    flags[:, among(MOVING)] = MOVES
    flags[:, _OF_ROLE["copying"]] = COPIES
    flags[:, among(COMPUTE)] = [[WHOLE], [TILES]]
    flags[:, Kind.LAUNCH] = [GAPS, TILES]  # blocks that begin hold their SM
    return flags


_FLAG_OF_KIND = _flags_of_kinds()

NUM_SUMS = 10
"""Numbers that a GPU's time is divided into, see `_divide`."""


class ExposedTimes(NamedTuple):
    """Exposed communication in picoseconds.

    Attributes
    ----------
    ps
        (rank,): time in which nothing computes.
    parts
        The same by what is waited for, and by SMs.
    """

    ps: Ints
    parts: Exposure


class ExposureCollector:
    """Activities of GPUs, of a schedule that may come in pieces.

    Parameters
    ----------
    num_ranks
        GPUs.
    """

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._until_ps = 0  # what was before is divided
        self._closed_ps = NEVER
        self._divided = np.zeros((num_ranks, NUM_SUMS), np.int64)  # in ps, SMs in parts of `_whole`
        self._whole = 1
        nothing = np.zeros(0, np.int64)
        self._busy = Intervals(nothing, nothing, nothing)
        self._tiles = Intervals(nothing, nothing, nothing)
        self._divisor = nothing  # queues of an SM at which the tiles run

    def add(
        self,
        progress: TaskProgress,
        pools: Pools,
        classes: Ints,
        held_up: Intervals | None = None,
        closed_ps: int = NEVER,
    ) -> None:
        """Go on with a piece.

        Parameters
        ----------
        pools
            SMs of each GPU.
        classes
            (resource,): see `Resources.classes`.
        held_up
            Waiting of kernels for their launch alone, whose owners are GPUs.
        closed_ps
            Nothing that is still to come begins earlier; `NEVER` where nothing comes any more.

        Raises
        ------
        OutOfOrderError
            If something begins before what was closed.
        """
        self._close(pools)
        timeline = progress.timeline
        on_sm = classes == ResourceClass.SM
        flag, owner = activities(timeline.graph, on_sm, _FLAG_OF_KIND, self._num_ranks, progress.is_done)
        multiplies = (flag == TILES).nonzero()[0]
        tiles = _of_tasks(timeline, multiplies)
        # When something of a flag is under way for a GPU; owners are the GPUs, flag after flag.
        busy = coverage(LATE * self._num_ranks, owner, timeline.start_ps, timeline.visible_ps)
        if held_up is not None and held_up.owner.size:  # its owners come last
            late = union(held_up)
            busy = _join(busy, late._replace(owner=late.owner + LATE * self._num_ranks))
        for new in (tiles, busy):
            if int(new.start.min(initial=NEVER)) < self._until_ps:
                message = "something began before what is over"
                raise OutOfOrderError(message)
        self._tiles = _join(self._tiles, tiles)
        self._divisor = np.append(self._divisor, pools.parts[timeline.graph.resource[multiplies]])
        self._busy = join([self._busy, busy])
        self._closed_ps = closed_ps

    def result(self, pools: Pools, rank_end: Ints) -> ExposedTimes:
        """Divide the time in which a GPU does not compute, or not on all SMs, by what it waits for.

        Parameters
        ----------
        rank_end
            (rank,): when each GPU's own tokens are combined, later than all that was closed.
        """
        self._divide(pools, rank_end)
        by_time, copying, by_sms, unfilled, gaps, late = np.split(self._divided, [3, 4, 7, 8, 9], axis=1)
        of_gpu = (self._whole * pools.capacity[: self._num_ranks])[:, None]
        return ExposedTimes(
            by_time.sum(axis=1),
            Exposure(
                by_time=_waiting(by_time),
                by_sms=_waiting(by_sms // of_gpu),
                unfilled_us=(unfilled // of_gpu / 1e6)[:, 0].tolist(),
                copying_us=(copying / 1e6)[:, 0].tolist(),
                gaps_us=(gaps / 1e6)[:, 0].tolist(),
                launches_us=(late / 1e6)[:, 0].tolist(),
            ),
        )

    def _close(self, pools: Pools) -> None:
        """Divide what the piece before has closed, and forget it.

        Only now that another piece has come is it sure that no GPU is through before.
        """
        closed_ps = self._closed_ps
        if closed_ps < NEVER:
            self._divide(pools, np.full(self._num_ranks, closed_ps))
            self._until_ps = closed_ps
            left = self._tiles.end > closed_ps
            self._tiles = Intervals(*(column[left] for column in self._tiles))
            self._divisor = self._divisor[left]
            left = self._busy.end > closed_ps
            self._busy = Intervals(*(column[left] for column in self._busy))

    def _divide(self, pools: Pools, until_ps: Picoseconds) -> None:
        """Divide each GPU's time until some moment (rank,)."""
        num_ranks = self._num_ranks
        # Resources that come later may divide SMs in more parts; the old number divides the new.
        self._divided[:, 4:8] *= pools.whole // self._whole
        self._whole = pools.whole
        self._divided += _divide(
            self._until_ps,
            until_ps,
            self._tiles,
            self._whole // self._divisor,
            self._busy,
            self._whole * pools.capacity[:num_ranks],
        )


def _waiting(ps: Ints) -> WaitTimes:
    wires, imbalance, latency = (ps / 1e6).T.tolist()
    return WaitTimes(wires_us=wires, imbalance_us=imbalance, latency_us=latency)


def _of_tasks(timeline: Timeline, tasks: Ints) -> Intervals:
    """From the start of each task until what it does is there."""
    rank = timeline.graph.rank[tasks].astype(np.int64)
    return Intervals(rank, timeline.start_ps[tasks], timeline.visible_ps[tasks])


def join(several: Sequence[Intervals]) -> Intervals:
    """The unions of several pieces as one."""
    several = [one for one in several if len(one.owner)] or list(several[:1])
    return union(_join(*several)) if len(several) > 1 else several[0]


def _join(*several: Intervals) -> Intervals:
    return Intervals(*(np.concatenate(column) for column in zip(*several, strict=True)))


def union(intervals: Intervals) -> Intervals:
    """The union of each owner's intervals, as intervals that do not touch, in order."""
    return coverage(int(intervals.owner.max(initial=-1)) + 1, *intervals)


def _divide(low: int, until: Ints, tiles: Intervals, parts: Ints, busy: Intervals, of_gpu: Ints) -> Ints:
    """Divide the time of GPUs between two moments: (rank, number), see `NUM_SUMS`.

    Parameters
    ----------
    low, until
        The moments, the second of each GPU (rank,).
    tiles, parts
        Computing on SMs, whose owners are GPUs, and (tile,) the parts of an SM that each takes.
    busy
        When something of a flag is under way; owners are the GPUs, flag after flag.
    of_gpu
        (rank,): parts of all its SMs.

    Returns
    -------
    Picoseconds of waiting for wires, imbalance and latency by time, of wires the part in which rows
    are copied; the three times the parts of SMs that wait, and picoseconds times parts that are unfilled;
    gaps between kernels, and waiting for launches, in which nothing computes.
    """
    from replay.engine.kernels.sums import (
        ANYBODY,
        BETWEEN,
        COPIED,
        HELD_UP,
        PARTLY,
        TRAVELS,
        WHOLLY,
        WITHIN,
        Flags,
        divide_time,
    )

    num_ranks = until.size
    anybody = union(busy._replace(owner=np.zeros_like(busy.owner)))
    # Flags come one after the other, that of tiles first: those are told by tiles themselves.
    others = slice(int(busy.owner.searchsorted(num_ranks * (TILES + 1))), None)
    flag, owner = np.divmod(busy.owner[others], num_ranks)
    every = np.arange(num_ranks)
    # The whole time of each GPU is a flag of its own, so that nothing lies between two GPUs.
    rank = np.concatenate((every, tiles.owner, owner, every.repeat(anybody.owner.size)))
    end = np.maximum(until, low)
    both = np.empty((2, rank.size), np.int64)
    for row, whole, of_tiles, of_busy, of_anybody in (
        (both[0], np.full(num_ranks, low), tiles.start, busy.start, anybody.start),
        (both[1], end, tiles.end, busy.end, anybody.end),
    ):
        np.concatenate((whole, of_tiles, of_busy[others], *[of_anybody] * num_ranks), out=row)
    what = np.array([WITHIN, PARTLY, WHOLLY, TRAVELS, COPIED, BETWEEN, HELD_UP, ANYBODY], np.int8).repeat(
        [
            num_ranks,
            tiles.owner.size,
            *np.bincount(flag, minlength=LATE + 1)[WHOLE:].tolist(),
            num_ranks * anybody.owner.size,
        ]
    )
    amount = np.ones(what.size, np.int64)
    amount[num_ranks : num_ranks + parts.size] = parts
    # Each GPU's time lies past that of the GPU before, so that one sort serves all.
    np.maximum(both, low, out=both)
    np.minimum(both, end[rank], out=both)
    both += (every * (int(end.max()) + 1 - low) - low)[rank]
    time = both.reshape(-1)
    shares = np.zeros((num_ranks, NUM_SUMS), np.int64)
    divide_time(
        Flags(
            num_flags=what.size,
            order=time.argsort(kind="stable"),  # merges what is in order
            time=time,
            what=what,
            amount=amount,
            owner=rank,
            most=of_gpu,
            shares=shares.reshape(-1),
        )
    )
    return shares


class SmTimes:
    """Time of all SMs of each GPU, by what they do, of a schedule that may come in pieces."""

    def __init__(self, num_gpus: int) -> None:
        # What service beyond the tasks' own takes from them, by role, and what was waited for, of HBM and caches.
        self._longer = np.zeros((len(_OF_ROLE), num_gpus), np.int64)
        self._waits = np.zeros((2, num_gpus), np.int64)

    def add(self, progress: TaskProgress, pools: Pools, classes: Ints) -> None:
        """Go on with a piece; parameters as those of `ExposureCollector.add`."""
        longer, waits = drawn_waits(
            progress.timeline,
            classes == ResourceClass.SM,
            classes != ResourceClass.HBM,
            pools.pool,
            pools.parts,
            _ROLE_OF_KIND,
            self._longer.shape,
            progress.is_done,
        )
        self._longer += longer
        self._waits += waits

    def result(self, share_ps: Picoseconds) -> SmTime:
        """Times, given that of SMs in service (kind, gpu), each task's divided by the queues of its SM."""

        def us(times: Ints) -> list[float]:
            return [int(time) / 1e6 for time in times]

        computing, copying = (
            us(longer + share_ps[of].sum(axis=0)) for longer, of in zip(self._longer, _OF_ROLE.values(), strict=True)
        )
        return SmTime(
            computing_us=computing,
            waiting_for_l2_us=us(self._waits[1]),
            waiting_for_hbm_us=us(self._waits[0]),
            copying_us=copying,
        )
