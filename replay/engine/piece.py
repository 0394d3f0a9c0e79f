"""State of a graph that is scheduled part by part, with what is remembered of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.engine.critical_path import LastMet
from replay.engine.errors import GraphError
from replay.engine.taskgraph import Bools, GraphPart, Int64s
from replay.engine.timeline import Timeline


class PartRows(NamedTuple):
    """Tasks of a part that became visible in a piece.

    Attributes
    ----------
    num_tasks
        How many they are.
    places
        Where they stand among the tasks of the part.
    rows
        Where they stand among those of the piece; others may lie between them.
    is_done
        (row,): which of these they are; None for all.
    """

    num_tasks: int
    places: slice | Int64s
    rows: slice | Int64s
    is_done: Bools | None = None

    def put(self, column: npt.NDArray[Any], values: npt.NDArray[Any]) -> None:
        """Write values of tasks of the piece into a column of the part."""
        if self.is_done is None:
            column[self.places] = values[self.rows]
        else:
            np.copyto(column[self.places], values[self.rows], where=self.is_done)


@dataclass(frozen=True, eq=False)
class Piece:
    """Changes of a graph since the piece before.

    Attributes
    ----------
    timeline
        The schedule of a window of the graph; its times hold where `is_done`.
    is_done
        (task,): tasks that became visible in this piece. Every task of the graph is done in one
        piece; its touches, and what they drew, are in the same one.
    ids, touch_ids
        (task,), (touch,): numbers in the whole.
    met
        When each task became ready, and for whom it waited last.
    now_ps
        The moment up to which everything has happened.
    begun_since_ps
        Start of the first task that has begun and is not over; `NEVER` for none.
    served_since_ps, waits_since_ps
        Of the tasks that are not over: start of the first that is in service, and when the first
        that had to wait for a server began to wait; `NEVER` for none.
    """

    timeline: Timeline
    is_done: Bools
    ids: Int64s
    touch_ids: Int64s
    met: LastMet
    now_ps: int
    begun_since_ps: int
    served_since_ps: int
    waits_since_ps: int

    def find(self, ids: Int64s) -> Int64s:
        """Rows of tasks that became visible, by their numbers (task,).

        Rows of other tasks mean nothing.
        """
        # Behind the first that became visible, numbers are in order.
        first = int(np.argmax(self.is_done))
        return first + np.searchsorted(self.ids[first:], ids)

    def of(self, first: int, past: int) -> PartRows:
        """Rows of a part, of tasks ``first`` to ``past - 1`` in the whole."""
        low, high = self.find(np.array([first, past])).tolist()
        is_done = self.is_done[low:high]
        count = int(np.count_nonzero(is_done))
        if not count:
            return PartRows(0, slice(0, 0), slice(0, 0))
        # Most of a part is done in one piece, in which nothing is left out between its tasks: then
        # all of them are gone through, which is faster than to gather those that are done.
        place = int(self.ids[low]) - first
        if int(self.ids[high - 1]) - int(self.ids[low]) + 1 == high - low <= 2 * count:
            return PartRows(count, slice(place, place + high - low), slice(low, high), is_done)
        rows = low + np.flatnonzero(is_done)
        return PartRows(count, self.ids[rows] - first, rows)


_UNKNOWN = -1


class RecentValues:
    """A number for each task of the last two parts, and for older ones that the last waits for."""

    def __init__(self) -> None:
        self._parts: list[tuple[int, Int64s]] = []  # first task, and (task,) values
        self._older: dict[int, int] = {}

    def begin(self, part: GraphPart) -> Int64s:
        """Make room for a part; returns the tasks of earlier parts that it waits for (task,).

        Raises
        ------
        GraphError
            If it waits for a task that has been forgotten.
        """
        asked: Int64s = np.unique(part.outer_source).astype(np.int64)
        first = self._parts[-1][0] if self._parts else 0  # what is older is forgotten now
        older = asked[asked < first]
        self._older = dict(zip(older.tolist(), self.so_far(older).tolist(), strict=True))
        unknown = np.full(part.graph.num_tasks, _UNKNOWN, np.int64)
        self._parts = [*self._parts[-1:], (part.first_task, unknown)]
        return asked

    def put(self, piece: Piece, values: Int64s) -> None:
        """Remember numbers from 0 on of what became visible in a piece.

        Parameters
        ----------
        values
            (task,): of the piece's tasks; of those that are long over none is remembered.
        """
        for first, known in self._parts:
            piece.of(first, first + known.size).put(known, values)
        if self._older:
            asked = np.array(list(self._older), np.int64)
            rows = np.minimum(piece.find(asked), piece.ids.size - 1)
            found = (piece.ids[rows] == asked) & piece.is_done[rows]
            rows = rows[found]
            self._older |= dict(zip(asked[found].tolist(), values[rows].tolist(), strict=True))

    def put_last(self, values: Int64s) -> None:
        """Remember numbers of all tasks of the last part (task,)."""
        self._parts[-1] = (self._parts[-1][0], values)

    def of(self, ids: Int64s) -> Int64s:
        """Numbers of tasks (task,).

        Raises
        ------
        GraphError
            If one is not known.
        """
        values = self.so_far(ids)
        if np.any(values == _UNKNOWN):
            _raise_over(int(ids[int(np.argmax(values == _UNKNOWN))]))
        return values

    def so_far(self, ids: Int64s) -> Int64s:
        """Numbers of tasks (task,), -1 of those that are not known yet.

        Raises
        ------
        GraphError
            If one has been forgotten.
        """
        values = np.full(ids.size, _UNKNOWN, np.int64)
        is_found = np.zeros(ids.size, np.bool_)
        for first, known in self._parts:
            inside = (ids >= first) & (ids < first + known.size)
            values[inside] = known[ids[inside] - first]
            is_found |= inside
        for place in np.flatnonzero(~is_found).tolist():
            task = int(ids[place])
            if task not in self._older:
                _raise_over(task)
            values[place] = self._older[task]
        return values


def _raise_over(task: int) -> None:
    message = f"a part waits for task {task}, which is long over"
    raise GraphError(message)
