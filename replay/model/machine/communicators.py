"""Communicators of NCCL: which ranks are in one with which, and on which nodes.

A node is an NVLink domain. Ranks that are all in one communicator exchange over NVLink and network;
those of each domain can have a communicator of their own, as those of each rail can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from hwmodel.system import Capability

if TYPE_CHECKING:
    from hwmodel import System
    from replay.model.arrays import Ints, Ranks
    from replay.model.machine.domains import Domains

Group = Literal["all", "inside", "rail"]
"""Who is in a communicator together: all ranks, those of a domain, those of one index in theirs."""


@dataclass(frozen=True)
class Communicators:
    """Communicators that are alike.

    Attributes
    ----------
    node, local
        (rank,): its node, numbered in its communicator, and its index among the ranks there.
    num_nodes, ranks_of_node
        Of each communicator; the last node may have fewer ranks.
    size
        Ranks of each communicator.
    """

    node: Ints
    local: Ints
    num_nodes: int
    ranks_of_node: int
    size: int

    @property
    def is_one_node(self) -> bool:
        """Tell whether nothing leaves a node."""
        return self.num_nodes == 1

    def distance(self, src: Ranks, dst: Ranks) -> Ints:
        """Distance of peers (pair,): by nodes first, then by ranks within the node."""
        nodes = (self.node[dst] - self.node[src]) % self.num_nodes
        ranks = (self.local[dst] - self.local[src]) % self.ranks_of_node
        found: Ints = nodes * self.ranks_of_node + ranks
        return found

    def place(self, src: Ranks, dst: Ranks, batch: int) -> Ints:
        """Place of peers in the order in which they get channels (pair,).

        With several nodes, as many as a channel serves at once have one place.
        """
        distance = self.distance(src, dst)
        if self.is_one_node:
            return distance
        nodes, ranks = np.divmod(distance, self.ranks_of_node)
        found: Ints = nodes * -(-self.ranks_of_node // batch) + ranks // batch
        return found


def communicators(domains: Domains, group: Group) -> Communicators:
    """Communicators of the ranks in use.

    Raises
    ------
    ValueError
        If communicators of a domain, or of a rail, have unequally many ranks.
    """
    return domains.once(group, lambda: _communicators(domains, group))


def _communicators(domains: Domains, group: Group) -> Communicators:
    ranks = np.arange(len(domains.gpu))
    node, local, nodes, size = domains.of(ranks), domains.local(ranks), domains.num, domains.size
    if group == "all":
        if nodes == 1:
            return Communicators(0 * ranks, ranks, 1, len(ranks), len(ranks))
        return Communicators(node, local, nodes, size, len(ranks))
    if not domains.even:
        message = f"{len(ranks)} ranks fill no domains of {size}: their communicators differ"
        raise ValueError(message)
    if group == "inside":
        inside = len(ranks) // nodes
        return Communicators(0 * ranks, local, 1, inside, inside)
    return Communicators(node, 0 * ranks, nodes, 1, nodes)


def runs_nccl(system: System) -> bool:
    """Tell whether the GPUs of a system run NCCL."""
    return Capability.CUDA in system.capabilities
