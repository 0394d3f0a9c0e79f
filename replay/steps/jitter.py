"""Random delays of GPUs in a step that is composed of the times of its parts.

They are those of `replay.chains.jitter`: each GPU is held up before each layer in which GPUs meet.
In a composed step all GPUs of a stage wait there for the last one. A scheme that waits for rows
alone loses less in an exact replay, if it does not need rows of the one that is late (MODELS.md).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from replay.chains.jitter import Jitter

Ints = npt.NDArray[np.int64]


def delays(jitter: Jitter) -> Callable[[Ints, Ints, Ints], tuple[Ints, Ints]]:
    """Give what holds GPUs up, as `replay.experiments.train.composed.compose` takes it.

    Returns
    -------
    A function of the stages (stride,) of strides and of their times (stride, rank) before and after
    GPUs meet. It gives both times, the former longer where GPUs meet at all. Stride n of a stage
    that does has delays of its own, whatever the other stages do.
    """

    def held_up(stage: Ints, own_ps: Ints, met_ps: Ints) -> tuple[Ints, Ints]:
        longer, seen = own_ps.copy(), dict.fromkeys(stage.tolist(), 0)
        for stride in np.flatnonzero(met_ps.any(axis=1)).tolist():
            at = int(stage[stride])
            longer[stride] += jitter.delays_ps(own_ps.shape[1], (at, seen[at]))
            seen[at] += 1
        return longer, met_ps

    return held_up
