"""Measures of a served run, counted a second time from single tokens; and the search of a rate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replay.errors import UserError
from replay.experiments.serve.book import ServedRun
from replay.experiments.serve.capacity import most
from replay.experiments.serve.iteration import Load
from replay.experiments.serve.measures import Limits, ServingRun, measure, percentiles
from replay.experiments.serve.requests import Requests, draw_requests, lengths
from replay.experiments.serve.rules import BatchRule
from replay.experiments.serve.serving import Pool, serve

sys.path.insert(0, str(Path(__file__).parents[2] / "oracle"))

import plain_serving

US = 10**6


class PerToken:
    """A millisecond, and 10 us per token of the fullest worker."""

    num_workers = 2

    def time_ps(self, loads: Sequence[Load]) -> int:
        return 1000 * US + 10 * US * max(load.tokens for load in loads)


RULES = BatchRule(cache_tokens=400, block=16, max_requests=16, max_batched_tokens=64)
ARRIVING = draw_requests(120, (lengths("uniform:5:90"), lengths("uniform:1:30")), seed=4).at_rate(900.0)


def run(requests: Requests) -> ServedRun:
    return serve(requests, Pool(PerToken(), RULES, 4))


@pytest.fixture(scope="module")
def served() -> ServingRun:
    return measure(run(ARRIVING), Limits(ttft_us=60_000, tpot_us=1_600))


@pytest.fixture(scope="module")
def tokens() -> list[list[int]]:
    """(request, token): when each came, by the plain twin."""
    columns = (ARRIVING.arrival_ps, ARRIVING.prompt, ARRIVING.output)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    return [request.tokens for request in plain_serving.serve(rows, PerToken(), RULES)]


def test_latencies(served: ServingRun, tokens: list[list[int]]) -> None:
    arrival = ARRIVING.arrival_ps
    several = [times for times in tokens if len(times) > 1]
    expected = {
        "ttft": [times[0] - start for times, start in zip(tokens, arrival, strict=True)],
        "e2e": [times[-1] - start for times, start in zip(tokens, arrival, strict=True)],
        "tpot": [round((times[-1] - times[0]) / (len(times) - 1)) for times in several],
        "itl": [gap for times in several for gap in np.diff(times)],
    }
    for name, values in expected.items():
        found = getattr(served, name)
        assert found.count == len(values)
        assert found.mean_us == pytest.approx(np.mean(values) / US)
        for percent in (50, 90, 95, 99):
            of = np.quantile(values, percent / 100, method="higher") / US
            assert getattr(found, f"p{percent}_us") == of
        assert found.max_us == max(values) / US
    assert served.preemptions > 0 and served.tpot and served.itl
    assert served.itl.max_us > served.tpot.max_us, "who is put back waits between two tokens"


def test_throughput_and_goodput(served: ServingRun, tokens: list[list[int]]) -> None:
    span_s = max(times[-1] for times in tokens) / 1e12
    assert served.span_us == pytest.approx(span_s * 1e6)
    assert served.output_tokens_per_s == pytest.approx(sum(map(len, tokens)) / span_s)
    assert served.output_tokens_per_s_per_gpu == pytest.approx(served.output_tokens_per_s / 4)
    total = sum(map(len, tokens)) + int(ARRIVING.prompt.sum())
    assert served.total_tokens_per_s == pytest.approx(total / span_s)
    assert served.requests_per_s == pytest.approx(120 / span_s)
    assert served.offered_per_s == pytest.approx(900)
    good = 0
    for times, start in zip(tokens, ARRIVING.arrival_ps, strict=True):
        per_token = (times[-1] - times[0]) / max(len(times) - 1, 1)
        good += times[0] - start <= 60_000 * US and per_token <= 1_600 * US
    assert served.goodput is not None and 0 < good < 120
    assert served.goodput.share == pytest.approx(good / 120)
    assert served.goodput.requests_per_s == pytest.approx(good / span_s)
    assert not served.goodput.is_met


def test_a_limit_is_kept_by_who_takes_just_as_long(served: ServingRun) -> None:
    assert served.tpot is not None
    slowest = Limits(ttft_us=served.ttft.max_us, tpot_us=served.tpot.max_us, percentile=100)
    just = measure(run(ARRIVING), slowest).goodput
    assert just is not None
    assert (just.share, just.is_met) == (1.0, True)
    less = slowest.model_copy(update={"ttft_us": served.ttft.max_us - 1e-6})
    missed = measure(run(ARRIVING), less).goodput
    assert missed is not None
    assert missed.share < 1 and not missed.is_met


def test_use_over_time(served: ServingRun) -> None:
    """Means over time are sums over requests, by Little's law."""
    (group,) = served.groups
    waited_s = served.waited.mean_us * 120 / 1e6
    assert served.mean_waiting == pytest.approx(waited_s / (served.span_us / 1e6))
    placed_us = (served.e2e.mean_us - served.waited.mean_us) * 120
    assert group.running == pytest.approx(placed_us / served.span_us)
    assert group.busy == pytest.approx(group.iteration_us * group.iterations / served.span_us)
    assert 0 < group.busy <= 1 and 0 < group.cache < group.most_cache <= 1
    assert group.most_waiting > 0 and group.workers == 2
    assert len(group.moments) <= 200 and group.moments[0].time_us == 0
    assert max(moment.waiting for moment in group.moments) <= group.most_waiting
    assert ServingRun.model_validate_json(served.model_dump_json()) == served


