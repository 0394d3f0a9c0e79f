"""All algorithms of collectives, by the name under which schemes and users ask for them."""

from __future__ import annotations

from replay.errors import unknown
from replay.model.collectives.algorithm import Algorithm
from replay.model.collectives.multimem_kernels import MULTIMEM
from replay.model.collectives.nccl import NCCL
from replay.model.collectives.nvls import NVLS
from replay.model.collectives.one_shot import ONE_SHOT, ONE_SHOT_IN_SWITCH
from replay.model.collectives.ring import RING
from replay.model.collectives.tree import TREE
from replay.model.collectives.two_shot import TWO_SHOT, TWO_SHOT_STORES

ALGORITHMS: dict[str, Algorithm] = {
    algorithm.name: algorithm
    for algorithm in (
        NCCL,
        RING,
        TREE,
        NVLS,
        ONE_SHOT,
        TWO_SHOT,
        TWO_SHOT_STORES,
        ONE_SHOT_IN_SWITCH,
        MULTIMEM,
    )
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
