"""Every schedule by name."""

from __future__ import annotations

from replay.errors import unknown
from replay.training.schedules.base import Schedule
from replay.training.schedules.dualpipe import DualPipe
from replay.training.schedules.gpipe import GPipe
from replay.training.schedules.interleaved import Interleaved
from replay.training.schedules.megatron_overlap import MegatronOverlap
from replay.training.schedules.one_f_one_b import OneFOneB
from replay.training.schedules.zb_h1 import ZeroBubbleH1
from replay.training.schedules.zb_v import ZeroBubbleV

SCHEDULES: dict[str, Schedule] = {
    one.name: one
    for one in (
        GPipe(),
        OneFOneB(),
        Interleaved(),
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
