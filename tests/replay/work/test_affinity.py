"""Experts that are chosen together share a node: against brute force and planted parts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from loops import every

from replay.errors import UserError
from replay.model.work.affinity import MOST_LOAD, count_pairs, experts_of_nodes
from replay.model.work.placement import place


def cut(together: np.ndarray, nodes: list[set[int]]) -> int:
    """Weight of all pairs of experts on different nodes."""
    return sum(int(together[a, b]) for here, there in itertools.combinations(nodes, 2) for a in here for b in there)


def drawn(seed: int, num_experts: int = 8) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    half = np.triu(rng.integers(0, 20, (num_experts, num_experts)), 1)
    return half + half.T, rng.integers(5, 15, num_experts)


def test_pairs_are_counted_as_sets() -> None:
    ids = np.array([[0, 2, -1], [2, 3, 0], [1, -1, -1], [3, 2, 1]], np.int32)
    found = count_pairs(ids, 4)
    for a, b in itertools.product(range(4), repeat=2):
        assert found[a, b] == sum({a, b} <= set(row) for row in ids.tolist())


@every("seed", range(12))
def test_no_exchange_that_is_allowed_makes_the_cut_smaller(seed: int) -> None:
    together, loads = drawn(seed)
    nodes = [set(part.tolist()) for part in experts_of_nodes(together, loads, 2)]
    assert sorted(map(len, nodes)) == [4, 4]
    most = max(MOST_LOAD * loads.sum() / 2, *(sum(loads[list(node)]) for node in nodes))
    for a, b in itertools.product(*nodes):
        other = [nodes[0] - {a} | {b}, nodes[1] - {b} | {a}]
        if max(sum(loads[list(node)]) for node in other) <= most:
            assert cut(together, other) >= cut(together, nodes)


@pytest.mark.parametrize("num_nodes", [2, 4])
def test_planted_parts_are_found(num_nodes: int) -> None:
    """Tokens choose among the experts of one part, which lie everywhere."""
    rng = np.random.default_rng(1)
    planted = rng.permutation(16).reshape(num_nodes, -1)
    ids = np.array([rng.permutation(planted[token % num_nodes])[:3] for token in range(600)], np.int32)
    together = count_pairs(ids, 16)
    found = experts_of_nodes(together, np.diagonal(together), num_nodes)
    assert {frozenset(part.tolist()) for part in found} == {frozenset(part.tolist()) for part in planted}


def test_nodes_are_not_loaded_beyond_the_tolerance() -> None:
    """The two hot experts go together best, and may not."""
    together = np.zeros((4, 4), np.int64)
    together[0, 1] = together[1, 0] = 100
    for loads, expected in (([50, 50, 1, 1], False), ([10, 10, 10, 10], True)):
        nodes = experts_of_nodes(together, np.array(loads), 2)
        assert any({0, 1} == set(node.tolist()) for node in nodes) == expected


def test_a_placement_by_affinity() -> None:
    together, loads = drawn(3)
    placed = place("affinity:16:2", 8, 4, loads=loads, together=together)
    nodes = experts_of_nodes(together, loads, 2)
    for node, experts in enumerate(nodes):
        assert placed.logical is not None
        held = placed.logical[placed.expert_rank // 2 == node]
        assert set(held.tolist()) == set(experts.tolist())
    with pytest.raises(UserError, match="expected affinity:SLOTS:NODES"):
        place("affinity:8", 8, 4, loads=loads)
    with pytest.raises(UserError, match="greedy knows no nodes"):
        place("greedy:8:2", 8, 4, loads=loads)
    with pytest.raises(UserError, match="3 nodes do not divide 4 GPUs"):
        place("affinity:8:3", 8, 4, loads=loads, together=together)
