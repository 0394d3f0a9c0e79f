"""Collectives and messages between GPUs that a plan spreads over a machine, by exact replay.

A group takes every `stride`-th GPU: tensor parallelism neighbours, data parallelism GPUs of the
same index in other groups. Within an NVLink domain its members are as near to each other as any
GPUs. Over several domains a group has some members in each, every one with a network card of its
own, while other groups like it use the other cards at the same time: it is replayed on a machine
whose nodes have these members alone.

NCCL's kernels run where there is NCCL, and engines copy elsewhere, as HCCL has them do
(`replay.model.collectives.dma`), each GPU its part to every other one. Beyond `LARGEST` bytes a
collective goes on at the rate at which it has come from half of them: rings are pipelines, whose
time grows with the bytes alone once they are filled.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hwmodel.system import System
from replay.engine import GraphBuilder, schedule
from replay.model.collectives import dma, point_to_point
from replay.model.collectives.nccl import NCCL
from replay.model.collectives.pair_rules import rules_on
from replay.model.machine.communicators import runs_nccl
from replay.model.machine.kinds import DISPATCH, KIND_NAMES, Kind
from replay.model.machine.machine import Machine
from replay.steps.times import StageHop

if TYPE_CHECKING:
    from hwmodel.quantity import Quantity
    from replay.model.arrays import Ints
    from replay.model.collectives.algorithm import Collective

LARGEST = 1 << 30
"""Bytes of a collective that is replayed as it is. The time of four times as many, by replay too,
is within 1 % of what follows from it, on 8 to 64 GPUs of H100."""

FEW_BYTES = 256
"""A message whose time is all latency."""


@dataclass(frozen=True)
class GroupTimes:
    """Times of collectives and messages on a system, each replayed once."""

    system: System
    _known: dict[tuple[str, int, int, int], int] = field(default_factory=dict, repr=False)

    def collective_ps(self, what: Collective, nbytes: int, size: int, stride: int = 1) -> int:
        """Time of a collective from the start of its kernel, if all GPUs come at once.

        Parameters
        ----------
        nbytes
            Of the larger of a GPU's two buffers.
        size, stride
            GPUs of the group, and the distance from one to the next.
        """
        if size == 1 or not nbytes:
            return 0
        if nbytes > LARGEST:
            half = self.collective_ps(what, LARGEST // 2, size, stride)
            most = self.collective_ps(what, LARGEST, size, stride)
            return most + (most - half) * (nbytes - LARGEST) // (LARGEST - LARGEST // 2)
        key = (what, nbytes, size, stride)
        if key not in self._known:
            system = spread(self.system, size, stride)
            machine = Machine(system, GraphBuilder(KIND_NAMES), size)
            _run(machine, what, nbytes, machine.mark(machine.ranks))
            self._known[key] = schedule(machine.graph.build()).makespan_ps
        return self._known[key]

    @functools.cached_property
    def gap_ps(self) -> int:
        """Time from one kernel's end to the begin of the next."""
        machine = Machine(self.system, GraphBuilder(KIND_NAMES), 1)
        machine.kernel(machine.mark(machine.ranks))
        return schedule(machine.graph.build()).makespan_ps

    def hop(self, nbytes: int, distance: int, *, crosses: bool) -> StageHop:
        """A message to the GPU `distance` further on, while all others send theirs.

        Parameters
        ----------
        crosses
            Whether it leaves the NVLink domain.
        """
        whole = self._message_ps(nbytes, distance, crosses=crosses)
        latency = self._message_ps(FEW_BYTES, distance, crosses=crosses)
        return StageHop(duration_ps=max(0, whole - latency), latency_ps=latency)

    def _message_ps(self, nbytes: int, distance: int, *, crosses: bool) -> int:
        domain = self.system.fabric.gpus_per_domain
        system = spread(self.system, 2, max(distance, domain) if crosses else 1)
        machine = Machine(system, GraphBuilder(KIND_NAMES), 2)
        sizes = np.array([[0, nbytes], [0, 0]], np.int64)
        begun = machine.mark(machine.ranks)
        if machine.has_nccl:
            rules = rules_on(system, 2)
            split = machine.sms.split("hops between stages", {"nccl": rules.num_channels})
            channels = split.channels("nccl", rules.num_channels)
            point_to_point.all_to_all(machine, DISPATCH, channels, rules, sizes, begun, payload=False)
        else:
            dma.all_to_all(machine, DISPATCH, sizes, begun, payload=False)
        return schedule(machine.graph.build()).makespan_ps


def _run(machine: Machine, what: Collective, nbytes: int, begun: Ints) -> None:
    if machine.has_nccl:
        NCCL.build(machine, DISPATCH, what, nbytes, begun)
        return
    size = machine.num_ranks
    sizes = np.full((size, size), nbytes // size, np.int64)
    np.fill_diagonal(sizes, 0)
    done = dma.all_to_all(machine, DISPATCH, sizes, begun, payload=False).done
    if what != "all_gather":  # vector cores add up what has come
        machine.stream(Kind.BETWEEN, np.full(size, nbytes + nbytes // size), machine.ranks, done)


def spread(system: System, size: int, stride: int) -> System:
    """The machine that a group of GPUs sees: nodes with its members alone.

    Parameters
    ----------
    size, stride
        GPUs of the group, and the distance from one to the next.
    """
    domain = system.fabric.gpus_per_domain
    in_domain = max(1, domain // stride)
    fills = size % domain == 0 or not runs_nccl(system)  # rings of NCCL need whole nodes
    if size <= in_domain or (in_domain == domain and system.num_gpus >= size and fills):
        return system
    # As many in each node as divide the group, so that all nodes are alike.
    members = next(count for count in range(in_domain, 0, -1) if size % count == 0)
    spec = system.spec
    given, link, mesh = spec.fabric, spec.link, spec.mesh
    rows = given.links_per_plane.value
    changes = {
        "num_gpus": _change(given.num_gpus, members),
        "num_domains": _change(given.num_domains, size // members),
        "rank_order": _change(given.rank_order, "by node"),
        "slow": _change(given.slow, []),
    }
    if any(isinstance(row, list) for row in rows):
        changes["links_per_plane"] = _change(given.links_per_plane, rows[:members])
    if mesh is not None:
        # Links to those that are left. One alone has no mesh, and sends nothing over its links.
        links = mesh.links_per_pair.value * max(members - 1, 1)
        link = link.model_copy(update={"links_per_gpu": _change(link.links_per_gpu, links)})
        changes["links_per_plane"] = _change(given.links_per_plane, [links])
        mesh = mesh if members > 1 else None
    fabric = given.model_copy(update=changes)
    smaller = {"fabric": fabric, "link": link, "mesh": mesh, "groups": None}
    return System.from_spec(spec.model_copy(update=smaller), size)


def _change(quantity: Quantity[Any], value: object) -> Quantity[Any]:
    return quantity.model_copy(update={"value": value})
