"""Which tokens run together, and who owns them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loops import every

from replay.errors import UserError
from replay.model.work.batch import DEFAULT_TOKENS_PER_RANK, Batch, form_batch


def owned(trace, batch: Batch) -> list[list[tuple[int, int]]]:
    """(request, position) of the tokens of each rank, in order."""
    tokens = trace.tokens
    found: list[list[tuple[int, int]]] = [[] for _ in range(batch.num_ranks)]
    for row, rank in zip(batch.rows.tolist(), batch.source_rank.tolist(), strict=True):
        found[rank].append((int(tokens.request[row]), int(tokens.position[row])))
    return found


# ---- traces with ranks of their own -------------------------------------------------------------


def test_a_trace_with_ranks_is_replayed_as_it_stands(synthetic) -> None:
    trace = synthetic(ranks=4, tokens_per_rank=6, steps=3)
    for step in range(3):
        batch = form_batch(trace, step=step)
        assert batch.num_ranks == 4
        assert batch.phase == "prefill"
        assert batch.source_rank.tolist() == sorted([0, 1, 2, 3] * 6)
        assert trace.tokens.rank[batch.rows].tolist() == batch.source_rank.tolist()
        assert set(trace.tokens.step[batch.rows].tolist()) == {step}
        assert len(set(batch.rows.tolist())) == batch.num_tokens == 24


def test_asking_for_what_the_trace_has_is_no_mistake(synthetic) -> None:
    batch = form_batch(synthetic(), num_ranks=4, tokens_per_rank=6, phase="prefill")
    assert batch.num_tokens == 24


def test_phase_of_a_trace_with_ranks_is_its_own(synthetic) -> None:
    assert form_batch(synthetic(phase="decode", steps=2), step=1).phase == "decode"


# ---- prefill ------------------------------------------------------------------------------------


def test_prefill_takes_consecutive_tokens_of_each_ranks_own_requests(recorded) -> None:
    trace = recorded([3, 5, 4, 2, 6, 1], shuffled=True)
    first = form_batch(trace, num_ranks=2, tokens_per_rank=4, phase="prefill")
    # Requests 10, 12, 14 are rank 0's, 11, 13, 15 rank 1's.
    assert owned(trace, first) == [
        [(10, 0), (10, 1), (10, 2), (12, 0)],
        [(11, 0), (11, 1), (11, 2), (11, 3)],
    ]
    then = form_batch(trace, num_ranks=2, tokens_per_rank=4, phase="prefill", step=1)
    assert owned(trace, then) == [
        [(12, 1), (12, 2), (12, 3), (14, 0)],
        [(11, 4), (13, 0), (13, 1), (15, 0)],
    ]


def test_prefill_takes_all_that_every_rank_has_unless_told(recorded) -> None:
    trace = recorded([3, 5, 4, 2])
    batch = form_batch(trace, num_ranks=2, phase="prefill")
    assert Counter(batch.source_rank.tolist()) == {0: 7, 1: 7}
    long = recorded([5000, 6000])
    default = DEFAULT_TOKENS_PER_RANK["prefill"]
    assert form_batch(long, num_ranks=2, phase="prefill").num_tokens == 2 * default == 8192


def test_prefill_can_take_no_tokens(recorded) -> None:
    batch = form_batch(recorded([3, 3]), num_ranks=2, tokens_per_rank=0, phase="prefill")
    assert batch.num_tokens == 0
    assert batch.num_ranks == 2


def test_prompts_make_a_trace_prefill_and_no_prompts_decode(recorded) -> None:
    assert form_batch(recorded([3, 3], prompts=[2, 2]), num_ranks=2).phase == "prefill"
    assert form_batch(recorded([3, 3]), num_ranks=2, tokens_per_rank=1).phase == "decode"


# ---- decode -------------------------------------------------------------------------------------


def test_decode_takes_one_token_of_each_running_request(recorded) -> None:
    trace = recorded([9] * 12, shuffled=True)
    batch = form_batch(trace, num_ranks=2, tokens_per_rank=3)
    requests = [request for rank in owned(trace, batch) for request, _ in rank]
    assert Counter(batch.source_rank.tolist()) == {0: 3, 1: 3}
    assert len(set(requests)) == 6
    # Slot s of six runs requests s and s + 6.
    assert [(request - 10) % 6 for request in requests] == [0, 1, 2, 3, 4, 5]


def test_decode_requests_are_of_all_ages(recorded) -> None:
    trace = recorded([100] * 64)
    batch = form_batch(trace, num_ranks=4, tokens_per_rank=16)
    ages = sorted(position for rank in owned(trace, batch) for _, position in rank)
    # No stretch of a tenth of a generation without a request, none with more than a fifth of them.
    assert max(np.diff([0, *ages, 99])) < 10
    assert max(Counter(age // 10 for age in ages).values()) <= 13


def test_a_slot_goes_on_to_its_next_request_and_comes_round_again(recorded) -> None:
    lengths = [2, 3, 4, 1, 5, 2, 3]
    trace = recorded(lengths)
    num_slots = 3
    seen: list[list[tuple[int, int]]] = [[] for _ in range(num_slots)]
    for step in range(30):
        batch = form_batch(trace, num_ranks=3, tokens_per_rank=1, step=step)
        for slot, (token,) in enumerate(owned(trace, batch)):
            seen[slot].append(token)
    for slot, history in enumerate(seen):
        queue = [
            (10 + request, position)
            for request in range(slot, len(lengths), num_slots)
            for position in range(lengths[request])
        ]
        begin = queue.index(history[0])
        assert history == [queue[(begin + step) % len(queue)] for step in range(30)]


def test_with_fewer_requests_than_slots_several_slots_share_one(recorded) -> None:
    trace = recorded([40, 50])
    batch = form_batch(trace, num_ranks=2, tokens_per_rank=3)
    tokens = [token for rank in owned(trace, batch) for token in rank]
    assert [request for request, _ in tokens] == [10, 11, 10, 11, 10, 11]
    assert len(set(tokens)) == 6, "at different positions"
    assert batch.origin.num_requests == 2
    assert batch.origin.num_slots_sharing_a_request == 4
    assert batch.origin.num_steps == 50


def test_decode_leaves_prompts_out(recorded) -> None:
    trace = recorded([10, 10], prompts=[8, 7])
    for step in range(5):
        batch = form_batch(trace, num_ranks=1, tokens_per_rank=2, phase="decode", step=step)
        for request, position in owned(trace, batch)[0]:
            assert position >= {10: 8, 11: 7}[request]


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    ranks=st.integers(1, 4),
    tokens=st.integers(0, 4),
    step=st.integers(0, 20),
)
def test_every_decode_slot_moves_by_one_token_a_step(recorded, lengths, ranks, tokens, step):
    trace = recorded(lengths)
    now, then = (form_batch(trace, num_ranks=ranks, tokens_per_rank=tokens, step=at) for at in (step, step + 1))
    assert now.source_rank.tolist() == np.repeat(np.arange(ranks), tokens).tolist()
    for before, after in zip(owned(trace, now), owned(trace, then), strict=True):
        for (request, position), (next_request, next_position) in zip(before, after, strict=True):
            if position + 1 < lengths[request - 10]:
                assert (next_request, next_position) == (request, position + 1)
            else:
                assert next_position == 0


# ---- mistakes -----------------------------------------------------------------------------------


@every(
    ("given", "said"),
    [
        ({"phase": "deocde"}, "unknown phase 'deocde' (did you mean 'decode'?)"),
        ({"num_ranks": 0}, "ranks must be at least 1, not 0"),
        ({"tokens_per_rank": -1}, "tokens per rank must be at least 0, not -1"),
        ({"step": -1}, "step must be at least 0, not -1"),
        ({"num_ranks": 2}, "made for 4 ranks and is replayed as it stands; 2 were asked for"),
        ({"tokens_per_rank": 5}, "holds 6 tokens per rank in step 0"),
        ({"phase": "decode"}, "step 0 of the trace is a prefill step; decode was asked for"),
        ({"step": 1}, "has 1 steps (0..0), not a step 1"),
    ],
)
def test_what_a_trace_with_ranks_cannot_give(synthetic, given, said) -> None:
    with pytest.raises(UserError) as error:
        form_batch(synthetic(), **given)
    assert said in str(error.value)
    assert str(error.value).count("\n") < 2


@every(
    ("given", "said"),
    [
        (
            {"phase": "prefill", "tokens_per_rank": 8},
            "at most 7 tokens per rank from the 4 requests of this trace; 8 were asked for",
        ),
        ({"phase": "prefill", "tokens_per_rank": 7, "step": 1}, "at most 3 tokens per rank"),
        ({"phase": "prefill", "num_ranks": 5, "tokens_per_rank": 1}, "at most 0 tokens per rank"),
    ],
)
def test_what_a_recorded_trace_cannot_give(recorded, given, said) -> None:
    with pytest.raises(UserError, match=said):
        form_batch(recorded([3, 5, 4, 2]), **{"num_ranks": 2, **given})


def test_a_trace_without_decode_rows_says_so(recorded) -> None:
    with pytest.raises(UserError, match="no decode rows; it can be replayed with phase 'prefill'"):
        form_batch(recorded([3], prompts=[3]), num_ranks=1, phase="decode")


def test_a_trace_without_tokens_has_no_step(synthetic) -> None:
    with pytest.raises(UserError, match="the trace has no tokens"):
        form_batch(synthetic(tokens_per_rank=0))


def test_ranks_without_a_request_are_no_prefill(recorded) -> None:
    """It was replayed with no tokens at all, which nothing said."""
    trace = recorded([64], prompts=[64])
    with pytest.raises(UserError, match=r"on 8 ranks leaves no token .* 1 requests of 64 tokens"):
        form_batch(trace, num_ranks=8)
    assert form_batch(trace, num_ranks=1).num_tokens == 64
