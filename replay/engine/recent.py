"""What is remembered of tasks that later parts of a graph may wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.engine.errors import GraphError
from replay.engine.taskgraph import GraphPart, Int64s

if TYPE_CHECKING:
    from replay.engine.piece import Piece

_UNKNOWN = -1


class Recent:
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
