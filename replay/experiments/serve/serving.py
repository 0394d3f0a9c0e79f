"""A serving engine over time: requests arrive, iterations follow one another, caches move.

The workers of a group begin and end every iteration together, since they meet in every MoE layer
(vLLM and SGLang with data-parallel attention do so by empty batches). Groups of the same kind
(`Pool.replicas`) know nothing of one another. An iteration begins when the one before has ended and
there is something to run; what arrives meanwhile is seen by the next. The scheduler itself takes no
time: vLLM and SGLang make the next batch while the GPUs run the one before.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

from replay.errors import UserError, unknown
from replay.experiments.serve.book import Book, Group, Iteration, Timeline
from replay.experiments.serve.iteration import IterationTimes, Load
from replay.experiments.serve.requests import Requests
from replay.experiments.serve.rules import Batching, Router, Speculation
from replay.experiments.serve.worker import Worker

WAITING_WEIGHT = 4
"""Running requests that a waiting one counts as (vLLM, ``vllm/v1/engine/core_client.py``)."""


@dataclass(frozen=True)
class Pool:
    """Groups of GPUs that do the same.

    Attributes
    ----------
    times
        What an iteration of a group takes, and how many workers it has.
    rules
        How its workers batch.
    num_gpus
        GPUs of a group.
    replicas
        Groups.
    """

    times: IterationTimes
    rules: Batching
    num_gpus: int
    replicas: int = 1


def serve(
    requests: Requests,
    pool: Pool,
    *,
    decode: Pool | None = None,
    handover_ps: Callable[[int], int] | None = None,
    router: Router = "round-robin",
    speculation: Speculation | None = None,
) -> Timeline:
    """Serve all requests.

    Parameters
    ----------
    requests
        What arrives.
    pool
        The engine; with `decode`, the one that prefills.
    decode
        Where requests are decoded that `pool` has prefilled; if None, there.
    handover_ps
        Time of moving the cache of a prompt of so many tokens to the worker that decodes it, once
        that has blocks for it. A worker sends one at a time, and receives one at a time.
    router
        To which worker a request goes, and to which one its cache.
    speculation
        Drafts of decoded tokens.

    Raises
    ------
    UserError
        If a request does not fit into the cache of a worker, or an iteration has too few tokens
        for all that are decoded.
    """
    return _Engine(requests, pool, decode, handover_ps, router, speculation).run()


class _Group:
    """Workers in step."""

    def __init__(self, name: str, pool: Pool, workers: list[Worker]) -> None:
        self.times, self.workers = pool.times, workers
        self.ends: int | None = None
        self.kept = Group(name, len(workers), pool.rules.blocks, [])
        self._begun: Iteration | None = None

    def begin(self, now: int) -> None:
        loads: Sequence[Load] = [worker.begin(now) for worker in self.workers]
        if not any(load.tokens for load in loads):
            return
        decoding = sum(load.decoding for load in loads)
        prefilled = sum(piece.tokens for load in loads for piece in load.prefill)
        used = [worker.used for worker in self.workers]
        self.ends = now + self.times.time_ps(loads)
        self._begun = Iteration(
            now, self.ends, decoding, prefilled, 0,
            running=sum(worker.running for worker in self.workers),
            waiting=sum(len(worker.waiting) for worker in self.workers),
            used=sum(used), most_used=max(used),
        )  # fmt: skip

    def end(self, now: int) -> None:
        assert self._begun is not None
        generated = sum(worker.end(now) for worker in self.workers)
        self.kept.iterations.append(self._begun._replace(generated=generated))
        self.ends = None


class _Route:
    """Chooses a worker for a request; `queued` requests of a worker are yet to be accepted."""

    def __init__(self, router: str, workers: list[Worker], queued: list[deque[int]]) -> None:
        if router not in get_args(Router):
            raise unknown("router", router, get_args(Router))
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
    """The state of `serve`."""

    def __init__(
        self,
        requests: Requests,
        pool: Pool,
        decode: Pool | None,
        handover_ps: Callable[[int], int] | None,
        router: Router,
        speculation: Speculation | None,
    ) -> None:
        self.book = Book.of(requests)
        is_apart = decode is not None
        _check(requests, pool.rules, speculation, 0 if is_apart else 1)
        self.entry = self._groups("prefill" if is_apart else "engine", pool, speculation, is_apart)
        self.decode: list[_Group] = []
        self.num_gpus = pool.num_gpus * pool.replicas
        if decode is not None:
            _check(requests, decode.rules, speculation, 1)
            self.decode = self._groups("decode", decode, speculation, False)
            self.num_gpus += decode.num_gpus * decode.replicas
        self.handover_ps = handover_ps or (lambda tokens: 0)
        self.into = [worker for group in self.entry for worker in group.workers]
        self.onto = [worker for group in self.decode for worker in group.workers]
        self.queued: list[deque[int]] = [deque() for _ in self.onto]
        self.route = _Route(router, self.into, [deque() for _ in self.into])
        self.route_on = _Route(router, self.onto, self.queued)
        self.sends, self.receives = [0] * len(self.into), [0] * len(self.onto)
        self.moving: list[tuple[int, int, int]] = []  # heap of (end, request, to)

    def _groups(
        self, name: str, pool: Pool, speculation: Speculation | None, hands_over: bool
    ) -> list[_Group]:
        if pool.replicas < 1 or pool.num_gpus < 1:
            message = f"{name}: {pool.replicas} groups of {pool.num_gpus} GPUs; at least 1 each"
            raise UserError(message)

        def worker() -> Worker:
            return Worker(pool.rules, self.book, speculation, hands_over=hands_over)

        return [
            _Group(name, pool, [worker() for _ in range(pool.times.num_workers)])
            for _ in range(pool.replicas)
        ]

    def run(self) -> Timeline:
        """Go from event to event: an arrival, an end of an iteration, a cache that has moved."""
        arrivals, groups = self.book.requests.arrival_ps.tolist(), [*self.entry, *self.decode]
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
            if self.decode:
                self._hand_over(now)
            for group in groups:
                if group.ends is None:
                    group.begin(now)
        assert (self.book.finished >= 0).all(), "every request is served"
        return Timeline(self.book, [group.kept for group in groups], self.num_gpus)

    def _hand_over(self, now: int) -> None:
        """Send caches of prefilled requests on their way, and take in those that have come."""
        for worker in self.into:
            for who in worker.leaving:
                self.queued[self.route_on.choose()].append(who)
            worker.leaving.clear()
        first = 0
        for group in self.decode:
            past = first + len(group.workers)
            if group.ends is None:  # between iterations, as its scheduler runs only then
                for target in range(first, past):
                    self._accept(target, now)
            first = past
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


def _check(
    requests: Requests, rules: Batching, speculation: Speculation | None, decodes: int
) -> None:
    """Refuse rules under which a request could never be served."""
    queries = 1 + (speculation.drafts if speculation else 0)
    if (
        decodes
        and rules.policy == "mixed"
        and rules.max_requests * queries > (rules.max_batched_tokens)
    ):
        message = (
            f"max_batched_tokens = {rules.max_batched_tokens}: {rules.max_requests} requests with "
            f"{queries} tokens each are decoded at a time; possible from "
            f"{rules.max_requests * queries} on, or with fewer max_requests"
        )
        raise UserError(message)
    # The last token takes no place in the cache; when it is made, drafts may do so in vain.
    decoded = (requests.output > 1) * decodes * (requests.output - 2 + queries)
    longest = int((requests.prompt + decoded).max())
    if rules.blocks_of(longest) > rules.blocks:
        message = (
            f"a request takes {longest} positions of the cache, of which a worker has "
            f"{rules.blocks * rules.block}, in blocks of {rules.block}"
        )
        raise UserError(message)
