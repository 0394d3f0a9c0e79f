"""Sampled nodes, whose ranks are replayed in full, in place of all nodes.

The ranks of the sampled nodes keep all rows that they send and receive. Other ranks keep the rows
that they exchange with these; all other rows are left out. All ranks and tokens stay: experts have
their homes, counts and flags go to everybody, and who waits for whom is as in the whole layer.
`replay.model.machine.pace` keeps the other ranks, which have less to do, from running ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.model.work.layer import LayerWork
from replay.model.work.node_sample import NodeSample

if TYPE_CHECKING:
    from replay.model.arrays import Ints


def choose(work: LayerWork, of_rank: Ints, index: Ints, number: int) -> NodeSample:
    """Choose nodes from the busiest to the least busy, at equal distances, the busiest first.

    The busiest decides how long a layer takes. A node that is not sampled is paced by the sampled
    one that is most nearly as busy.

    Parameters
    ----------
    of_rank, index
        (rank,): node of every rank, and its index in the node; all nodes are full.
    number
        Nodes to choose. A node is as busy as its busiest GPU, by rows; of equals the first comes
        first.
    """
    rows = np.bincount(work.pair_rank, minlength=work.num_ranks)
    num_nodes = int(of_rank.max()) + 1
    busiest = np.zeros(num_nodes, np.int64)
    np.maximum.at(busiest, of_rank, rows)
    order = np.argsort(-busiest, kind="stable")
    nodes = np.sort(order[np.arange(number) * num_nodes // number])
    nearest = nodes[np.abs(busiest[:, None] - busiest[nodes]).argmin(axis=1)]
    nearest[nodes] = nodes
    rank_at = np.empty((num_nodes, int(index.max()) + 1), np.int64)
    rank_at[of_rank, index] = np.arange(work.num_ranks)
    models = rank_at[nearest[of_rank], index]
    return NodeSample(tuple(nodes.tolist()), of_rank, models, work.summary())


def thin(work: LayerWork, sample: NodeSample) -> LayerWork:
    """Leave out the rows that no sampled node sends or receives."""
    holds, ids = sample.holds, work.expert_ids
    meets = holds[work.source_rank][:, None] | holds[work.placement.expert_rank][ids]
    left = np.where(meets, ids, -1).astype(ids.dtype)
    return work.with_changes(expert_ids=left, step_plan=None, sample=sample)
