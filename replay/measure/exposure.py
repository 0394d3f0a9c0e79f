"""What a GPU's time is spent on while nothing, or not all of it, computes.

MEASURES.md defines each number, with an example worked by hand.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from replay.machine.kinds import ACKS, COMPUTE, KINDS, Kind, among
from replay.machine.resources import Ints, ResourceClass
from replay.measure.parts import Exposure, SmTime, Waiting
from replay.measure.pools import SMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.graph import Timeline
    from replay.measure.pools import Pools

MOVING = frozenset(
    kind for kind in Kind if KINDS[kind].role in ("serialisation", "copying") and kind not in ACKS
)
"""Messages, and work of SMs and memory for rows that travel; nobody waits for acknowledgements."""


class Intervals(NamedTuple):
    """Intervals of time: whose each is, and its two ends in picoseconds, three (interval,)."""

    owner: Ints
    start: Ints
    end: Ints


class Exposed(NamedTuple):
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


def exposed(
    timeline: Timeline,
    pools: Pools,
    classes: Ints,
    rank_end: Ints,
    held_up: Sequence[tuple[Ints, Ints, Ints]] = (),
) -> Exposed:
    """Divide the time in which a GPU does not compute, or not on all SMs, by what it waits for.

    Parameters
    ----------
    timeline
        The schedule.
    pools
        SMs of each GPU.
    classes
        (resource,): see `Resources.classes`.
    rank_end
        (rank,): when each GPU's own tokens are combined.
    held_up
        Waiting of kernels for their launch alone, as in `Notes`.
    """
    graph, num_ranks = timeline.graph, len(rank_end)
    on_sm = np.append(classes == ResourceClass.SM, False)[graph.resource]
    hides = among({*COMPUTE, Kind.LAUNCH})[graph.kind]
    multiplies = np.flatnonzero(hides & on_sm & (graph.rank >= 0))
    tiles = _of_tasks(timeline, multiplies)
    parts = pools.whole // pools.parts[graph.resource[multiplies]]
    visible = timeline.visible_ps
    launches = [Intervals(rank, visible[ready], visible[begun]) for ready, begun, rank in held_up]
    whole = union(_joined(_of_tasks(timeline, np.flatnonzero(hides & ~on_sm)), *launches))
    moves = union(_of_tasks(timeline, np.flatnonzero(among(MOVING)[graph.kind])))
    busy = _joined(whole, moves, union(tiles))
    anybody = union(busy._replace(owner=np.zeros_like(busy.owner)))
    of_rank = [
        _divided(int(end), tile, parts[place], [one[0], two[0], anybody], units)
        for end, (tile, place), one, two, units in zip(
            rank_end.tolist(),
            _by_owner(tiles, num_ranks),
            _by_owner(whole, num_ranks),
            _by_owner(moves, num_ranks),
            (pools.whole * pools.capacity[:num_ranks]).tolist(),
            strict=True,
        )
    ]
    by_time, by_sms, unfilled = (np.array(one, np.int64) for one in zip(*of_rank, strict=True))
    return Exposed(
        by_time.sum(axis=1),
        Exposure(
            by_time=_waiting(by_time),
            by_sms=_waiting(by_sms),
            unfilled_us=(unfilled / 1e6).tolist(),
        ),
    )


def _waiting(ps: Ints) -> Waiting:
    wires, imbalance, latency = (ps / 1e6).T.tolist()
    return Waiting(wires_us=wires, imbalance_us=imbalance, latency_us=latency)


def _of_tasks(timeline: Timeline, tasks: Ints) -> Intervals:
    """From the start of each task until what it does is there; those that are nobody's left out."""
    tasks = tasks[timeline.graph.rank[tasks] >= 0]
    start, end = timeline.start_ps[tasks], timeline.end_ps[tasks]
    end = end + timeline.on_the_way_ps[tasks]
    return Intervals(timeline.graph.rank[tasks].astype(np.int64), start, end)


def _joined(*several: Intervals) -> Intervals:
    return Intervals(*(np.concatenate(column) for column in zip(*several, strict=True)))


def _by_owner(intervals: Intervals, num_owners: int) -> list[tuple[Intervals, Ints]]:
    """The intervals of each owner, and their places among all."""
    order = np.argsort(intervals.owner, kind="stable")
    bounds = np.searchsorted(intervals.owner[order], np.arange(num_owners + 1))
    places = [order[first:last] for first, last in itertools.pairwise(bounds.tolist())]
    return [(Intervals(*(column[place] for column in intervals)), place) for place in places]


