"""Which nodes are sampled, and what is left of the others, against sets of pairs."""

from __future__ import annotations

import numpy as np

from replay.work.layer import ExpertShape, LayerWork, Precision
from replay.work.placement import place
from replay.work.thinned import choose, thinned


def layer() -> LayerWork:
    """Four nodes of two GPUs with two experts each; tokens of GPU r prefer experts of GPU r + 3."""
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(16)[:3] for _ in range(80)], np.int32)
    ids[::7, 1] = -1
    owner = np.repeat(np.arange(8), 10).astype(np.int32)
    return LayerWork(ids, owner, place("contiguous", 16, 8), ExpertShape(8, 8), Precision("bf16"))


OF_RANK = np.arange(8) // 2


def test_the_nodes_of_the_busiest_gpus_are_chosen() -> None:
    work = layer()
    rows = [0] * 8
    for expert in work.expert_ids[work.expert_ids >= 0].tolist():
        rows[expert // 2] += 1
    order = sorted(range(4), key=lambda node: (-max(rows[2 * node : 2 * node + 2]), node))
    for number in (1, 2, 3):
        assert choose(work, OF_RANK, number).nodes == tuple(sorted(order[:number]))


def test_pairs_of_which_neither_end_is_sampled_are_left_out() -> None:
    work = layer()
    some = thinned(work, choose(work, OF_RANK, 2))
    nodes = some.sample.nodes  # type: ignore[union-attr]  # it was just given
    kept = set(zip(some.pair_token.tolist(), some.pair_expert.tolist(), strict=True))
    for token, expert in zip(work.pair_token.tolist(), work.pair_expert.tolist(), strict=True):
        meets = token // 10 // 2 in nodes or expert // 2 // 2 in nodes
        assert ((token, expert) in kept) == meets
    assert 0 < len(kept) < len(work.pair_token)
    assert some.num_tokens == work.num_tokens
    assert some.summary() == work.summary()
