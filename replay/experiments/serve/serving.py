"""A serving engine over time: requests arrive, iterations follow one another, caches move.

The workers of a group begin and end every iteration together, since they meet in every MoE layer
(vLLM and SGLang with data-parallel attention do so by empty batches). An iteration begins when the
one before has ended and there is something to run; what arrives meanwhile is seen by the next. The
scheduler itself takes no time: vLLM and SGLang make the next batch while the GPUs run the one
before.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from replay.errors import UserError
from replay.experiments.serve.book import Group, Iteration, RequestBook, ServedRun
from replay.experiments.serve.iteration import Load
from replay.experiments.serve.requests import Requests
from replay.experiments.serve.rules import NO_DRAFTS, BatchRule, Drafts, Router
from replay.experiments.serve.worker import EngineWorker

if TYPE_CHECKING:
    from replay.experiments.serve.times import ReplayedTimes

WAITING_WEIGHT = 4
"""Running requests that a waiting one counts as (vLLM, ``vllm/v1/engine/core_client.py``)."""


class Pool(NamedTuple):
    """GPUs that serve the same phases.

    Attributes
    ----------
    times
        What an iteration takes, and how many workers there are.
    rules
        How the workers batch.
    num_gpus
        All of them.
    """

    times: ReplayedTimes
    rules: BatchRule
    num_gpus: int


def serve(
    requests: Requests,
    pool: Pool,
    *,
    decode: Pool | None = None,
    handover_ps: Callable[[int], int] = lambda tokens: 0,
    router: Router = "round-robin",
    drafts: Drafts = NO_DRAFTS,
) -> ServedRun:
    """Serve all requests.

    Parameters
    ----------
    requests
        What arrives.
    pool
        The engine; with `decode`, the one that prefills.
    decode
        GPUs that decode what `pool` has prefilled; None if `pool` does so itself.
    handover_ps
        Time of moving the cache of a prompt of so many tokens to the worker that decodes it, once
        that has blocks for it. A worker sends one at a time, and receives one at a time.
    router
        To which worker a request goes, and to which one its cache.
    drafts
        Of decoded tokens.

    Raises
    ------
    UserError
        If a request does not fit into the cache of a worker, or an iteration has too few tokens
        for all that are decoded.
    """
    _check(requests, pool.rules, drafts, decodes=decode is None)
    book = RequestBook.of(requests)
    if decode is None:
        return _Engine(book, [_Group("engine", pool, book, drafts)], handover_ps, router).run()
    _check(requests, decode.rules, drafts, decodes=True)
    groups = [
        _Group("prefill", pool, book, drafts, hands_over=True),
        _Group("decode", decode, book, drafts),
    ]
    return _Engine(book, groups, handover_ps, router).run()


class _Group:
    """Workers in step."""

    def __init__(self, name: str, pool: Pool, book: RequestBook, drafts: Drafts, *, hands_over: bool = False) -> None:
        self.times, self.num_gpus = pool.times, pool.num_gpus
        self.workers = [
            EngineWorker(pool.rules, book, drafts, hands_over=hands_over) for _ in range(pool.times.num_workers)
        ]
        self.ends: int | None = None
        self.kept = Group(name, len(self.workers), pool.rules.blocks, [])
        self._begun: Iteration | None = None

    def begin(self, now: int) -> None:
        loads: Sequence[Load] = [worker.begin(now) for worker in self.workers]
        if not any(load.tokens for load in loads):
            return
        decoding = sum(load.decoding for load in loads)
        prefilled = sum(piece.tokens for load in loads for piece in load.prefill)
        used = [worker.blocks_in_use for worker in self.workers]
        self.ends = now + self.times.time_ps(loads)
        self._begun = Iteration(
            now,
            self.ends,
            decoding,
            prefilled,
            0,
            running=sum(worker.running for worker in self.workers),
            waiting=sum(len(worker.waiting) for worker in self.workers),
            used=sum(used),
            most_used=max(used),
        )

    def end(self, now: int) -> None:
        assert self._begun is not None
        generated = sum(worker.end(now) for worker in self.workers)
        self.kept.iterations.append(self._begun._replace(generated=generated))
        self.ends = None


class _Route:
    """Chooses a worker for a request; `queued` requests of a worker are yet to be accepted."""

    def __init__(self, router: Router, workers: list[EngineWorker], queued: list[deque[int]]) -> None:
        self.workers, self.queued = workers, queued
        self.weight = WAITING_WEIGHT if router == "least-waiting" else 1
        self.is_in_turn, self.turn = router == "round-robin", -1

    def choose(self) -> int:
        if self.is_in_turn:
            self.turn = (self.turn + 1) % len(self.workers)
            return self.turn
        loads = [
            self.weight * (len(worker.waiting) + len(queued)) + worker.running
            for worker, queued in zip(self.workers, self.queued, strict=True)
        ]
        return loads.index(min(loads))


class _Engine:
    """The state of `serve`: one group, or one that prefills and one that decodes."""

    def __init__(
        self,
        book: RequestBook,
        groups: list[_Group],
        handover_ps: Callable[[int], int],
        router: Router,
    ) -> None:
        self.book, self.groups, self.handover_ps = book, groups, handover_ps
        self.into = groups[0].workers
        self.onto = [worker for group in groups[1:] for worker in group.workers]
        self.queued: list[deque[int]] = [deque() for _ in self.onto]
        self.route = _Route(router, self.into, [deque() for _ in self.into])
        self.route_on = _Route(router, self.onto, self.queued)
        self.sends, self.receives = [0] * len(self.into), [0] * len(self.onto)
        self.moving: list[tuple[int, int, int]] = []  # heap of (end, request, to)

    def run(self) -> ServedRun:
        """Go from event to event: an arrival, an end of an iteration, a cache that has moved."""
        arrivals, groups = self.book.requests.arrival_ps.tolist(), self.groups
        arrived, num_requests = 0, len(arrivals)
        while True:
            events = [group.ends for group in groups if group.ends is not None]
            if arrived < num_requests:
                events.append(arrivals[arrived])
            if self.moving:
                events.append(self.moving[0][0])
            if not events:
                break
            now = min(events)
            # The router knows what is running and waiting before this moment's ends.
            while arrived < num_requests and arrivals[arrived] <= now:
                chosen = self.route.choose()
                self.book.worker[arrived] = chosen
                self.into[chosen].waiting.append(arrived)
                arrived += 1
            for group in groups:
                if group.ends == now:
                    group.end(now)
            if self.onto:
                self._hand_over(now)
            for group in groups:
                if group.ends is None:
                    group.begin(now)
        assert (self.book.finished >= 0).all(), "every request is served"
        num_gpus = sum(group.num_gpus for group in groups)
        return ServedRun(self.book, [group.kept for group in groups], num_gpus)

    def _hand_over(self, now: int) -> None:
        """Send caches of prefilled requests on their way, and take in those that have come."""
        for worker in self.into:
            for who in worker.leaving:
                self.queued[self.route_on.choose()].append(who)
            worker.leaving.clear()
        if self.groups[1].ends is None:  # between iterations, as its scheduler runs only then
            for target in range(len(self.onto)):
                self._accept(target, now)
        while self.moving and self.moving[0][0] <= now:
            _, who, target = heapq.heappop(self.moving)
            self.into[self.book.worker[who]].release(who)
            self.onto[target].join(who)
            self.book.joined[who] = now

    def _accept(self, target: int, now: int) -> None:
        queued, worker = self.queued[target], self.onto[target]
        while queued and worker.accept(queued[0]):
            who = queued.popleft()
            source = int(self.book.worker[who])
            start = max(now, self.sends[source], self.receives[target])
            end = start + self.handover_ps(self.book.prompt[who])
            self.sends[source] = self.receives[target] = end
            heapq.heappush(self.moving, (end, who, target))


def _check(requests: Requests, rules: BatchRule, drafts: Drafts, *, decodes: bool) -> None:
    """Refuse rules under which a request could never be served."""
    most = rules.max_requests * drafts.queries
    if decodes and rules.policy == "mixed" and most > rules.max_batched_tokens:
        message = (
            f"max_batched_tokens = {rules.max_batched_tokens}: {rules.max_requests} requests with "
            f"{drafts.queries} tokens each are decoded at a time; possible from {most} on, or with "
            "fewer max_requests"
        )
        raise UserError(message)
    # The last token takes no place in the cache; when it is made, drafts may do so in vain.
    decoded = (requests.output > 1) * decodes * (requests.output - 2 + drafts.queries)
    longest = int((requests.prompt + decoded).max())
    if rules.blocks_of(longest) > rules.blocks:
        message = (
            f"a request takes {longest} positions of the cache, of which a worker has "
            f"{rules.blocks * rules.block}, in blocks of {rules.block}"
        )
        raise UserError(message)
