"""Every schedule by name."""

from __future__ import annotations

from replay.errors import unknown
from replay.experiments.train.schedules.base import Schedule
from replay.experiments.train.schedules.dualpipe import DualPipe
from replay.experiments.train.schedules.interleaving import InterleavedSchedule, MegatronOverlap
from replay.experiments.train.schedules.straight import GPipe, OneFOneB, ZeroBubbleH1
from replay.experiments.train.schedules.zb_v import ZeroBubbleV

SCHEDULES: dict[str, Schedule] = {
    one.name: one
    for one in (
        GPipe(),
        OneFOneB(),
        InterleavedSchedule(),
        MegatronOverlap(),
        ZeroBubbleH1(),
        ZeroBubbleV(),
        DualPipe(),
    )
}
"""Every order in which a pipeline's stages run their passes, by name."""


def find(name: str) -> Schedule:
    """Give a schedule by name.

    Raises
    ------
    UserError
        If there is none of that name, with those that there are.
    """
    try:
        return SCHEDULES[name]
    except KeyError:
        raise unknown("schedule", name, SCHEDULES) from None