@given(values=st.lists(st.tuples(st.integers(0, 10**12), st.integers(1, 5)), min_size=1, max_size=30))
def test_percentiles_of_counted_values(values: list[tuple[int, int]]) -> None:
    found = percentiles(*np.array(values).T)
    flat = np.repeat(*np.array(values).T)
    assert found.count == len(flat) and found.mean_us == pytest.approx(flat.mean() / US)
    for percent in (50, 90, 95, 99):
        place = -(-percent * (len(flat) - 1) // 100)
        percentile = np.sort(flat)[place]
        assert getattr(found, f"p{percent}_us") == percentile / US
        assert 100 * (flat <= percentile).sum() >= percent * len(flat)


def test_the_largest_rate_is_that_of_a_queue_of_one_server() -> None:
    """One place, equal gaps: nobody waits as long as gaps are no shorter than service."""
    service_s = (1000 + 100 * 10 + 9 * (1000 + 10)) / 1e6

    class One(PerToken):
        num_workers = 1

    batching = BatchRule(cache_tokens=800, max_requests=1, max_batched_tokens=100)
    even = draw_requests(100, (lengths("100"), lengths("10")), burstiness=float("inf"))

    def serve_one(requests: Requests) -> ServedRun:
        return serve(requests, Pool(One(), batching, 1))

    limits = Limits(ttft_us=(1000 + 100 * 10) + 1000)
    found = most(even.at_rate(10.0), serve_one, limits, 0.005)
    assert found.rate_per_s is not None and found.served is not None
    # A millisecond in 100 requests is less than the tolerance allows.
    assert 1 / service_s / 1.005 <= found.rate_per_s <= 1 / service_s * 1.001
    assert found.served.goodput and found.served.goodput.is_met
    for tried in found.tried:
        rate = tried.rate_per_s or float("inf")
        assert tried.is_met == (rate <= found.rate_per_s)
    misses = min(t.rate_per_s for t in found.tried if t.rate_per_s and not t.is_met)
    assert misses <= found.rate_per_s * 1.005


def test_limits_that_always_or_never_hold() -> None:
    always = most(ARRIVING, run, Limits(tpot_us=1e9), 0.02)
    assert always.rate_per_s is None and len(always.tried) == 1 and always.served
    assert always.served.offered_per_s is None
    few = draw_requests(9, (lengths("9"), lengths("3"))).at_rate(900.0)
    never = most(few, run, Limits(tpot_us=1.0), 0.02)
    assert never.rate_per_s == 0 and never.served is None
    # All at once, what can be served, half and a quarter of that, and so seldom that nobody waits.
    rates = [one.rate_per_s for one in never.tried]
    assert rates[0] is None and rates[1:] == [rates[1] / part for part in (1, 2, 4, 2**20)]
    with pytest.raises(UserError, match="have no rate to search"):
        most(ARRIVING.at_rate(float("inf")), run, Limits(tpot_us=1.0), 0.1)


@pytest.mark.extended
def test_a_tighter_limit_means_a_lower_rate() -> None:
    def rate(**limits: float) -> float:
        return most(ARRIVING, run, Limits(**limits), 0.1).rate_per_s or 0.0

    assert 0 < rate(ttft_us=20_000) < rate(ttft_us=20_000, percentile=90) < rate(ttft_us=100_000)
    assert 0 < rate(tpot_us=1_300) < rate(tpot_us=1_500)
