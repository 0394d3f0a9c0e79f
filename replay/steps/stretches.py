"""Stretches of a GPU's own time: kernels one after the other, launched by the GPU's host.

Every GPU goes through them by itself. What they exchange with others who come at the same time is
a kernel of known length (`replay.model.compute.slices`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.machine.host import Launch
    from replay.steps.times import Cause, Ints

Add = Callable[[Machine, "Ints"], "Mapping[Cause, Ints]"]
"""Adds kernels behind (rank,) tasks; gives the (rank,) tasks that end each cause, in order."""


@dataclass(frozen=True)
class Stretch:
    """What a stretch takes.

    Attributes
    ----------
    causes
        (rank,) picoseconds by cause.
    lead
        (rank,): how long before its GPU each host is through with it.
    """

    causes: Mapping[Cause, Ints]
    lead: Time


def replay_stretch(
    system: System, num_ranks: int, add: Add, launch: Launch | None = None, lead: Time = NO_TIME
) -> Stretch:
    """Replay a stretch.

    Parameters
    ----------
    launch, lead
        See `replay.model.machine.host.Host`.
    """
    builder = GraphBuilder(KIND_NAMES)
    machine = Machine(system, builder, num_ranks, launch=launch, lead=lead)
    ends = add(machine, machine.mark(machine.ranks))
    visible = schedule(builder.build()).visible_ps
    causes: dict[Cause, Ints] = {}
    before = np.zeros(num_ranks, np.int64)
    for cause, tasks in ends.items():
        causes[cause], before = visible[tasks] - before, visible[tasks]
    return Stretch(causes, lead_after(machine, visible, before))


def lead_after(machine: Machine, visible_ps: Ints, ended_ps: Ints) -> Time:
    """How long before its GPU each host is through.

    Parameters
    ----------
    visible_ps
        (task,): when each task of the graph is over.
    ended_ps
        (rank,): when each GPU is through.
    """
    host = machine.host
    launched = 0 if host.last is None else visible_ps[host.last]
    return NO_TIME if host.lead is None else host.lead + Time(ended_ps - launched)
