"""Nodes that have all their rows, where not all have; `replay.model.work.thinning` makes them so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from replay.model.arrays import Ints, Picoseconds


@dataclass(frozen=True)
class NodeSample:
    """Nodes whose ranks are replayed in full.

    Attributes
    ----------
    nodes
        Their numbers, ascending.
    of_rank
        (rank,): node of every rank.
    models
        (rank,): the rank of the same index on the sampled node that stands for the rank's node;
        itself where it is on a sampled node.
    summary
        What the routing of the whole layer asks for, see `LayerWork.summary`.
    """

    nodes: tuple[int, ...]
    of_rank: Ints
    models: Ints
    summary: dict[str, Any]

    @property
    def num_nodes(self) -> int:
        """Nodes there are."""
        return int(self.of_rank.max()) + 1

    @property
    def holds(self) -> npt.NDArray[np.bool_]:
        """(rank,): whether a rank is on a sampled node."""
        return np.isin(self.of_rank, self.nodes)

    def of_all_nodes(self, time_ps: Picoseconds) -> Ints:
        """Scale time in service from the rows that are left to those of all nodes, rounded up.

        Rows between two nodes are left if at least one is sampled. All pairs of nodes are taken to
        exchange equally many.
        """
        nodes, others = self.num_nodes, self.num_nodes - len(self.nodes)
        pairs = nodes * (nodes - 1)
        found: Ints = -(-time_ps * pairs // (pairs - others * (others - 1)))
        return found
