"""Truths of queues and batches that are known without a simulation."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loops import every

from replay.errors import UserError
from replay.experiments.serve.book import ServedRun
from replay.experiments.serve.iteration import Load
from replay.experiments.serve.requests import Requests, draw_requests, lengths
from replay.experiments.serve.rules import BatchRule, Drafts, Router
from replay.experiments.serve.serving import Pool, serve

FIXED, TOKEN = 1000, 10


class PerToken:
    """A fixed time and one per token of the fullest worker; notes every load."""

    def __init__(self, num_workers: int = 1) -> None:
        self.num_workers = num_workers
        self.loads: list[tuple[Load, ...]] = []

    def time_ps(self, loads: Sequence[Load]) -> int:
        self.loads.append(tuple(loads))
        return FIXED + TOKEN * max(load.tokens for load in loads)


def at(arrivals: list[int], prompt: int, output: int) -> Requests:
    count = len(arrivals)
    return Requests(np.array(arrivals), np.full(count, prompt), np.full(count, output), "by hand")


def rules(**others: object) -> BatchRule:
    values = {"cache_tokens": 100_000, "max_batched_tokens": 500, "max_requests": 100, **others}
    return BatchRule(**values)


def test_alone_a_request_waits_for_nothing() -> None:
    """TTFT is the time of the prefill, in as many pieces as it takes; TPOT that of a decode."""
    requests = at([0, 10**9], 1200, 5)
    book = serve(requests, Pool(PerToken(), rules(), 1)).book
    prefill = 2 * (FIXED + 500 * TOKEN) + (FIXED + 200 * TOKEN)
    assert (book.first - requests.arrival_ps).tolist() == [prefill] * 2
    assert (book.finished - book.first).tolist() == [4 * (FIXED + TOKEN)] * 2
    assert not book.waited.any()


@every("policy", ["mixed", "prefill-first", "whole-prompts"])
@every("interval", [100, 4_000, 9_000])
def test_one_place_is_a_queue_of_one_server(policy: str, interval: int) -> None:
    """D/D/1: the n-th request waits n times what service takes longer than the interval."""
    service = (FIXED + 100 * TOKEN) + 4 * (FIXED + TOKEN)  # 6,040
    requests = at([n * interval for n in range(20)], 100, 5)
    pool = Pool(PerToken(), rules(max_requests=1, policy=policy), 1)
    book = serve(requests, pool).book
    assert book.waited.tolist() == [n * max(service - interval, 0) for n in range(20)]
    assert (book.finished - requests.arrival_ps - book.waited).tolist() == [service] * 20


def test_pieces_of_prompts_go_beside_decoding() -> None:
    """What an iteration has left of its tokens behind the decoded ones is prefilled, in order."""
    times = PerToken()
    requests = at([0, 1, 1], 300, 40)
    serve(requests, Pool(times, rules(max_batched_tokens=200), 1))
    shown = [(load.decoding, load.positions, [tuple(piece) for piece in load.prefill]) for (load,) in times.loads[:6]]
    assert shown == [
        (0, 0, [(200, 0)]),
        (0, 0, [(100, 200), (100, 0)]),
        (1, 300, [(199, 100)]),
        (1, 301, [(1, 299), (198, 0)]),
        (2, 302 + 300, [(102, 198)]),
        (3, 303 + 301 + 300, []),
    ]
    times = PerToken()
    drafts = Drafts(3, 0.0)
    batching = rules(max_batched_tokens=200, max_requests=50)
    serve(at([0, 1], 200, 40), Pool(times, batching, 1), drafts=drafts)
    assert [piece.tokens for (load,) in times.loads for piece in load.prefill] == [200, 196, 4]


def test_prefills_come_first_where_the_policy_says_so() -> None:
    times = PerToken()
    serve(
        at([0, 1, 1], 300, 40),
        Pool(times, rules(max_batched_tokens=200, policy="prefill-first"), 1),
    )
    shown = [(load.decoding, [tuple(piece) for piece in load.prefill]) for (load,) in times.loads]
    assert shown[:6] == [
        (0, [(200, 0)]),
        (0, [(100, 200), (100, 0)]),
        (0, [(200, 100)]),
        (0, [(200, 0)]),
        (0, [(100, 200)]),
        (3, []),
    ]
    times = PerToken()
    serve(
        at([0, 1, 1], 300, 40),
        Pool(times, rules(max_batched_tokens=700, policy="whole-prompts"), 1),
    )
    assert [[tuple(piece) for piece in load.prefill] for (load,) in times.loads[:3]] == [
        [(300, 0)],
        [(300, 0), (300, 0)],
        [],
    ]
    times = PerToken()
    serve(at([0], 900, 2), Pool(times, rules(policy="whole-prompts"), 1))
    assert times.loads[0][0].prefill == ((900, 0),), "alone it may be longer than an iteration"


def test_workers_end_an_iteration_together() -> None:
    """A worker with a short batch takes as long as the one with the longest."""
    requests = Requests(np.array([0, 0]), np.array([400, 10]), np.array([3, 3]), "by hand")
    book = serve(requests, Pool(PerToken(2), rules(), 2)).book
    assert book.worker.tolist() == [0, 1]
    assert book.first.tolist() == [FIXED + 400 * TOKEN] * 2


def test_routers() -> None:
    """The second and the fourth are done at once; the last two come while an iteration runs."""
    requests = Requests(np.array([0, 0, 0, 0, 1300, 1300]), np.full(6, 10), np.array([9, 1, 9, 1, 9, 9]), "by hand")

    def sent(router: Router) -> list[int]:
        return serve(requests, Pool(PerToken(2), rules(), 2), router=router).book.worker.tolist()

    assert sent("round-robin") == [0, 1, 0, 1, 0, 1]
    # Two run on the one, none on the other; then one waits there, which counts as four that run.
    assert sent("least-requests") == [0, 1, 0, 1, 1, 1]
    assert sent("least-waiting") == [0, 1, 0, 1, 1, 0]


def test_a_full_cache_puts_back_the_last_and_prefills_it_again() -> None:
    """Two requests of 8 + 8 positions share 24: the second is put back, with all it had."""
    times = PerToken()
    batching = rules(cache_tokens=24, block=1, max_requests=2)
    book = serve(at([0, 0], 8, 8), Pool(times, batching, 1)).book
    assert book.preemptions.tolist() == [0, 1]
    # Both have 12 positions behind four decodes, and need a block each: the second has 5 tokens.
    again = [load.prefill for (load,) in times.loads if load.prefill][1]
    assert again == ((13, 0),)
    assert [load.decoding for (load,) in times.loads] == [0, 2, 2, 2, 2, 1, 1, 1, 0, 1, 1]
    kept = serve(
        at([0, 0], 8, 8), Pool(PerToken(), rules(cache_tokens=24, block=1, max_requests=2, reserve=1.0), 1)
    ).book
    assert not kept.preemptions.any() and kept.waited[1] > 0


def test_caches_move_one_at_a_time() -> None:
    """Prefilled together, handed over one after another, decoded elsewhere."""
    prefill, decode = PerToken(), PerToken()
    found = serve(
        at([0, 0, 0], 100, 3),
        Pool(prefill, rules(), 4),
        decode=Pool(decode, rules(), 8),
        handover_ps=lambda tokens: 70 * tokens,
    )
    book, done = found.book, FIXED + 300 * TOKEN
    assert found.num_gpus == 12
    assert book.first.tolist() == [done] * 3
    assert book.joined.tolist() == [done + n * 7000 for n in (1, 2, 3)]
    assert (book.finished - book.joined).tolist() == [2 * (FIXED + TOKEN)] * 3
    assert [load.positions for (load,) in decode.loads] == [100, 101] * 3
    assert not any(load.decoding for (load,) in prefill.loads)


def test_a_full_cache_of_the_decoder_holds_up_the_prefill() -> None:
    """Caches wait where they were made, until there is room for them; and block what comes."""
    found = serve(
        at([0, 0, 0], 100, 5),
        Pool(PerToken(), rules(cache_tokens=208, max_batched_tokens=100), 1),
        decode=Pool(PerToken(), rules(cache_tokens=112), 1),
    )
    book = found.book
    decoding = 4 * (FIXED + TOKEN)
    step = FIXED + 100 * TOKEN
    assert book.joined.tolist() == [step, step + decoding, step + 2 * decoding]
    # The third prompt finds no blocks until the cache of the second has moved.
    assert book.first.tolist() == [step, 2 * step, step + decoding + step]


def test_drafts() -> None:
    """All accepted: a step makes drafts + 1 tokens. None: as without, but with more queries."""
    for acceptance, steps in ((1.0, 3), (0.0, 9)):
        times = PerToken()
        drafts = Drafts(2, acceptance)
        requests = at([0], 50, 10)  # one by the prefill, nine decoded
        serve(requests, Pool(times, rules(), 1), drafts=drafts)
        decoded = [load for (load,) in times.loads[1:]]
        assert len(decoded) == steps and {load.queries for load in decoded} == {3}
    drafts = Drafts(3, 0.7)
    many = np.arange(200_000)
    drawn_tokens = drafts.tokens(many, np.full_like(many, 5))
    assert drawn_tokens.mean() == pytest.approx(drafts.tokens_per_step, rel=0.01)
    shares = np.bincount(drawn_tokens, minlength=5)[1:] / len(many)
    assert shares == pytest.approx([0.3, 0.7 * 0.3, 0.49 * 0.3, 0.343], abs=0.005)


@st.composite
def runs(draw: st.DrawFn) -> tuple[ServedRun, PerToken, BatchRule]:
    times = PerToken(draw(st.integers(1, 3)))
    drafts = draw(st.sampled_from([Drafts(), Drafts(2, 0.6)]))
    batching = BatchRule(
        policy=draw(st.sampled_from(["mixed", "prefill-first", "whole-prompts"])),
        cache_tokens=draw(st.integers(80, 200)),
        block=draw(st.sampled_from([1, 4, 16])),
        max_batched_tokens=draw(st.integers(24, 80)),
        max_requests=8,
        reserve=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    requests = draw_requests(
        draw(st.integers(1, 40)),
        (lengths("uniform:1:40"), lengths("uniform:1:22")),
        seed=draw(st.integers(0, 99)),
    ).at_rate(draw(st.sampled_from([1e6, 1e8, float("inf")])))
    found = serve(requests, Pool(times, batching, 1), drafts=drafts)
    return found, times, batching


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])  # draws are whole runs
@given(run=runs())
def test_nothing_is_lost_and_no_limit_is_passed(
    run: tuple[ServedRun, PerToken, BatchRule],
) -> None:
    found, times, batching = run
    book, iterations = found.book, found.groups[0].iterations
    # Conservation: every token is generated once, every prompt is prefilled once if not put back.
    assert sum(one.generated for one in iterations) == found.requests.output.sum()
    prefilled = sum(piece.tokens for loads in times.loads for load in loads for piece in load.prefill)
    assert prefilled == sum(one.prefilled for one in iterations)
    if not book.preemptions.any():
        assert prefilled == found.requests.prompt.sum()
    # Limits of every worker in every iteration.
    for loads in times.loads:
        for load in loads:
            pieces = sum(piece.tokens for piece in load.prefill)
            assert load.decoding <= batching.max_requests
            if batching.policy == "mixed":
                assert load.tokens <= batching.max_batched_tokens
            else:
                assert not (load.decoding and load.prefill)
                alone = batching.policy == "whole-prompts" and len(load.prefill) == 1
                assert alone or pieces <= batching.max_batched_tokens
    assert all(0 <= one.most_used <= batching.blocks for one in iterations)
    # An engine that has work is never idle; iterations do not overlap.
    for one, following in itertools.pairwise(iterations):
        assert one.end <= following.start
        if one.end < following.start:
            open_ = (found.requests.arrival_ps <= one.end) & (book.finished > one.end)
            assert not open_.any()
    assert ((book.first > found.requests.arrival_ps) & (book.finished >= book.first)).all()


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])  # draws are whole runs
@given(run=runs())
def test_littles_law(run: tuple[ServedRun, PerToken, BatchRule]) -> None:
    """Places held by iterations are time spent in them by requests: L = lambda W, both counted."""
    found = run[0]
    book, requests = found.book, found.requests
    by_iterations = sum(one.running * (one.end - one.start) for one in found.groups[0].iterations)
    by_requests = (book.finished - requests.arrival_ps - book.waited).sum()
    assert by_iterations == by_requests


def test_rules_under_which_nothing_could_be_served_are_refused() -> None:
    requests = at([0], 100, 10)
    for others, message in (
        ({"cache_tokens": 96}, "takes 109 positions of the cache, of which a worker has 96"),
        ({"max_requests": 600}, "max_batched_tokens = 500: 600 requests with 1 tokens"),
    ):
        with pytest.raises(UserError, match=message):
            serve(requests, Pool(PerToken(), rules(**others), 1))
    # The last token is generated, but needs no place in the cache.
    serve(requests, Pool(PerToken(), rules(cache_tokens=109, block=1), 1))
    with pytest.raises(UserError, match="takes 109 positions"):
        serve(requests, Pool(PerToken(), rules(cache_tokens=108, block=1), 1))
