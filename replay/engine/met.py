"""When tasks became ready, and whom they waited for last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.engine.columns import IntArray, every
from replay.engine.taskgraph import Bools

if TYPE_CHECKING:
    from replay.engine.timeline import Timeline


@dataclass(frozen=True, eq=False)
class Met:
    """When tasks became ready, and whom they waited for last.

    Attributes
    ----------
    ready_ps
        (task,): when the last one that it waited for became visible; 0 if it waited for none.
    cause
        (task,): the number of that one, -1 for none.
    """

    ready_ps: npt.NDArray[np.int64]
    cause: npt.NDArray[np.int64]

    @classmethod
    def nobody(cls, num_tasks: int) -> Met:
        """Of tasks that wait for everybody still."""
        return cls(np.zeros(num_tasks, np.int64), np.full(num_tasks, -1, np.int64))


def last_met(
    timeline: Timeline,
    is_visible: Bools | None = None,
    before: Met | None = None,
    left: IntArray | None = None,
) -> tuple[Met, Met]:
    """Look at what each task waited for.

    Parameters
    ----------
    timeline
        A schedule.
    is_visible
        (task,): whether it has become visible in this schedule; all by default.
    before
        Whom each task waited for last before, edges alone; it is given up.
    left
        Tasks that are still to wait (left task,).

    Returns
    -------
    Of all tasks, and of those left the edges alone. Of several that became visible at one moment
    the one with the smallest number is taken, edges before gates.
    """
    from replay.engine.kernels.reading import Causes, last_admitted, last_met_edges

    graph, gates = timeline.graph, timeline.graph.gates
    met = Met.nobody(graph.num_tasks) if before is None else before
    whole = Causes(
        timeline,
        graph,
        gates,
        met,
        is_visible=every(graph.num_tasks) if is_visible is None else is_visible,
        number=np.arange(graph.num_tasks, dtype=np.int32) if graph.ids is None else graph.ids,
    )
    last_met_edges(whole)
    rows = np.zeros(0, np.int64) if left is None else left
    edges = Met(met.ready_ps[rows], met.cause[rows])
    last_admitted(whole)
    return met, edges
