"""The parts of a machine that resources are made of, each counted once.

Kernels hold SMs under names of their own, and what two names hold may be the same SMs at different
times. Work, utilisation and bounds are those of the SMs that a GPU has, whatever they are called.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from replay.engine import TaskGraph
    from replay.model.arrays import Ints, Picoseconds
    from replay.model.machine.machine import Machine

SMS = "sm"  # name of the group; other resources keep theirs


@dataclass(frozen=True)
class Pools:
    """Parts of a machine, and the resources that are made of them.

    Attributes
    ----------
    names, groups
        Of each pool.
    pool
        (resource,): the pool that it takes servers of.
    parts
        (resource,): how many servers of the resource make up one of the pool: the queues of an SM
        whose warps serve several, else 1.
    capacity
        (pool,): servers; of SMs, what the GPU has.
    """

    names: tuple[str, ...]
    groups: tuple[str, ...]
    pool: Ints
    parts: Ints
    capacity: Ints

    @classmethod
    def of(cls, graph: TaskGraph, machine: Machine) -> Pools:
        """Put all SMs of a GPU together; every other resource is a pool by itself."""
        resources = graph.resources
        count = len(resources)
        parts = _queues_of_sm(machine, count)
        is_sm = np.zeros(count, np.bool_)
        is_sm[machine.sms.resources] = True
        others = (~is_sm).nonzero()[0]
        pool = np.where(is_sm, resources.owner.astype(np.int64), 0)
        pool[others] = machine.num_ranks + np.arange(len(others))
        gpus = range(machine.num_ranks)
        return cls(
            names=(*(f"{SMS} {gpu}" for gpu in gpus), *(resources.names[one] for one in others)),
            groups=(*(SMS for _ in gpus), *(resources.groups[one] for one in others)),
            pool=pool,
            parts=parts,
            capacity=np.append(
                np.full(machine.num_ranks, machine.sms.count, np.int64),
                resources.servers[others].astype(np.int64),
            ),
        )

    def total(self, of_resource: Ints) -> Ints:
        """Sum times of resources over each pool, in whole servers of it: (pool,), rounded down."""
        total = np.zeros(len(self.capacity), np.int64)
        np.add.at(total, self.pool, of_resource // self.parts)
        return total

    def busiest_ps(self, graph: TaskGraph, work: Ints) -> Picoseconds:
        """Time that each pool needs at least for a graph's tasks: (pool,).

        All its work over its servers, or the time of the resource that is busiest with those that
        it has been given.

        Parameters
        ----------
        work
            (resource,): time in service that it has at least, see `least_work_ps`.
        """
        least: Ints = -(-self.total(work) // self.capacity)
        np.maximum.at(least, self.pool, -(-work // graph.resources.servers))
        return least

    def shares(self, busy_ps: Picoseconds, makespan_ps: int) -> npt.NDArray[np.float64]:
        """(pool,): time in service, of each resource (resource,), over what its servers offered."""
        offered = self.capacity * max(makespan_ps, 1)
        shares: npt.NDArray[np.float64] = self.total(busy_ps) / offered
        return shares

    @cached_property
    def whole(self) -> int:
        """Least number that all of `parts` divide."""
        return math.lcm(*set(self.parts.tolist()))


def _queues_of_sm(machine: Machine, num_resources: int) -> Ints:
    """(resource,): how many queues the SM has that it is a queue of, by the SM's name; else 1."""
    by_name: dict[str, list[tuple[str, Ints]]] = {}
    for (name, queues), group in zip(machine.sms.queues, machine.sms.groups, strict=True):
        if queues.ndim > 1:
            by_name.setdefault(name, []).append((group, queues.reshape(*queues.shape[:2], -1)))
    found = np.ones(num_resources, np.int64)
    for several in by_name.values():
        most = max(queues.shape[1] for _, queues in several)
        of_group = {group: np.zeros((machine.num_ranks, most), np.int64) for group, _ in several}
        for group, queues in several:  # of one name some are in use at a time
            count = of_group[group][:, : queues.shape[1]]
            np.maximum(count, queues.shape[2], out=count)
        together = np.sum([*of_group.values()], axis=0)
        for _, queues in several:
            found[queues] = together[:, : queues.shape[1], None]
    return found
