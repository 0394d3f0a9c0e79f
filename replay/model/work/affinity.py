"""Experts that tokens choose together, put on the same node.

A row crosses the network once per (token, node) where a scheme forwards it inside the node, so that
a token whose experts share a node costs less. How often tokens choose two experts together is the
weight of an edge between them, and the nodes are parts of equal size of that graph. Parts begin as
EPLB would pack experts by load, and are improved by exchanging the two experts whose exchange gains
most, until none gains: the exchange and its gain are those of Kernighan and Lin (Bell System
Technical Journal 49, 1970, section 2), without their passes through exchanges that lose.

No exchange may load a node beyond `MOST_LOAD` times the mean, if neither node was loaded as much
before. Within a node, experts are replicated and dealt to GPUs as by EPLB's hierarchical policy.
"Affinity" is what ExFlow (arXiv 2401.08383) calls this between layers; within a layer, placement
by it is in Occult (arXiv 2505.13345) and MoETuner (arXiv 2502.06643), with other solvers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from replay.errors import UserError
from replay.model.work.eplb import pack_items

if TYPE_CHECKING:
    from replay.model.arrays import Ints
    from replay.model.work.eplb import Loads

MOST_LOAD = 1.03
"""Default of METIS for parts of a graph: ufactor 30 (METIS 5 manual, section 4.1)."""


def count_pairs(expert_ids: npt.NDArray[np.int32], num_experts: int) -> Ints:
    """Count how often tokens choose two experts: (expert, expert), loads on the diagonal.

    Parameters
    ----------
    expert_ids
        (token, k): experts of each token, -1 for an empty slot.
    """
    chosen = np.zeros((len(expert_ids), num_experts + 1), np.float32)
    np.put_along_axis(chosen, np.where(expert_ids < 0, num_experts, expert_ids), 1, axis=1)
    chosen = chosen[:, :num_experts]
    together: Ints = np.rint(chosen.T @ chosen).astype(np.int64)
    return together


def experts_of_nodes(together: Ints, loads: Loads, num_nodes: int) -> list[Ints]:
    """Cut the experts of a layer into parts of equal size that tokens choose together.

    Parameters
    ----------
    together
        (expert, expert): how often tokens choose two experts; the diagonal does not matter.
    loads
        (expert,): rows of each expert.
    num_nodes
        Nodes.

    Returns
    -------
    Experts of each node, ascending.

    Raises
    ------
    UserError
        If nodes do not divide the experts.
    """
    num_experts = len(loads)
    if num_nodes < 1 or num_experts % num_nodes:
        message = f"{num_nodes} nodes do not divide {num_experts} experts"
        raise UserError(message)
    node, weight = np.empty(num_experts, np.int64), np.array(together, np.float64)
    np.fill_diagonal(weight, 0)
    for index, experts in enumerate(pack_items(loads, num_nodes)):
        node[experts] = index
    load = np.bincount(node, loads, num_nodes)
    to_node = np.stack([weight[:, node == one].sum(axis=1) for one in range(num_nodes)], axis=1)
    experts = np.arange(num_experts)
    while True:
        # What an expert has with each other's node beyond what it has with its own.
        more = to_node[:, node] - to_node[experts, node][:, None]
        gain = more + more.T - 2 * weight
        moved = loads[None, :] - loads[:, None]  # what the node of the first gets more
        heavier = np.maximum((load[node][:, None] + moved), load[node][None, :] - moved)
        before = np.maximum(load[node][:, None], load[node][None, :])
        is_fit = heavier <= np.maximum(MOST_LOAD * load.mean(), before)
        gain[~is_fit | (node[:, None] == node)] = 0
        first, second = np.unravel_index(int(gain.argmax()), gain.shape)
        if gain[first, second] <= 0:
            return [np.flatnonzero(node == one) for one in range(num_nodes)]
        here, there = node[first], node[second]
        to_node[:, here] += weight[:, second] - weight[:, first]
        to_node[:, there] += weight[:, first] - weight[:, second]
        load[here] += loads[second] - loads[first]
        load[there] += loads[first] - loads[second]
        node[first], node[second] = there, here
