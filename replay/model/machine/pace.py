"""The pace of ranks that are not replayed in full: no faster than those that stand for them.

Only the ranks of the sampled nodes have all their work (`replay.model.work.thinning`); the others
have too little, would be through with each kernel too early, and send their rows too early. So each
of their kernels begins when the same kernel begins on the GPU of the same index of the sampled node
that stands for theirs, or later. Within a kernel they do what is left to them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from replay.model.arrays import Tasks
    from replay.model.machine.tasks import TaskBuilder
    from replay.model.work.node_sample import NodeSample


class Pace:
    """Pace of ranks of other nodes, which wait for those of sampled nodes.

    Parameters
    ----------
    tasks
        Adds the marks at which they go on.
    sample
        The nodes whose ranks are replayed in full.
    """

    def __init__(self, tasks: TaskBuilder, sample: NodeSample) -> None:
        self._tasks = tasks
        self._others = np.flatnonzero(~sample.holds)
        self._models = sample.models[self._others]

    def __call__(self, after: Tasks) -> Tasks:
        """Let others wait for what precedes a kernel on their models, too: (rank,) tasks."""
        paced = after.copy()
        paced[self._others] = self._tasks.mark(self._others, after[self._others])
        self._tasks.order(after[self._models], paced[self._others])
        return paced
