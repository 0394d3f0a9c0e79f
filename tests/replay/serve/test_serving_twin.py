"""The loop over arrays equals a loop over single requests and tokens, to the picosecond."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from replay.experiments.serve.iteration import Load
from replay.experiments.serve.requests import Requests
from replay.experiments.serve.rules import BatchRule, Drafts
from replay.experiments.serve.serving import Pool, serve

sys.path.insert(0, str(Path(__file__).parents[2] / "oracle"))

import plain_serving


class Linear:
    """Depends on every number of every load, so that none can be wrong unnoticed."""

    def __init__(self, num_workers: int, fixed: int = 1000) -> None:
        self.num_workers, self.fixed = num_workers, fixed

    def time_ps(self, loads: Sequence[Load]) -> int:
        assert len(loads) == self.num_workers and any(load.tokens for load in loads)
        return self.fixed + sum(
            (place + 2) * (100 * load.tokens + 7 * load.decoding + load.positions)
            + sum(13 * piece.tokens + piece.before for piece in load.prefill)
            for place, load in enumerate(loads)
        )


LENGTH = st.integers(1, 9) | st.integers(1, 25)
DRAFTS = st.just(Drafts()) | st.builds(
    Drafts, st.integers(1, 3), st.sampled_from([0.0, 0.3, 0.7, 1.0]), st.integers(0, 3)
)


@st.composite
def rules(draw: st.DrawFn, queries: int) -> BatchRule:
    block = draw(st.integers(1, 4))
    most = draw(st.integers(1, 5))
    return BatchRule(
        policy=draw(st.sampled_from(["mixed", "prefill-first", "whole-prompts"])),
        block=block,
        # The longest request fits, and little more.
        cache_tokens=(25 + 25 + queries + block) + draw(st.integers(0, 60)),
        max_requests=most,
        max_batched_tokens=most * queries + draw(st.integers(0, 8)),
        reserve=draw(st.sampled_from([0.0, 0.0, 0.5, 1.0])),
    )


@st.composite
def cases(draw: st.DrawFn) -> dict[str, object]:
    drafts = draw(DRAFTS)
    gaps = draw(st.lists(st.integers(0, 9000), max_size=11))
    return {
        "arrivals": np.cumsum([0, *gaps]).tolist(),
        "lengths": [(draw(LENGTH), draw(LENGTH)) for _ in range(len(gaps) + 1)],
        "drafts": drafts,
        "rules": draw(rules(drafts.queries)),
        "workers": draw(st.integers(1, 3)),
        "router": draw(st.sampled_from(["round-robin", "least-requests", "least-waiting"])),
        "decode": draw(st.none() | rules(drafts.queries)),
        "decoders": draw(st.integers(1, 2)),
        "handover": draw(st.sampled_from([0, 0, 300, 5000])),
    }


# On a busy machine to draw a case takes hypothesis longer than it likes.
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_equals_the_plain_twin(case: dict[str, object]) -> None:
    arrivals, lengths = case["arrivals"], case["lengths"]
    assert isinstance(arrivals, list) and isinstance(lengths, list)
    prompt, output = (np.array([pair[i] for pair in lengths]) for i in (0, 1))
    times, decoding = Linear(case["workers"]), Linear(case["decoders"], 700)
    common = {"router": case["router"], "drafts": case["drafts"]}

    def handover_ps(tokens: int) -> int:
        return case["handover"] * tokens

    found = serve(
        Requests(np.array(arrivals), prompt, output, "drawn"),
        Pool(times, case["rules"], 1),
        decode=Pool(decoding, case["decode"], 1) if case["decode"] else None,
        handover_ps=handover_ps,
        **common,
    )
    plain = plain_serving.serve(
        [(a, *pair) for a, pair in zip(arrivals, lengths, strict=True)],
        times,
        case["rules"],
        decode=(decoding, case["decode"]) if case["decode"] else None,
        handover_ps=handover_ps,
        **common,
    )
    book = found.book
    for number, request in enumerate(plain):
        assert len(request.tokens) == request.output, "every token once"
        assert book.first[number] == request.tokens[0]
        assert book.finished[number] == request.tokens[-1]
        assert book.waited[number] == request.waited
        assert book.preemptions[number] == request.preemptions
        assert book.joined[number] == request.joined
        assert book.worker[number] == request.worker
    # Gaps between deliveries; tokens that come together are one.
    gaps = [gap for request in plain for gap in np.diff(np.unique(request.tokens)).tolist()]
    counted = [gap for gap, count in book.gaps for _ in range(count)]
    assert sorted(counted) == sorted(gaps)


def test_what_is_left_of_the_cache_is_free_again() -> None:
    """Two rounds of the same requests, far apart, go alike: nothing is held for ever."""
    rng = np.random.default_rng(3)
    prompt, output = rng.integers(1, 30, 20), rng.integers(1, 30, 20)
    arrivals = np.sort(rng.integers(0, 10**5, 20))
    arrivals -= arrivals[0]
    later = 10**9
    requests = Requests(
        np.concatenate([arrivals, later + arrivals]),
        np.tile(prompt, 2),
        np.tile(output, 2),
        "twice",
    )
    for reserve in (0.0, 1.0):
        batching = BatchRule(cache_tokens=80, block=4, max_requests=8, max_batched_tokens=16, reserve=reserve)
        book = serve(requests, Pool(Linear(1), batching, 1)).book
        assert np.array_equal(book.finished[20:] - later, book.finished[:20])
        assert book.preemptions.any() == (reserve == 0), "reserve = 1: none is put back"


if __name__ == "__main__":
    pytest.main([__file__])