def union(intervals: Intervals) -> Intervals:
    """The union of each owner's intervals, as intervals that do not touch, in order."""
    some = intervals.end > intervals.start
    owner, start, end = (column[some] for column in intervals)
    if not len(owner):
        return Intervals(owner, start, end)
    # Each owner's intervals are moved past those of the owner before, so that one sort serves all.
    span = int(end.max()) + 1
    start = np.sort(start + owner * span, kind="stable")
    end = np.sort(end + owner * span, kind="stable")
    # A part of the union ends where as many have ended as had begun before the next begins.
    is_apart = start[1:] > end[:-1]
    start, end = start[np.append(True, is_apart)], end[np.append(is_apart, True)]
    owner = start // span
    return Intervals(owner, start - owner * span, end - owner * span)


def _divided(
    end: int, tiles: Intervals, parts: Ints, others: list[Intervals], of_gpu: int
) -> tuple[list[int], list[int], int]:
    """Divide one GPU's time until its end.

    Parameters
    ----------
    tiles, parts
        Computing on SMs, and (tile,) the parts of an SM that each takes.
    others
        Computing of the GPU that is not on SMs, its rows under way, anything of any GPU.
    of_gpu
        Parts of all its SMs.

    Returns
    -------
    Picoseconds of waiting for wires, imbalance and latency by time and by SMs, and unfilled ones.
    """
    count = len(tiles.owner)
    flags = _joined(tiles, *others)
    start, stop = np.minimum(flags.start, end), np.minimum(flags.end, end)
    which = np.repeat(np.arange(1 + len(others)), [count, *(len(one.owner) for one in others)])
    amount = np.append(parts, np.ones(len(which) - count, np.int64))
    time = np.concatenate(([0], start, stop, [end]))
    order = np.argsort(time, kind="stable")
    length = np.diff(time[order])

    def level(of: int) -> Ints:
        """How much of a flag is set between the instants: (instant,)."""
        change = np.where(which == of, amount, 0)
        change = np.concatenate(([0], change, -change, [0]))
        total: Ints = np.cumsum(change[order])[:-1]
        return total

    tile, whole, moves, any_gpu = (level(of) for of in range(4))
    idle = np.where(whole > 0, 0, of_gpu - np.minimum(tile, of_gpu))
    alone = (whole == 0) & (tile == 0)
    causes = (moves > 0, alone & (moves == 0) & (any_gpu > 0), alone & (any_gpu == 0))
    by_time = [int(length[alone & cause].sum()) for cause in causes]
    by_sms = [int((length * idle)[cause].sum()) // of_gpu for cause in causes]
    unfilled = int((length * idle)[~alone & (moves == 0)].sum()) // of_gpu
    return by_time, by_sms, unfilled


def sm_times(timeline: Timeline, pools: Pools, classes: Ints) -> SmTime:
    """Time of all SMs of each GPU, by what they do.

    Parameters
    ----------
    classes
        (resource,): see `Resources.classes`.
    """
    graph, drawn, num_gpus = timeline.graph, timeline.drawn, pools.groups.count(SMS)
    task = graph.touches.task[drawn.touch]
    # Twice the time of the last draw of each task, and one more if the L2 cache served it; of two
    # at a time that one counts.
    is_cache = classes[drawn.resource] != ResourceClass.HBM
    last = np.full(graph.num_tasks, -1, np.int64)
    np.maximum.at(last, task, 2 * drawn.end_ps + is_cache)
    on_sm = np.flatnonzero(np.append(classes == ResourceClass.SM, False)[graph.resource])
    gpu, parts = pools.pool[graph.resource[on_sm]], pools.parts[graph.resource[on_sm]]
    service, longer = timeline.service_ps[on_sm], timeline.extra_service_ps[on_sm]
    draws, hbm_last = last[on_sm] >= 0, last[on_sm] % 2 == 0
    kind = graph.kind[on_sm]
    computes = among(COMPUTE)[kind]
    copies = among(each for each in Kind if KINDS[each].role == "copying")[kind]

    def us(time_ps: Ints) -> list[float]:
        total = np.zeros(num_gpus, np.int64)
        np.add.at(total, gpu, time_ps // parts)
        return [int(time) / 1e6 for time in total]

    return SmTime(
        computing_us=us(np.where(computes, service - np.where(draws, longer, 0), 0)),
        waiting_for_l2_us=us(np.where(draws & ~hbm_last, longer, 0)),
        waiting_for_hbm_us=us(np.where(draws & hbm_last, longer, 0)),
        copying_us=us(np.where(copies, service - np.where(draws, longer, 0), 0)),
    )
