"""Experts of slots: DeepSeek's published example, and what any placement must keep."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

from replay.errors import UserError
from replay.model.work.eplb import greedy, pack_items, rebalance_experts, replicate

# deepseek-ai/EPLB, README: two layers of 12 experts in 4 groups, 16 slots on 2 nodes of 4 GPUs
PUBLISHED_LOADS = [
    [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
    [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
]
PUBLISHED_SLOTS = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def per_gpu(loads: np.ndarray, slots: np.ndarray, num_gpus: int) -> np.ndarray:
    """(gpu,): load, every expert's rows shared evenly by its replicas."""
    share = loads / np.bincount(slots, minlength=len(loads))
    return share[slots].reshape(num_gpus, -1).sum(axis=1)


def test_the_published_example_is_placed_as_published() -> None:
    found = [rebalance_experts(np.array(loads), 16, 4, 2, 8).tolist() for loads in PUBLISHED_LOADS]
    assert found == PUBLISHED_SLOTS


def test_hierarchical_policy_keeps_a_group_on_one_node() -> None:
    for loads in PUBLISHED_LOADS:
        found = rebalance_experts(np.array(loads), 16, 4, 2, 8)
        nodes = found.reshape(2, 8) // 3  # three experts in a group
        assert not set(nodes[0]) & set(nodes[1])


def test_groups_that_nodes_do_not_divide_are_not_heeded() -> None:
    for loads in np.array(PUBLISHED_LOADS):
        three = rebalance_experts(loads, 18, 4, 3, 6)  # 4 groups on 3 nodes
        assert three.tolist() == rebalance_experts(loads, 18, 1, 1, 6).tolist()


@given(
    num_gpus=st.sampled_from([1, 2, 4, 6]),
    per_expert=st.lists(st.integers(0, 1000), min_size=1, max_size=24),
    spare=st.integers(0, 20),
)
def test_every_expert_has_a_slot_and_every_gpu_as_many(num_gpus: int, per_expert: list[int], spare: int) -> None:
    num_slots = -(-(len(per_expert) + spare) // num_gpus) * num_gpus
    loads = np.array(per_expert)
    for found in (
        rebalance_experts(loads, num_slots, 1, 1, num_gpus),
        greedy(loads, num_slots, num_gpus),
    ):
        assert found.shape == (num_slots,)
        assert set(found.tolist()) == set(range(len(per_expert)))


def test_the_hottest_expert_is_replicated_until_none_is_hotter() -> None:
    loads = np.array([100, 10, 10, 40])
    # 100, 50; then 33 a replica, so that the expert with 40 is next; then the 33 again.
    assert replicate(loads, 8).tolist() == [0, 1, 2, 3, 0, 0, 3, 0]


def test_packs_take_the_heaviest_first_and_are_as_large_as_each_other() -> None:
    assert [pack.tolist() for pack in pack_items([9, 1, 8, 2, 5, 5], 3)] == [[0, 1], [2, 3], [4, 5]]
    assert [pack.tolist() for pack in pack_items([1, 9, 5], 3)] == [[0], [1], [2]]  # nothing to weigh


def test_greedy_keeps_replicas_apart_where_eplb_does_not_ask() -> None:
    loads = np.array([100, 1, 1])
    apart = greedy(loads, 4, 2)
    assert sorted(map(sorted, apart.reshape(2, 2).tolist())) == [[0, 1], [0, 2]]
    for num_gpus in (2, 4):
        for row in PUBLISHED_LOADS:
            slots = greedy(np.array(row), 16, num_gpus).reshape(num_gpus, -1)
            assert all(len(set(gpu)) == len(gpu) for gpu in slots.tolist())


def test_replicas_lower_the_load_of_the_busiest_gpu() -> None:
    loads = np.array([100, *[10] * 7])  # a GPU's part of it is 42.5, and the first expert's is 100
    alone = rebalance_experts(loads, 8, 1, 1, 4)
    assert per_gpu(loads, alone, 4).max() >= 100
    for found in (rebalance_experts(loads, 12, 1, 1, 4), greedy(loads, 12, 4)):
        assert per_gpu(loads, found, 4).max() <= 50


@every(
    ("arguments", "said"),
    [
        ((11, 1, 1, 1), "11 slots on 1 GPUs for 12 experts: .* such as 12"),
        ((14, 1, 1, 4), "a multiple of 4 that is at least 12, such as 16"),
        ((16, 5, 1, 4), "5 groups do not divide 12 experts"),
        ((16, 4, 3, 4), "3 nodes do not divide 4 GPUs"),
    ],
)
def test_numbers_that_do_not_divide_are_refused(arguments: tuple[int, int, int, int], said: str) -> None:
    with pytest.raises(UserError, match=said):
        rebalance_experts(np.array(PUBLISHED_LOADS[0]), *arguments)
