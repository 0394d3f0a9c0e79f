"""Collectives of attention's tensor parallelism, by replay on the GPUs of a worker."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from replay.collectives import library
from replay.graph import GraphBuilder, schedule
from replay.machine.kinds import DISPATCH, KIND_NAMES
from replay.machine.machine import Machine

if TYPE_CHECKING:
    from hwmodel import System
    from replay.collectives.algorithm import Collective


class Slices:
    """GPUs that slice the heads of a worker: neighbours, in one NVLink domain.

    Parameters
    ----------
    tp
        How many.
    """

    def __init__(self, system: System, tp: int) -> None:
        self._system, self._tp = system, tp
        self._time_ps = functools.cache(self._replayed)

    def time_ps(self, nbytes: int) -> int:
        """Gather rows of so many bytes in all before attention, and sum and scatter them behind.

        NCCL's all-gather and reduce-scatter, each a kernel.
        """
        if self._tp == 1 or not nbytes:
            return 0
        return self._time_ps("all_gather", nbytes) + self._time_ps("reduce_scatter", nbytes)

    def _replayed(self, what: Collective, nbytes: int) -> int:
        machine = Machine(self._system, GraphBuilder(KIND_NAMES), self._tp)
        begun = machine.kernel(machine.mark(machine.ranks))
        library.find("nccl").build(machine, DISPATCH, what, nbytes, begun, payload=True)
        return schedule(machine.graph.build()).makespan_ps
