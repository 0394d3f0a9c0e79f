"""Some of the nodes in place of all: whose ranks are replayed in full, and what is left of others.

The ranks of the sampled nodes keep all that they send and are sent. Of every other rank that is
left which a sampled node takes part in: rows between two nodes of which neither is sampled are left
out. All ranks and tokens stay, so that who has which expert, how many count and are told, and who
waits for whom is as in the whole. What the others do in the whole, and when, is taken from the
sampled ones: see `replay.machine.mirror`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from replay.work.layer import LayerWork
from replay.work.node_sample import NodeSample

if TYPE_CHECKING:
    from replay.work.ragged import Ints


def choose(work: LayerWork, of_rank: Ints, number: int) -> NodeSample:
    """Choose the nodes of the busiest GPUs, which decide how long a layer takes.

    Parameters
    ----------
    of_rank
        (rank,): node of every rank.
    number
        Nodes to choose. They are put in order of the rows of their busiest GPU; of equals the first
        comes first.
    """
    rows = np.bincount(work.pair_rank, minlength=work.num_ranks)
    busiest = np.zeros(int(of_rank.max()) + 1, np.int64)
    np.maximum.at(busiest, of_rank, rows)
    order = np.argsort(-busiest, kind="stable")
    return NodeSample(tuple(sorted(order[:number].tolist())), of_rank, work.summary())


def thinned(work: LayerWork, sample: NodeSample) -> LayerWork:
    """Leave out the rows between nodes that are not sampled."""
    holds, ids = sample.holds, work.expert_ids
    meets = holds[work.source_rank][:, None] | holds[work.placement.expert_rank][ids]
    return LayerWork(
        np.where(meets, ids, -1).astype(ids.dtype),
        work.source_rank.astype(np.int32),
        work.placement,
        work.shape,
        work.precision,
        is_backward=work.is_backward,
        shared=work.shared,
        sample=sample,
    )
