"""Notes of a scheme on its tasks and touches, found again when these are over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.engine import TouchOutcome
from replay.engine.covers import Intervals
from replay.engine.history import UNKNOWN
from replay.engine.taskgraph import NEVER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replay.engine import Timeline
    from replay.engine.history import PastPart
    from replay.measure.progress import TaskProgress
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.notes import Notes


NOTED = np.dtype([("group", "i2"), ("read", "i2"), ("lookups", "i4"), ("evicted_bytes", "i4"), ("missed_bytes", "i4")])
"""What is noted of a touch, as in `TouchNotes`; group and read are places among
`NotedTouches.groups` and `.reads`, -1 for none."""

Noted = npt.NDArray[np.void]

OUTCOME, HIT, MISSED, EVICTED = map(
    int, (TouchOutcome.OUTCOME, TouchOutcome.HIT, TouchOutcome.MISSED, TouchOutcome.EVICTED)
)
"""As numbers: NumPy makes columns of 64 bits of members, and Python takes long to find them."""


@dataclass(eq=False)
class _Part:
    """Notes on the touches of a part: (touch,) of `NOTED`, from its first one on.

    Attributes
    ----------
    num_left
        Touches that are not over.
    """

    first: int
    noted: Noted
    num_left: int


@dataclass(frozen=True)
class EndedTouches:
    """Touches that are over.

    Attributes
    ----------
    touch
        (touch,): their places in the graph.
    noted
        (touch,): what is noted of them, of `NOTED`.
    """

    touch: Ints
    noted: Noted

    def evictions(self, timeline: Timeline) -> tuple[Ints, Ints]:
        """Tasks, and bytes that evictions put on their ports: two (eviction,).

        They are put there at once, or when the key is asked for again.
        """
        evicted, missed = self.noted["evicted_bytes"], self.noted["missed_bytes"]
        has, again = evicted.nonzero()[0], missed.nonzero()[0]  # few: caches that tiles read note none
        has = has[(timeline.touched[self.touch[has]] & EVICTED) > 0]
        again = again[(timeline.touched[self.touch[again]] & OUTCOME) == MISSED]
        touches = timeline.graph.touches
        tasks = touches.charged[self.touch[has]], touches.task[self.touch[again]]
        nbytes = evicted[has], missed[again]
        return np.concatenate(tasks).astype(np.int64), np.concatenate(nbytes).astype(np.int64)


class NotedTouches:
    """Notes on touches, of a graph that may come in parts.

    Attributes
    ----------
    groups, reads
        Groups of tables, and what is read through the L2 cache, in the order in which they appear.
    """

    def __init__(self) -> None:
        self.groups: list[str] = []
        self.reads: list[str] = []
        self._parts: list[_Part] = []

    def begin(self, first: int, count: int, notes: Notes) -> None:
        """Remember what is noted of the touches of a part, numbered from ``first`` on."""
        noted = np.zeros(count, NOTED)
        noted["group"] = noted["read"] = -1
        for name, blocks in notes.touches.items():
            place = _place(self.groups, name)
            for block in blocks:
                touch = slice(block.touch.start - first, block.touch.stop - first)
                noted["group"][touch] = place
                noted["lookups"][touch] = block.lookups
                noted["evicted_bytes"][touch] = block.evicted_wire_bytes
                noted["missed_bytes"][touch] = block.missed_wire_bytes
        for what, reads in notes.reads.items():
            place = _place(self.reads, str(what))
            for touch in reads:
                noted["read"][touch.start - first : touch.stop - first] = place
        self._parts.append(_Part(first, noted, count))

    def over(self, progress: TaskProgress) -> EndedTouches:
        """Notes on the touches that are over."""
        touch = progress.touches()
        if progress.touch_ids is None:
            return EndedTouches(touch, self._parts[0].noted)
        ids = progress.touch_ids[touch]
        owns, noted = [touch[:0]], np.empty(ids.size, NOTED)
        for part in self._parts:
            own = ((ids >= part.first) & (ids < part.first + part.noted.size)).nonzero()[0]
            part.num_left -= own.size
            owns.append(own)
            # Placed, not joined in the end: records are joined field by field, ten times slower.
            noted[own] = part.noted[ids[own] - part.first]
        self._parts = [part for part in self._parts if part.num_left]
        order = np.concatenate(owns)
        return EndedTouches(touch[order], noted[order])


def _place(names: list[str], name: str) -> int:
    if name not in names:
        names.append(name)
    return names.index(name)


class Times:
    """Start and end of tasks that notes name, in a whole graph."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline

    def start_ps(self, ids: Ints) -> Picoseconds:
        """(task,): when they start, `UNKNOWN` as long as it is not known."""
        return self._timeline.start_ps[ids]

    def visible_ps(self, ids: Ints) -> Picoseconds:
        """(task,): when they are visible, `UNKNOWN` as long as it is not known."""
        return self._timeline.visible_ps[ids]


class PartTimes:
    """Start and end of tasks in a graph that comes in parts: of the last two, and of those not over."""

    def __init__(self) -> None:
        self._parts: list[PastPart] = []

    def begin(self, part: PastPart) -> None:
        """Note that a part is added."""
        left = [one for one in self._parts[:-1] if one.num_left]
        self._parts = [*left, *self._parts[-1:], part]

    def start_ps(self, ids: Ints) -> Picoseconds:
        """As `Times.start_ps`."""
        return self._of("start_ps", ids)

    def visible_ps(self, ids: Ints) -> Picoseconds:
        """As `Times.visible_ps`."""
        return self._of("visible_ps", ids)

    def _of(self, name: str, ids: Ints) -> Ints:
        found = np.full(len(ids), UNKNOWN, np.int64)
        is_there = np.zeros(len(ids), np.bool_)
        for part in self._parts:
            own = (ids >= part.first) & (ids < part.past)
            found[own] = getattr(part.links, name)[ids[own] - part.first]
            is_there |= own
        if not is_there.all():
            message = f"defect of moereplay: task {ids[np.argmin(is_there)]} is long over"
            raise AssertionError(message)
        return found


class Waits:
    """Waits that lie between two tasks, each with its owner, until both tasks are over.

    Parameters
    ----------
    of_starts
        Whether it lies between their starts; else between the moments at which they are visible.

    Attributes
    ----------
    since_ps
        When the first wait began of those that are not over; `NEVER` for none.
    """

    def __init__(self, *, of_starts: bool) -> None:
        self._of_starts = of_starts
        self.since_ps = NEVER
        nothing = np.zeros(0, np.int64)
        self._open = nothing, nothing, nothing  # first and second tasks, and owners

    def begin(self, blocks: Sequence[tuple[Ints, Ints, Ints]]) -> None:
        """Remember first and second tasks, and owners of waits."""
        first, second, owner = (np.concatenate(column) for column in zip(self._open, *blocks, strict=True))
        self._open = first, second, owner

    def over(self, times: Times | PartTimes) -> Intervals:
        """Intervals of which both tasks are over; they are forgotten here."""
        first, second, owner = self._open
        of = times.start_ps if self._of_starts else times.visible_ps
        start, end = of(first), of(second)
        known = (start != UNKNOWN) & (end != UNKNOWN)
        left = ~known
        self._open = first[left], second[left], owner[left]
        self.since_ps = int(start[left & (start != UNKNOWN)].min(initial=NEVER))
        return Intervals(owner[known], start[known], end[known])
