"""All algorithms of collectives, by the name under which schemes and users ask for them."""

from __future__ import annotations

from replay.collectives.algorithm import Algorithm
from replay.collectives.multimem_kernels import MULTIMEM
from replay.collectives.nccl import NCCL
from replay.collectives.nvls import NVLS
from replay.collectives.one_shot import ONE_SHOT, ONE_SHOT_IN_SWITCH
from replay.collectives.ring import RING
from replay.collectives.tree import TREE
from replay.collectives.two_shot import TWO_SHOT, TWO_SHOT_STORES
from replay.errors import unknown

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        NCCL, RING, TREE, NVLS,
        ONE_SHOT, TWO_SHOT, TWO_SHOT_STORES, ONE_SHOT_IN_SWITCH, MULTIMEM,
    )
}  # fmt: skip
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
