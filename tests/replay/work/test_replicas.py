"""The replica that each row goes to, by the rules of the engines."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from replay.model.work.placement import Placement
from replay.model.work.replicas import RULES, choose, plan_rows


def placed(slots: list[int], num_ranks: int) -> Placement:
    """Slots dealt evenly."""
    ranks = np.arange(len(slots)) * num_ranks // len(slots)
    return Placement(ranks.astype(np.int32), num_ranks, "by hand", np.array(slots))


def rows(experts: list[list[int]], owners: list[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(experts, np.int32), np.array(owners, np.int32)


@st.composite
def layers(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, Placement]:
    num_ranks, num_experts = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    spare = draw(st.lists(st.integers(0, num_experts - 1), max_size=5))
    slots = [*range(num_experts), *spare]
    assume(len(slots) % num_ranks == 0)
    k = draw(st.integers(1, num_experts))
    tokens = draw(st.integers(0, 12))
    token = st.permutations(range(num_experts)).map(lambda order: order[:k])
    ids = [draw(token) for _ in range(tokens)]
    owners = sorted(draw(st.integers(0, num_ranks - 1)) for _ in range(tokens))
    expert_ids = np.array(ids, np.int32).reshape(tokens, k)
    if tokens:
        expert_ids[0, 0] = -1
    order = draw(st.permutations(slots))
    return expert_ids, np.array(owners, np.int32), placed(list(order), num_ranks)


@pytest.mark.extended
@pytest.mark.parametrize("rule", RULES)
@given(layer=layers())
def test_a_row_goes_to_a_slot_that_holds_its_expert(rule: str, layer: tuple[np.ndarray, np.ndarray, Placement]) -> None:
    ids, owners, placement = layer
    chosen = choose(ids, owners, placement, rule)
    assert placement.logical is not None
    assert ((chosen >= 0) == (ids >= 0)).all()
    assert (placement.logical[chosen[ids >= 0]] == ids[ids >= 0]).all()
    assert (choose(ids, owners, placement, rule) == chosen).all()


def test_without_replicas_in_order_nothing_changes() -> None:
    ids, owners = rows([[0, 2], [1, -1]], [0, 1])
    assert choose(ids, owners, Placement(np.array([0, 0, 1], np.int32), 2, "")) is ids


def test_rows_stay_on_their_gpu_and_other_gpus_share_evenly() -> None:
    # Expert 0 is on GPUs 0 and 1 of 8; six GPUs have none, three for each of its replicas.
    slots = [0, 0, 1, 2, 3, 4, 5, 6]
    every = np.repeat(np.arange(8, dtype=np.int32), 5)
    seen = Counter()
    for layer in range(20):
        chosen = choose(np.zeros((40, 1), np.int32), every, placed(slots, 8), "same-gpu", layer)
        by_rank = chosen.reshape(8, 5)
        assert (by_rank == by_rank[:, :1]).all()  # fixed for the GPU
        assert by_rank[:2, 0].tolist() == [0, 1]
        assert Counter(by_rank[2:, 0].tolist()) == {0: 3, 1: 3}
        seen[tuple(by_rank[2:, 0].tolist())] += 1
    assert len(seen) > 5  # which of them is drawn anew in every layer


def test_the_nearest_replica_is_the_own_gpus_or_the_first_of_all() -> None:
    slots = [0, 1, 0, 2, 1, 0]  # on three GPUs
    ids, owners = rows([[0, 1, 2]] * 3, [0, 1, 2])
    for layer in range(3):  # nothing is drawn
        chosen = choose(ids, owners, placed(slots, 3), "nearest", layer)
        assert chosen.tolist() == [[0, 1, 3], [2, 1, 3], [5, 4, 3]]


def test_a_tokens_number_on_its_gpu_is_hashed_for_all_its_rows() -> None:
    # Golden ratio's multiples modulo 2^32: 0, 2654435769, 1013904242, 3668340011.
    ids, owners = rows([[0, 1]] * 6, [0, 0, 0, 0, 1, 1])
    chosen = choose(ids, owners, placed([0, 0, 0, 1, 1, 2], 2), "hash")
    modulo_3 = [0, 2654435769 % 3, 1013904242 % 3, 3668340011 % 3, 0, 2654435769 % 3]
    modulo_2 = [3, 4, 3, 4, 3, 4]
    assert chosen.tolist() == [list(pair) for pair in zip(modulo_3, modulo_2, strict=True)]
    assert set(modulo_3) == {0, 2}


def test_random_replicas_are_equally_likely() -> None:
    ids = np.zeros((6000, 1), np.int32)
    chosen = choose(ids, np.zeros(6000, np.int32), placed([0, 0, 0, 1], 4), "random")
    counts = np.bincount(chosen[:, 0], minlength=4)
    assert counts[3] == 0
    assert (np.abs(counts[:3] - 2000) < 5 * np.sqrt(6000 * 2 / 9)).all()  # five deviations


@given(layer=layers())
def test_position_is_counted_over_the_rows_of_a_gpu(
    layer: tuple[np.ndarray, np.ndarray, Placement],
) -> None:
    ids, owners, placement = layer
    assert placement.logical is not None
    held = [np.flatnonzero(placement.logical == one).tolist() for one in range(5)]
    seen: Counter[int] = Counter()
    chosen = choose(ids, owners, placement, "position")
    for token, place in product(range(ids.shape[0]), range(ids.shape[1])):
        if ids[token, place] >= 0:
            own = held[ids[token, place]]
            assert chosen[token, place] == own[seen[owners[token]] % len(own)]
            seen[owners[token]] += 1


@pytest.mark.parametrize("tokens", [9, 1500])
def test_round_robin_counts_the_rows_of_an_expert_in_blocks_of_1024(tokens: int) -> None:
    rng = np.random.default_rng(3)
    ids = np.argsort(rng.random((2 * tokens, 3)), axis=1)[:, :2].astype(np.int32)
    owners = np.repeat(np.arange(2, dtype=np.int32), tokens)
    placement = placed([0, 0, 0, 1, 1, 2], 2)
    held = {0: [0, 1, 2], 1: [3, 4], 2: [5]}
    place: Counter[int] = Counter()
    seen: defaultdict[tuple[int, int], Counter[int]] = defaultdict(Counter)
    chosen = choose(ids, owners, placement, "round-robin")
    for token in range(2 * tokens):
        rank = int(owners[token])
        for slot, expert in zip(chosen[token].tolist(), ids[token].tolist(), strict=True):
            block = place[rank] // 1024
            turn = seen[rank, block][expert] + block + rank
            assert slot == held[expert][turn % len(held[expert])]
            seen[rank, block][expert] += 1
            place[rank] += 1


@given(
    other=st.lists(st.integers(0, 9), min_size=3, max_size=3),
    replicated=st.integers(0, 12),
    owners=st.integers(0, 2**30),
)
def test_by_load_the_busiest_gpu_has_as_few_rows_as_possible(other: list[int], replicated: int, owners: int) -> None:
    # GPU g has expert g + 1 alone, GPUs 0 and 1 have expert 0 as well.
    experts = [0] * replicated + [expert for expert in (1, 2, 3) for _ in range(other[expert - 1])]
    owner = np.sort(np.random.default_rng(owners).integers(0, 3, len(experts))).astype(np.int32)
    placement = Placement(np.array([0, 0, 1, 1, 2], np.int32), 3, "by hand", np.array([0, 1, 0, 2, 3]))
    ids = np.array(experts, np.int32)[:, None]
    chosen = choose(ids, owner, placement, "load")[:, 0]
    load = np.bincount(placement.expert_rank[chosen], minlength=3)
    best = min(max(other[0] + first, other[1] + replicated - first, other[2]) for first in range(replicated + 1))
    assert load.max() == best
    assert load.sum() == len(experts)
    # A row leaves its own GPU only for the sake of the load: no two rows could change places.
    mine = [(int(rank), int(slot)) for rank, slot in zip(owner, chosen, strict=True) if slot in (0, 2)]
    assert not ((0, 2) in mine and (1, 0) in mine)


@given(
    rows=st.lists(st.integers(0, 6), min_size=3, max_size=3),
    hosts=st.lists(st.sets(st.integers(0, 2), min_size=1), min_size=3, max_size=3),
)
def test_no_division_of_rows_has_a_less_busy_gpu(rows: list[int], hosts: list[set[int]]) -> None:
    can = np.array([[rank in ranks for rank in range(3)] for ranks in hosts])
    shares = plan_rows(np.array(rows), can)
    assert shares.sum(axis=1).tolist() == rows
    assert (shares >= 0).all() and not shares[~can].any()
    divisions = [
        [
            parts
            for parts in product(range(7), repeat=3)
            if sum(parts) == rows[one] and all(can[one] | (np.array(parts) == 0))
        ]
        for one in range(3)
    ]
    best = min(max(map(sum, zip(*parts, strict=True))) for parts in product(*divisions))
    assert shares.sum(axis=0).max() == best


def test_rows_go_by_way_of_a_third_gpu() -> None:
    # GPU 0 can only give to GPU 1, which can only give to GPU 2: 5, 4, 3 become 4, 4, 4.
    can = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.bool_)
    assert plan_rows(np.array([2, 2, 4, 2, 2]), can).sum(axis=0).tolist() == [4, 4, 4]


def test_two_slots_on_one_gpu_are_one_for_its_load() -> None:
    # Expert 0 has two slots on GPU 0 and one on GPU 1: half of its rows go to each GPU.
    placement = Placement(np.array([0, 0, 1, 1], np.int32), 2, "by hand", np.array([0, 0, 0, 1]))
    chosen = choose(np.zeros((8, 1), np.int32), np.zeros(8, np.int32), placement, "load")
    assert np.bincount(placement.expert_rank[chosen[:, 0]]).tolist() == [4, 4]


def test_by_load_a_row_of_a_third_gpu_makes_way_for_one_of_the_own() -> None:
    # Expert 0 is on GPUs 1 and 2, which take a row each: that of GPU 1 stays, so GPU 0's goes to 2.
    placement = Placement(np.array([0, 1, 2], np.int32), 3, "by hand", np.array([1, 0, 0]))
    ids, owner = rows([[0], [0]], [0, 1])
    assert choose(ids, owner, placement, "load")[:, 0].tolist() == [2, 1]
