"""Every schedule by name."""

from __future__ import annotations

from replay.errors import unknown
from replay.training.schedules.base import Schedule
from replay.training.schedules.one_f_one_b import OneFOneB

SCHEDULES: dict[str, Schedule] = {one.name: one for one in (OneFOneB(),)}


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
