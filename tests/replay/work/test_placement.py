"""Which rank hosts which expert."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

from replay.errors import UserError
from replay.model.work.placement import place


def test_contiguous_keeps_neighbours_together() -> None:
    assert place("contiguous", 8, 4).expert_rank.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert place("contiguous", 5, 2).expert_rank.tolist() == [0, 0, 0, 1, 1]
    assert place("contiguous", 2, 4).expert_rank.tolist() == [0, 2]


def test_round_robin_deals_neighbours_out() -> None:
    assert place("round-robin", 7, 3).expert_rank.tolist() == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("spec", ["contiguous", "round-robin", "random", "random:9"])
@given(num_experts=st.integers(1, 300), num_ranks=st.integers(1, 64))
def test_ranks_share_experts_evenly(spec: str, num_experts: int, num_ranks: int) -> None:
    placed = place(spec, num_experts, num_ranks)
    counts = Counter(placed.expert_rank.tolist())
    assert placed.num_experts == num_experts == sum(counts.values())
    assert max(counts.values()) == -(-num_experts // num_ranks)
    assert set(counts) <= set(range(num_ranks))


def test_random_is_the_same_again_and_differs_by_seed_and_layer() -> None:
    given = {
        (seed, layer): tuple(place(f"random:{seed}", 64, 8, layer).expert_rank.tolist())
        for seed in (0, 1)
        for layer in (0, 1)
    }
    assert len(set(given.values())) == 4
    assert tuple(place("random:1", 64, 8, 1).expert_rank.tolist()) == given[1, 1]
    assert tuple(place("random", 64, 8).expert_rank.tolist()) == given[0, 0]


def test_file_gives_one_list_or_one_a_layer(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    path.write_text(json.dumps([1, 1, 0, 2]))
    for layer in (0, 5):
        assert place(f"file:{path}", 4, 3, layer).expert_rank.tolist() == [1, 1, 0, 2]
    path.write_text(json.dumps([[0, 1], [1, 0]]))
    assert place(f"file:{path}", 2, 2, 1).expert_rank.tolist() == [1, 0]
    with pytest.raises(UserError, match="has 2 layers; layer 2 was asked for"):
        place(f"file:{path}", 2, 2, 2)


@pytest.mark.parametrize(
    "text",
    [
        "[0, 1]",
        "[0, 1, true]",
        '["0", 1, 1]',
        "3",
        "[[0, 1, 1], 4]",
    ],
)
def test_file_that_is_no_placement_says_what_is_expected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "placement.json"
    path.write_text(text)
    layer = 1 if text.startswith("[[") else 0
    with pytest.raises(UserError) as error:
        place(f"file:{path}", 3, 2, layer)
    assert "expected a list of 3 ranks in 0..1" in str(error.value)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("content", [None, b"[0, 1", b"\xff\xfe", b"9" * 5000, b"[" * 100_000])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "placement.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as error:
        place(f"file:{path}", 3, 2)
    assert f"placement file {path}" in str(error.value)


@every("spec", ["contigous", "", "contiguous:1", "round-robin:2", "eplbs"])
def test_unknown_placement_lists_the_known(spec: str) -> None:
    with pytest.raises(
        UserError,
        match="known: affinity:SLOTS:NODES, contiguous, eplb:SLOTS, eplb:SLOTS:NODES, file:PATH",
    ):
        place(spec, 4, 2)


@every("seed", ["x", "-1", "1.5"])
def test_seed_must_be_a_whole_number(seed: str) -> None:
    with pytest.raises(UserError, match="the seed must be a non-negative integer"):
        place(f"random:{seed}", 4, 2)


@every("spec", ["eplb:0", "eplb:-1", "greedy:x", "eplb:1.5", "eplb:9999999999"])
def test_slots_must_be_a_whole_number(spec: str) -> None:
    with pytest.raises(UserError, match="the number of slots must be a positive whole number"):
        place(spec, 4, 2, loads=np.array([1, 1, 1, 1]))


def test_fitted_placements_need_loads_and_divide_slots_evenly() -> None:
    with pytest.raises(UserError, match="computed from the loads of experts, and none are known"):
        place("eplb", 4, 2)
    loads = np.array([9, 1, 1, 1])
    assert not place("eplb", 4, 2, loads=loads).has_replicas
    placed = place("greedy:6", 4, 2, loads=loads)
    assert placed.expert_rank.tolist() == [0, 0, 0, 1, 1, 1]
    assert placed.logical is not None
    assert sorted(placed.logical.tolist()) == [0, 0, 0, 1, 2, 3]
    with pytest.raises(UserError, match="5 slots on 2 GPUs for 4 experts"):
        place("eplb:5", 4, 2, loads=loads)
