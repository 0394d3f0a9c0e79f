"""Nodes that a token visits, and the rows that leave its node, for experts placed on GPUs.

A *node* is a group of GPUs that NVLink joins. Between nodes a row passes a network card, which is
many times slower, so that the number of *distinct* nodes of a token decides what an exchange
between nodes costs: one row per (token, node) where the row is forwarded inside the node, one per
(token, GPU) where each GPU is sent its own, one per (token, expert) where each expert is. The node
that the token itself is on is counted apart: no card is passed to reach it.

Where the trace says which GPU each token is on (its ``rank`` column), that is the token's own node.
Where it does not, tokens are taken to be on every node alike, whatever their routing: of R nodes a
visited one is another than the token's own with probability (R - 1) / R.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tracegen.shared.errors import UserError, unknown
from tracegen.stats.sample import Statistic, distinct, jackknife, sample_of

if TYPE_CHECKING:
    from tracegen.stats.sample import Sample
    from tracegen.trace.arrays import Array, Floats
    from tracegen.trace.routing import RoutingTrace

MOST_GPUS = 65_536
"""As many as a cluster of `hwmodel` can have."""
PLACEMENTS = ("contiguous", "round-robin")
"""Placements by name; any other is an array."""
LABELS = {
    "distinct_gpus": "distinct GPUs with experts of a token",
    "distinct_nodes": "distinct nodes with experts of a token",
    "rows_per_node": "rows to other nodes: one per (token, node)",
    "rows_per_gpu": "rows to other nodes: one per (token, GPU)",
    "rows_per_expert": "rows to other nodes: one per (token, expert)",
}


def node_statistics(
    trace: RoutingTrace,
    num_gpus: int,
    gpus_per_node: int,
    placement: str | Array = "contiguous",
    *,
    seed: int = 0,
) -> dict[str, Statistic]:
    """Measure how many GPUs and nodes tokens visit.

    Parameters
    ----------
    trace
        With at least two requests.
    num_gpus
        GPUs that the experts lie on.
    gpus_per_node
        GPU g is on node ``g // gpus_per_node``.
    placement
        ``"contiguous"`` (expert e of E on GPU ``e * num_gpus // E``), ``"round-robin"``
        (``e % num_gpus``), or the GPU of each expert, shape (expert,) or (layer, expert).
    seed
        Of the groups of requests that are left out for the standard errors.

    Returns
    -------
    Statistics by the names of `LABELS`, and ``to_0_nodes``, ``to_1_nodes``, ...: shares of the
    tokens that have experts on so many nodes, be their own among them or not.

    Raises
    ------
    UserError
        If the numbers do not fit together, or there is nothing to measure.
    """
    if num_gpus > MOST_GPUS:
        msg = f"{str(num_gpus)[:20]} GPUs; at most {MOST_GPUS:,} can be told apart"
        raise UserError(msg)
    if num_gpus < 1 or gpus_per_node < 1 or num_gpus % gpus_per_node:
        msg = f"{num_gpus} GPUs in nodes of {gpus_per_node}: expected whole nodes"
        raise UserError(msg)
    if trace.num_ranks is not None and trace.num_ranks > num_gpus:
        msg = f"the trace has tokens on {trace.num_ranks} GPUs; {num_gpus} were asked for"
        raise UserError(msg)
    sample = sample_of(trace, seed)
    gpu_of = _gpus_of_experts(trace, num_gpus, placement)
    rank = trace.tokens.rank
    own = None if rank is None else rank[sample.order].astype(np.int64) // gpus_per_node
    num_nodes = num_gpus // gpus_per_node
    counts = [_counts(ids, gpu_of[layer], own, num_gpus, gpus_per_node) for layer, ids in enumerate(sample.ids)]
    # Of a trace without GPUs, a visited node is another than the token's own by chance.
    factor = np.ones(len(LABELS)) if own is not None else np.array([1, 1] + [1 - 1 / num_nodes] * 3)
    found = {}
    for column, (name, label) in enumerate(LABELS.items()):
        sums = _sums(sample, np.stack([one[:, column] for one in counts]) * factor[column])
        found[name] = jackknife(label, sums, _per_token, np.mean)
    nodes = np.stack([one[:, 1] for one in counts])
    for number in range(int(nodes.max(initial=0)) + 1):
        label = f"share of tokens that visit {number} node{'' if number == 1 else 's'}"
        sums = _sums(sample, nodes == number)
        found[f"to_{number}_nodes"] = jackknife(label, sums, _per_token, np.mean)
    return found


def _gpus_of_experts(trace: RoutingTrace, num_gpus: int, placement: str | Array) -> Array:
    """GPU of every expert, shape (layer, expert)."""
    num_experts = trace.model.num_ffn_experts
    if isinstance(placement, str):
        if placement not in PLACEMENTS:
            raise unknown("placement", placement, PLACEMENTS)
        experts = np.arange(num_experts)
        is_dealt = placement == "round-robin"
        placement = experts % num_gpus if is_dealt else experts * num_gpus // num_experts
    given = np.asarray(placement)
    if (
        given.shape not in ((num_experts,), (trace.num_layers, num_experts))
        or not ((given >= 0) & (given < num_gpus)).all()
    ):
        msg = (
            f"placement of shape {given.shape}: expected GPUs 0 to {num_gpus - 1} of "
            f"{num_experts} experts, for each of {trace.num_layers} layers or for all"
        )
        raise UserError(msg)
    return np.broadcast_to(given, (trace.num_layers, num_experts))


def _counts(ids: Array, gpu_of: Array, own: Array | None, num_gpus: int, gpus_per_node: int) -> Array:
    """Counts of each token of a layer in the order of `LABELS`, shape (token, label).

    Where a token's own node is not known, nodes that are visited count as other nodes.
    """
    num_nodes = num_gpus // gpus_per_node
    # Empty slots and zero experts lie on a GPU of a node of their own, behind the others.
    padded = np.append(gpu_of, num_gpus)
    gpus = padded[np.minimum(ids.astype(np.int64), gpu_of.size)]
    nodes = gpus // gpus_per_node
    is_away = nodes < num_nodes
    if own is not None:
        is_away &= nodes != own[:, None]
    return np.stack(
        [
            distinct(gpus, num_gpus),
            distinct(nodes, num_nodes),
            distinct(np.where(is_away, nodes, num_nodes), num_nodes),
            distinct(np.where(is_away, gpus, num_gpus), num_gpus),
            is_away.sum(axis=1),
        ],
        axis=1,
    )


def _sums(sample: Sample, values: Array) -> Array:
    """Sums of values (layer, token), and tokens: (group, layer, 2)."""
    count = partial(np.bincount, sample.group, minlength=int(sample.group.max()) + 1)
    return np.stack([np.stack([count(one), count()], axis=1) for one in values], axis=1)


def _per_token(sums: Array) -> Floats:
    """Mean over tokens, shape (layer,)."""
    mean: Floats = sums[:, 0] / np.maximum(sums[:, 1], 1)
    return mean
