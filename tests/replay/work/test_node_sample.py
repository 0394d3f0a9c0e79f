"""Which nodes are sampled, and what is left of the others, against sets of pairs."""

from __future__ import annotations

import numpy as np

from replay.model.work.layer import ExpertShape, LayerWork, Precision
from replay.model.work.placement import place
from replay.model.work.thinning import choose, thin


def layer() -> LayerWork:
    """Four nodes of two GPUs with two experts each; tokens of GPU r prefer experts of GPU r + 3."""
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(16)[:3] for _ in range(80)], np.int32)
    ids[::7, 1] = -1
    owner = np.repeat(np.arange(8), 10).astype(np.int32)
    return LayerWork(ids, owner, place("contiguous", 16, 8), ExpertShape(8, 8), Precision("bf16"))


OF_RANK, INDEX = np.arange(8) // 2, np.arange(8) % 2


def rows_of_busiest(work: LayerWork) -> list[int]:
    """Rows of the busiest GPU of each node."""
    rows = [0] * 8
    for expert in work.expert_ids[work.expert_ids >= 0].tolist():
        rows[expert // 2] += 1
    return [max(rows[2 * node : 2 * node + 2]) for node in range(4)]


def test_the_busiest_node_is_chosen_and_others_at_equal_distances() -> None:
    work = layer()
    busy = rows_of_busiest(work)
    order = sorted(range(4), key=lambda node: (-busy[node], node))
    assert len(set(busy)) > 2
    for number, places in ((1, [0]), (2, [0, 2]), (3, [0, 1, 2]), (4, [0, 1, 2, 3])):
        nodes = choose(work, OF_RANK, INDEX, number).nodes
        assert nodes == tuple(sorted(order[place] for place in places))


def test_a_node_is_paced_by_the_sampled_one_that_is_busy_most_nearly_as_it_is() -> None:
    work = layer()
    busy, sample = rows_of_busiest(work), choose(work, OF_RANK, INDEX, 2)
    for rank, model in enumerate(sample.models.tolist()):
        assert model % 2 == rank % 2
        if rank // 2 in sample.nodes:
            assert model == rank
        distance = abs(busy[model // 2] - busy[rank // 2])
        assert distance == min(abs(busy[node] - busy[rank // 2]) for node in sample.nodes)


def test_pairs_of_which_neither_end_is_sampled_are_left_out() -> None:
    work = layer()
    some = thin(work, choose(work, OF_RANK, INDEX, 2))
    nodes = some.sample.nodes  # type: ignore[union-attr]  # it was just given
    kept = set(zip(some.pair_token.tolist(), some.pair_expert.tolist(), strict=True))
    for token, expert in zip(work.pair_token.tolist(), work.pair_expert.tolist(), strict=True):
        meets = token // 10 // 2 in nodes or expert // 2 // 2 in nodes
        assert ((token, expert) in kept) == meets
    assert 0 < len(kept) < len(work.pair_token)
    assert some.num_tokens == work.num_tokens
    assert some.summary() == work.summary()
