"""Batches that are prefilled piece by piece and then decoded: order, closed forms, slow twins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from replay.experiments.serve.batch import BatchLengths, cut_up, decode, prefill
from replay.experiments.serve.handover import arrived_ps
from replay.experiments.serve.iteration import Load, PromptPiece
from replay.experiments.serve.rules import Drafts
from replay.experiments.serve.times import SPENT, ReplayedTimes


class Counting:
    """Iterations that take a picosecond per token, and a thousand for themselves."""

    def __init__(self) -> None:
        self.loads: list[list[Load]] = []

    def spent_ps(self, loads: Sequence[Load]) -> dict[str, int]:
        self.loads.append(list(loads))
        tokens = max(load.tokens + load.positions for load in loads)
        return {**dict.fromkeys(SPENT, 0), "attention": tokens, "launches": 1000}


def times() -> tuple[ReplayedTimes, Counting]:
    counting = Counting()
    return cast("ReplayedTimes", cast("Any", counting)), counting


def ints(*values: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(values, np.int64)


PROMPTS = st.lists(st.integers(1, 50), min_size=1, max_size=8)


@given(PROMPTS, st.integers(1, 40))
def test_prompts_are_cut_in_order_and_iterations_are_full(prompts: list[int], chunk: int) -> None:
    iterations, ends = cut_up(prompts, chunk)
    sizes = [sum(piece.tokens for piece in one) for one in iterations]
    assert all(size == chunk for size in sizes[:-1])
    assert 0 < sizes[-1] <= chunk
    seen = [0] * len(prompts)
    request = 0
    for number, pieces in enumerate(iterations):
        for piece in pieces:
            assert piece.tokens > 0
            assert piece.before == seen[request]
            seen[request] += piece.tokens
            if seen[request] == prompts[request]:
                assert ends[request] == number
                request += 1
    assert seen == prompts


def test_a_request_has_its_first_token_when_its_last_piece_is_over() -> None:
    found, counting = times()
    done = prefill(found, [ints(6, 6), ints(3)], chunk=8)
    assert counting.loads == [
        [Load(prefill=(PromptPiece(6, 0), PromptPiece(2, 0))), Load(prefill=(PromptPiece(3, 0),))],
        [Load(prefill=(PromptPiece(4, 2),)), Load()],
    ]
    assert done.first_token_ps.tolist() == [1008, 1008 + 1004, 1008]
    assert done.tokens == [8, 4]
    assert done.spending.spent_ps["launches"] == 2000


def test_caches_grow_by_a_token_each_and_requests_leave_when_they_are_done() -> None:
    found, counting = times()
    made = decode(found, [ints(10, 20), ints(5)], [ints(2, 4), ints(3)], Drafts())
    assert counting.loads == [
        [Load(2, 1, 30), Load(1, 1, 5)],
        [Load(2, 1, 32), Load(1, 1, 6)],
        [Load(1, 1, 22), Load(1, 1, 7)],
        [Load(1, 1, 23), Load(0, 1, 0)],
    ]
    assert made.spending.times_ps == [1032, 1034, 1023, 1024]
    assert made.latency_ps.tolist() == [2066, 4113, 3089]
    assert made.tokens == 9


def test_verified_drafts_make_fewer_and_larger_iterations() -> None:
    found, counting = times()
    drafts = Drafts(1, 0.5)
    decode(found, [ints(100)], [ints(9)], drafts)
    assert drafts.tokens_per_step == 1.5
    assert [load for (load,) in counting.loads] == [Load(1, 2, 100 + grown) for grown in (0, 1, 3, 4, 6, 7)]


@given(st.integers(1, 8), st.floats(0, 0.99))
def test_tokens_per_step_are_the_mean_of_runs_of_accepted_drafts(count: int, share: float) -> None:
    runs = [share**run * (1 - share) for run in range(count)] + [share**count]
    mean = sum((run + 1) * chance for run, chance in enumerate(runs))
    assert Drafts(count, share).tokens_per_step == pytest.approx(mean)
    assert Drafts(count, 1.0).tokens_per_step == count + 1
    assert Drafts().tokens_per_step == 1


def test_requests_are_dealt_in_turn() -> None:
    prompts, outputs = BatchLengths(ints(1, 2, 3, 4, 5), ints(6, 7, 8, 9, 10)).of_workers(2)
    assert [one.tolist() for one in prompts] == [[1, 3, 5], [2, 4]]
    assert [one.tolist() for one in outputs] == [[6, 8, 10], [7, 9]]


def test_caches_are_sent_behind_their_iterations_and_share_cards_that_receive() -> None:
    import hwmodel

    system = hwmodel.load("dgx-h100-x2")
    card, megabyte = system.fabric.network.nic, 10**6
    wire = int(card.duration_ps(megabyte))
    network = system.fabric.network
    latency = 4 * network.pcie_ps + network.leaf_ps + network.spine_ps
    long = 10 * wire
    hidden = arrived_ps([long, long], [megabyte] * 2, system, system, 8, 8)
    assert hidden == 2 * long + wire + latency
    piled = arrived_ps([wire // 2] * 3, [megabyte] * 3, system, system, 8, 16)
    assert piled == wire // 2 + 3 * wire + latency
    shared = arrived_ps([long], [megabyte], system, system, 16, 8)
    assert shared == pytest.approx(long + 2 * wire + latency, abs=1)
