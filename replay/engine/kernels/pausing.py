# mypy: allow-untyped-defs, allow-untyped-calls
"""What is left to do of a run that was paused; `replay.engine.pausing` says what it is about."""

from __future__ import annotations

import numpy as np

from replay.engine.kernels.compiling import entry
from replay.engine.kernels.layout import LATE_LANE, TASK
from replay.engine.kernels.memory import Fixed, Memory, Records, Vector


class Paused(Memory):
    """Records of tasks where a run was paused."""

    num_tasks = Fixed()
    num_streams = Fixed()
    now = Fixed()
    tasks = Records(TASK)
    visible = Vector(np.int64)
    left = Vector(np.int32)  # tasks that are not over


@entry(Paused)
def find_left(p):
    """Find the tasks that are not over, and note when all are visible; how many are left.

    A record says since when a task waits at a station where others say when they are visible.
    """
    num_left = 0
    for number in range(p.num_tasks):
        task = p.tasks[number]
        visible = task.visible
        p.visible[number] = visible
        is_left = visible < 0 or visible > p.now or task.missing > 0
        if task.missing == 0 and (task.lane >= p.num_streams or task.lane <= LATE_LANE):
            is_left = True
        if is_left:
            p.left[num_left] = number
            num_left += 1
    return num_left
