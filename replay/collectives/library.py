"""All algorithms of collectives, by the name under which schemes and users ask for them."""

from __future__ import annotations

from replay.collectives.algorithm import Algorithm
from replay.collectives.nccl import NCCL
from replay.collectives.nvls import NVLS
from replay.collectives.ring import RING
from replay.collectives.tree import TREE
from replay.errors import unknown

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm for algorithm in (NCCL, RING, TREE, NVLS)
}
"""The algorithms, in the order of lists."""


def find(name: str) -> Algorithm:
    """Find an algorithm.

    Raises
    ------
    UserError
        If there is none of the name.
    """
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
