"""The resources of a modelled system in a task graph, each with the class it counts as."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from enum import IntEnum, unique
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from replay.errors import UserError
from replay.model.arrays import Ints, Ranks

if TYPE_CHECKING:
    from replay.engine import GraphBuilder, TaskGraph

IntsLike = Ints | int
"""Such an array, or one number for all."""
Discipline = Literal["fifo", "voq", "turns", "line"]


@unique
class ResourceClass(IntEnum):
    """Part of a machine that a resource belongs to."""

    UPLINK = 0  # GPU -> switch
    DOWNLINK = 1  # switch -> GPU
    NIC_OUT = 2  # network card -> leaf switch of the network between domains
    NIC_IN = 3
    SM = 4  # SMs, or warps of them
    HBM = 5
    HOST = 6  # the thread that launches kernels
    HUB = 7  # logic in front of a GPU's memory
    SWITCH = 8  # adders of the switch
    ARBITER = 9  # units that decide who is next
    L2 = 10  # the cache that all SMs of a GPU share, as a server of bytes
    OTHER = 11  # made by a scheme straight on the graph
    PROXY = 12  # the thread of the host that posts what leaves the node for its GPU
    PCIE_OUT = 13  # GPU -> its network card
    PCIE_IN = 14
    LEAF_UP = 15  # leaf switch -> spine
    LEAF_DOWN = 16
    LINK = 18  # between two GPUs without a switch, or two groups of GPUs; payload is its ports'
    VECTOR = 17  # vector cores of an NPU, beside the cube cores that count as SMs


PORTS = (
    ResourceClass.UPLINK,
    ResourceClass.DOWNLINK,
    ResourceClass.NIC_OUT,
    ResourceClass.NIC_IN,
    ResourceClass.PCIE_OUT,
    ResourceClass.PCIE_IN,
    ResourceClass.LEAF_UP,
    ResourceClass.LEAF_DOWN,
)
"""Classes whose tasks are messages. A rank owns at most one port of each; see `NetworkPorts`."""


class Resources:
    """Resources of one system in one task graph.

    Parameters
    ----------
    graph
        Builder that receives the resources.
    num_ranks
        Ranks in use; rank r runs on GPU r.
    uplinks
        Discipline of the uplinks.

    Attributes
    ----------
    uplink, downlink
        (rank,): the port GPU -> switch and switch -> GPU.
    hbm, host
        (rank,): the memory system of the GPU, and the host thread that launches its kernels.
    """

    def __init__(self, graph: GraphBuilder, num_ranks: int, uplinks: Discipline = "voq") -> None:
        self._graph = graph
        self._made: dict[tuple[str, Hashable], Ints] = {}
        self._groups: dict[str, tuple[ResourceClass, str]] = {}
        self._classes: list[tuple[Ints, ResourceClass]] = []  # of the resources that were made
        self.num_ranks = num_ranks
        self.ranks: Ranks = np.arange(num_ranks, dtype=np.int64)
        self.uplinks_take_turns = uplinks == "turns"
        # Requests and responses have virtual channels of their own: a request that waits for room
        # in a reduction buffer does not hold up what others asked for.
        self.uplink = self.each("uplink", ResourceClass.UPLINK, discipline=uplinks)
        self.downlink = self.each("downlink", ResourceClass.DOWNLINK)
        # Tiles on SMs draw from memory beside the tasks that it serves.
        self.hbm = self.each("hbm", ResourceClass.HBM, discipline="line")
        self.host = self.each("host", ResourceClass.HOST)

    @cached_property
    def hub(self) -> Ints:
        """(rank,): the logic in front of a GPU's memory that keeps its tables."""
        return self.each("hub", ResourceClass.HUB)

    @cached_property
    def proxy(self) -> Ints:
        """(rank,): the thread of the host that posts what the GPU's network card sends."""
        return self.each("proxy", ResourceClass.PROXY)

    def once(self, kind: str, key: Hashable, make: Callable[[], Ints]) -> Ints:
        """Make something the first time it is asked for, and give the same from then on.

        Parameters
        ----------
        kind
            What it is. Different kinds never share anything, whatever their keys.
        key
            Name and sizes.
        make
            Makes it.
        """
        if (kind, key) not in self._made:
            self._made[kind, key] = make()
        return self._made[kind, key]

    def each(
        self,
        group: str,
        of: ResourceClass,
        *,
        kind: str = "part of the machine",
        servers: int = 1,
        discipline: Discipline = "fifo",
    ) -> Ints:
        """Make one resource for every GPU: (rank,); see `several`."""
        owners = list(range(self.num_ranks))
        names = [f"{group} {rank}" for rank in owners]
        return self.several(group, of, names, owners, kind=kind, servers=servers, discipline=discipline)

    def several(
        self,
        group: str,
        of: ResourceClass,
        names: Sequence[str],
        owners: list[int],
        *,
        kind: str,
        servers: int = 1,
        discipline: Discipline = "fifo",
    ) -> Ints:
        """Make resources of one group: (resource,).

        Parameters
        ----------
        group, of
            Name of the group, for reports, and the class it counts as.
        names, owners
            Name and GPU of each resource.
        kind
            What they are.

        Raises
        ------
        UserError
            If the group's name already belongs to something else.
        """
        _, known = self._groups.setdefault(group, (of, kind))
        if known != kind:
            message = f"{group!r} is the name of a {known} already; a {kind} needs another one"
            raise UserError(message)
        made = self._graph.resources(names, owners, group, servers, discipline)
        self._classes.append((made, of))
        return made

    def servers_of(self, resource: int) -> int:
        """Servers of a resource."""
        return self._graph.servers_of(resource)

    def classes(self, graph: TaskGraph) -> Ints:
        """Class of every resource of the graph that was built: (resource,) `ResourceClass`."""
        classes = np.full(len(graph.resources), ResourceClass.OTHER, np.int64)
        for made, of in self._classes:
            if made.size and made[-1] < classes.size:  # more may have been made since
                classes[made] = of
        return classes
