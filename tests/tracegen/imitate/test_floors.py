"""Floors: how much a trace differs from itself, and what an imitation is held to."""

import dataclasses

import numpy as np
import pytest
from loops import every

from tracegen import UserError
from tracegen.generate import generate
from tracegen.imitate.floors import SPLITS, floors, of_requests
from tracegen.imitate.resemblance import TOLERANCE, StatisticRow
from tracegen.trace.tables import RequestTable


def trace_of(requests, length):
    """A trace whose request numbers are given, uniform routing."""
    base = generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=1, layers=1)
    rows = np.repeat(requests, length)
    column = rows.astype(np.uint32)
    tokens = dataclasses.replace(
        base.tokens,
        step=np.arange(rows.size, dtype=np.uint32),
        request=column,
        position=np.tile(np.arange(length, dtype=np.uint32), len(requests)),
        phase=np.zeros(rows.size, np.uint8),
        rank=None,
    )
    ids = np.tile(np.arange(8, dtype=np.uint8), (1, rows.size, 1))
    ids[0, :, 0] = 8 + rows % 40
    return dataclasses.replace(
        base,
        expert_ids=ids,
        gate_weights=None,
        tokens=tokens,
        steps_indptr=np.arange(rows.size + 1, dtype=np.uint64),
        requests=RequestTable(),
    )


def mean_request(trace):
    """A number that depends on which requests there are."""
    return {"same": 3.0, "mean": float(trace.tokens.request.mean())}


def test_a_floor_is_the_mean_difference_of_halves_over_random_splits():
    trace = trace_of(np.arange(1, 5), 3)
    seen = []

    def measure(half):
        assert half.num_tokens == 6
        seen.append(tuple(np.unique(half.tokens.request)))
        return mean_request(half)

    found = floors(trace, measure)
    assert len(seen) == 2 * SPLITS >= 40
    assert len(set(seen)) == 6  # every way to halve four requests
    assert all({*seen[i], *seen[i + 1]} == {1, 2, 3, 4} for i in range(0, len(seen), 2))
    # {1, 2} and {3, 4} differ by 2 of 2.5, {1, 3} by 1, {1, 4} by 0.
    apart = {(1, 2): 0.8, (3, 4): 0.8, (1, 3): 0.4, (2, 4): 0.4, (1, 4): 0.0, (2, 3): 0.0}
    assert found == {"same": 0.0, "mean": pytest.approx(np.mean([apart[h] for h in seen[::2]]))}


def test_what_halves_do_not_have_has_no_floor():
    trace = trace_of(np.arange(1, 6), 2)  # halves of two and of three requests

    def only_three(half):
        return mean_request(half) if half.num_tokens == 6 else {"same": 3.0}

    assert floors(trace, only_three) == {"same": 0.0}

    def none(half):
        raise UserError("too few tokens")

    assert floors(trace, none) == {}
    with pytest.raises(UserError, match="a trace of 1 requests has no halves"):
        floors(trace_of(np.arange(1), 9), mean_request)


def test_a_half_is_a_trace_with_the_tokens_of_its_requests():
    trace = trace_of(np.array([3, 1, 2]), 4)
    half = of_requests(trace, np.array([2, 3]))
    half.validate()
    assert half.tokens.request.tolist() == [3] * 4 + [2] * 4
    assert (half.expert_ids[0, :, 0] == 8 + half.tokens.request).all()
    assert half.content_id != trace.content_id


@every(
    ("imitated", "floor", "outside"),
    [(1.04, None, False), (1.06, None, True), (1.06, 0.01, True), (1.06, 0.07, False)],
)
def test_a_statistic_is_held_to_its_floor_or_to_five_per_cent(imitated, floor, outside):
    row = StatisticRow("name", "label", 1.0, imitated, 1.0, floor)
    assert row.outside is outside
    assert row.to_json()["outside"] is outside
    assert row.to_json()["allowed"] == max(floor or 0, TOLERANCE)


def test_what_the_real_trace_does_not_have_is_outside():
    row = StatisticRow("name", "label", 0.0, 0.1, 0.0)
    assert row.outside
    assert row.to_json()["difference"] is None
    assert not StatisticRow("name", "label", 0.0, 0.0, 0.0).outside
    assert StatisticRow("name", "label", 1.0, float("nan"), 1.0).outside
