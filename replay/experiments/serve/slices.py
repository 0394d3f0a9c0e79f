"""Collectives of attention's tensor parallelism, by replay on the GPUs of a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replay.engine import GraphBuilder, schedule
from replay.model.machine.kinds import KIND_NAMES
from replay.model.machine.machine import Machine
from replay.steps.groups import Groups

if TYPE_CHECKING:
    from hwmodel import System


class Slices:
    """GPUs that slice the heads of a worker: neighbours, in one NVLink domain.

    Parameters
    ----------
    tp
        How many.
    """

    def __init__(self, system: System, tp: int) -> None:
        self._groups, self._tp = Groups(system), tp
        self._begin_ps = _begin_ps(system)

    def time_ps(self, nbytes: int) -> int:
        """Gather rows of so many bytes in all before attention, and sum and scatter them behind.

        An all-gather and a reduce-scatter, each a kernel.
        """
        if self._tp == 1 or not nbytes:
            return 0
        gathered = self._groups.collective_ps("all_gather", nbytes, self._tp)
        scattered = self._groups.collective_ps("reduce_scatter", nbytes, self._tp)
        return 2 * self._begin_ps + gathered + scattered


def _begin_ps(system: System) -> int:
    """Time from one kernel's end to the begin of the next."""
    machine = Machine(system, GraphBuilder(KIND_NAMES), 1)
    machine.kernel(machine.mark(machine.ranks))
    return schedule(machine.graph.build()).makespan_ps
