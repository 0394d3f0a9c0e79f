"""Progress of tasks: of all of a graph, or of some since the piece before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.engine.columns import IntArray
from replay.engine.taskgraph import NEVER

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.engine.piece import Piece
    from replay.model.arrays import Int32s, Ints

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TaskProgress:
    """Tasks that are over, in a graph that may hold others as well.

    Attributes
    ----------
    timeline
        Their times.
    is_done
        (task,): which they are; None for all.
    ids, touch_ids
        (task,), (touch,): numbers in the whole; None where they are the same.
    closed_ps
        Nothing that is still to come begins earlier; `NEVER` where nothing comes any more.
    """

    timeline: Timeline
    is_done: Bools | None = None
    ids: Ints | None = None
    touch_ids: Ints | None = None
    closed_ps: int = NEVER

    @classmethod
    def of(cls, piece: Piece) -> TaskProgress:
        """Progress that a piece of a schedule tells."""
        closed = min(piece.now_ps, piece.begun_since_ps)
        return cls(piece.timeline, piece.is_done, piece.ids, piece.touch_ids, closed)

    def owners(self, owner: Int32s, task: IntArray | None = None) -> Int32s:
        """(row,): the owner where a row's task is over, else -1; rows are tasks if not given."""
        if self.is_done is None:
            return owner
        return np.where(self.is_done if task is None else self.is_done[task], owner, -1).astype(np.int32)

    def touches(self) -> Ints:
        """Touches whose tasks are over."""
        task = self.timeline.graph.touches.task
        if self.is_done is None:
            return np.arange(len(task))
        return np.flatnonzero(self.is_done[task])
