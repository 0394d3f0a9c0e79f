"""Quantities of a schedule over time, in equal parts of it: few samples, however many tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from replay.engine.columns import IntArray
from replay.engine.export.scene import Gauge
from replay.engine.sums import busy_by_window
from replay.engine.taskgraph import Int64s
from replay.engine.timeline import Timeline

#: Parts of the time: a screen has room for about so many beside one another.
MOST_PARTS = 1_000
#: Samples of all gauges together, of about 100 bytes each; where there are many GPUs, parts are
#: longer, but never fewer than the other number.
MOST_SAMPLES = 100_000
FEWEST_PARTS = 50
_PS_PER_NS = 1_000


class Samples(NamedTuple):
    """A level over time: it has each value from its time on, until the next one's."""

    gauge: Gauge
    process: int
    time_ps: list[int]
    value: list[float]


def sample(timeline: Timeline, gauges: Sequence[Gauge], window_ps: tuple[int, int]) -> Iterator[Samples]:
    """Read gauges off a schedule, in equal parts of some of the time.

    A value is the mean over its part of the time; where it stays the same, it stands once. The last
    one of each level is 0.
    """
    low, high = window_ps[0] // _PS_PER_NS * _PS_PER_NS, window_ps[1]
    levels = sum(gauge.process.size for gauge in gauges)
    most = max(FEWEST_PARTS, min(MOST_PARTS, MOST_SAMPLES // max(1, levels)))
    part_ps = max(1, -(-(high - low) // (most * _PS_PER_NS))) * _PS_PER_NS
    count = max(1, -(-(high - low) // part_ps))
    edges = [low + part_ps * number for number in range(count + 1)]
    for gauge in gauges:
        busy = in_service(timeline, gauge, low, part_ps, count)
        for level, process in enumerate(gauge.process.tolist()):
            divisor = part_ps * gauge.unit * int(gauge.whole[level])
            exact = (gauge.scale * busy[level] / divisor).round(6).tolist()
            values = [*exact, 0.0]
            kept = [0, *(at for at in range(1, count + 1) if values[at] != values[at - 1])]
            yield Samples(gauge, process, [edges[at] for at in kept], [values[at] for at in kept])


def in_service(timeline: Timeline, gauge: Gauge, low: int, part_ps: int, count: int) -> Int64s:
    """Time in service of each level of a gauge in parts of the time: (level, part), weighted.

    Parameters
    ----------
    low
        Where the first part begins.
    part_ps, count
        How long each is, and how many there are.
    """
    size = gauge.process.size
    spans: list[tuple[IntArray, Int64s, Int64s]]
    if gauge.spans is not None:
        spans = [(gauge.spans.owner, gauge.spans.start, gauge.spans.end)]
        row, weights = np.arange(size), np.ones(1, np.int64)
    else:
        drawn = timeline.drawn
        spans = [
            (timeline.graph.resource, timeline.start_ps, timeline.end_ps),
            (drawn.resource, drawn.start_ps, drawn.end_ps),
        ]
        # Services of a weight are rows of their own; a last row is for what does not count.
        weights, which = np.unique(gauge.weight, return_inverse=True)
        row = np.where(gauge.level >= 0, which.reshape(-1) * size + gauge.level, weights.size * size)
    past = low + part_ps * count
    cut = [(owner, np.clip(start, low, past) - low, np.clip(end, low, past) - low, None) for owner, start, end in spans]
    # One part more, in which those end that reach the end of the last.
    busy = busy_by_window(cut, part_ps, row.astype(np.int64), (weights.size * size + 1, count + 1))
    by_weight = busy[:-1, :count].reshape(weights.size, size, count)
    total: Int64s = np.tensordot(weights, by_weight, axes=1)
    return total
