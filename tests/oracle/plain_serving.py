"""A serving engine written for reading: one request at a time, one token at a time.

No arrays and no shortcuts. Every request is an object, a worker's running requests are a list that
is gone through in order as vLLM's scheduler does it, and the cache is a number of free blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil
from typing import Any

from replay.experiments.serve.iteration import Load, PromptPiece
from replay.experiments.serve.rules import NO_DRAFTS, BatchRule, Drafts


class Request:
    def __init__(self, number: int, arrival: int, prompt: int, output: int) -> None:
        self.number, self.arrival, self.prompt, self.output = number, arrival, prompt, output
        self.generated = self.cached = self.blocks = self.planned = self.preemptions = 0
        self.target = prompt  # positions to prefill, before it decodes
        self.tokens: list[int] = []  # when each came
        self.waited, self.since, self.joined, self.worker = 0, arrival, -1, -1

    @property
    def known(self) -> int:
        """Tokens of the prompt and of the output so far."""
        return self.prompt + self.generated

    @property
    def is_decoding(self) -> bool:
        return self.cached >= self.target


def uniform(seed: int, request: int, generated: int) -> float:
    state, wrap = seed, 2**64
    for value in (request, generated):
        state = ((state ^ value) + 0x9E3779B97F4A7C15) % wrap
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % wrap
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % wrap
        state ^= state >> 31
    return (state >> 11) / 2**53


def step_tokens(drafts: Drafts, request: Request) -> int:
    drawn, accepted = uniform(drafts.seed, request.number, request.generated), 0
    while accepted < drafts.count and drawn < drafts.acceptance ** (accepted + 1):
        accepted += 1
    return 1 + accepted


class Worker:
    def __init__(self, rules: BatchRule, drafts: Drafts, is_prefill: bool) -> None:
        self.rules, self.drafts, self.is_prefill = rules, drafts, is_prefill
        self.queries = drafts.count + 1
        self.free = rules.cache_tokens // rules.block
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.coming: list[Request] = []
        self.come: list[Request] = []
        self.queued: list[Request] = []
        self.leaving: list[Request] = []

    def blocks(self, positions: int) -> int:
        return ceil(Fraction(positions, self.rules.block))

    @property
    def places(self) -> int:
        return len(self.running) + len(self.coming)

    def allocate(self, request: Request, positions: int) -> bool:
        more = max(self.blocks(positions) - request.blocks, 0)
        if more > self.free:
            return False
        self.free -= more
        request.blocks += more
        return True

    def put_back_last(self, now: int) -> Request:
        request = self.running.pop()
        self.free += request.blocks
        request.blocks = request.cached = 0
        request.preemptions += 1
        request.since = now
        self.waiting.insert(0, request)
        return request

    def run_running(self, now: int, budget: int, decodes: bool, prefills: bool) -> tuple[int, bool]:
        """vLLM's first loop: running requests in order; the last goes where blocks are missing."""
        index, put_back = 0, False
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            if not (decodes if request.is_decoding else prefills):
                index += 1
                continue
            wanted = self.queries if request.is_decoding else request.target - request.cached
            wanted = min(wanted, budget)
            is_there = True
            while is_there and not self.allocate(request, request.cached + wanted):
                put_back = True
                is_there = self.put_back_last(now) is not request
            if not is_there:
                break
            request.planned = wanted
            budget -= wanted
            index += 1
        return budget, put_back

    def room(self, request: Request, positions: int) -> bool:
        need = self.blocks(positions)
        if self.rules.reserve and self.places:
            for other in [*self.running, *self.coming, request]:
                tokens = self.rules.reserve * (other.output - other.generated + self.queries - 1)
                need += ceil(tokens / self.rules.block)
        return need <= self.free

    def run_waiting(self, now: int, budget: int) -> None:
        taken = any(request.planned for request in self.running if not request.is_decoding)
        while self.waiting and budget > 0 and self.places < self.rules.max_requests:
            request = self.waiting[0]
            wanted = min(request.known, budget)
            if self.rules.policy == "whole-prompts":
                if request.known > budget and taken:
                    break
                wanted = request.known
            if not self.room(request, request.known):
                break
            assert self.allocate(request, wanted)
            taken = True
            self.waiting.pop(0)
            self.running.append(request)
            request.target = request.known
            request.waited += now - request.since
            request.planned = wanted
            budget -= wanted

    def begin(self, now: int) -> Load:
        for request in self.come:
            self.coming.remove(request)
            self.running.append(request)
        self.come = []
        budget = self.rules.max_batched_tokens
        if self.rules.policy == "mixed":
            budget, put_back = self.run_running(now, budget, True, True)
            if not put_back:
                self.run_waiting(now, budget)
        else:
            budget, put_back = self.run_running(now, budget, False, True)
            if not put_back:
                self.run_waiting(now, budget)
            if not any(request.planned for request in self.running):
                self.run_running(now, self.queries * len(self.running), True, False)
        planned = [request for request in self.running if request.planned]
        decoding = [request for request in planned if request.is_decoding]
        return Load(
            len(decoding),
            self.queries,
            sum(request.cached for request in decoding),
            tuple(PromptPiece(r.planned, r.cached) for r in planned if not r.is_decoding),
        )

    def end(self, now: int) -> None:
        for request in list(self.running):
            planned, request.planned = request.planned, 0
            if not planned:
                continue
            if request.is_decoding:
                come = min(step_tokens(self.drafts, request), request.output - request.generated)
                request.cached += come
            else:
                request.cached += planned
                come = 1 if request.cached == request.target else 0
            request.generated += come
            request.tokens += [now] * come
            if request.generated == request.output:
                self.running.remove(request)
                self.free += request.blocks
            elif come and self.is_prefill:
                self.running.remove(request)
                self.leaving.append(request)


def serve(
    arrivals: Sequence[tuple[int, int, int]],
    times: Any,
    rules: BatchRule,
    *,
    decode: tuple[Any, BatchRule] | None = None,
    handover_ps: Callable[[int], int] = lambda tokens: 0,
    router: str = "round-robin",
    drafts: Drafts = NO_DRAFTS,
) -> list[Request]:
    """Serve (request,) arrivals, prompts and outputs; returns the requests as they ended."""
    requests = [Request(number, *values) for number, values in enumerate(arrivals)]
    kinds = [(times, rules, decode is not None)]
    kinds += [(*decode, False)] if decode else []
    groups = [[Worker(its, drafts, is_prefill) for _ in range(clock.num_workers)] for clock, its, is_prefill in kinds]
    into = [worker for group in groups[:1] for worker in group]
    onto = [worker for group in groups[1:] for worker in group]
    ends: list[int | None] = [None] * len(groups)
    turns = {True: 0, False: 0}
    ports: dict[int, int] = {}
    moving: list[tuple[int, Request, Worker, Worker]] = []

    def choose(workers: list[Worker], is_entry: bool) -> Worker:
        if router == "round-robin":
            turns[is_entry] += 1
            return workers[(turns[is_entry] - 1) % len(workers)]
        weight = 4 if router == "least-waiting" else 1
        return min(workers, key=lambda w: weight * (len(w.waiting) + len(w.queued)) + w.places)

    ahead = list(requests)
    while True:
        events = [end for end in ends if end is not None]
        events += [request.arrival for request in ahead] + [move[0] for move in moving]
        if not events:
            return requests
        now = min(events)
        for request in [request for request in ahead if request.arrival <= now]:
            worker = choose(into, True)
            request.worker = into.index(worker)
            worker.waiting.append(request)
            ahead.remove(request)
        for place, group in enumerate(groups):
            if ends[place] == now:
                ends[place] = None
                for worker in group:
                    worker.end(now)
        for worker in into if onto else []:
            for request in worker.leaving:
                choose(onto, False).queued.append(request)
            worker.leaving = []
        for worker in onto:
            if ends[-1] is not None:
                continue
            while worker.queued and not worker.waiting:
                request = worker.queued[0]
                if worker.places == worker.rules.max_requests or not worker.room(request, request.prompt):
                    break
                worker.queued.pop(0)
                worker.free -= worker.blocks(request.prompt)
                worker.coming.append(request)
                source = into[request.worker]
                start = max(now, ports.get(id(source), 0), ports.get(id(worker), 0))
                end = start + handover_ps(request.prompt)
                ports[id(source)] = ports[id(worker)] = end
                moving.append((end, request, source, worker))
        for move in sorted(moving, key=lambda move: (move[0], move[1].number)):
            end, request, source, worker = move
            if end <= now:
                moving.remove(move)
                source.free += request.blocks
                request.blocks = worker.blocks(request.prompt)
                request.joined = now
                worker.come.append(request)
        for place, group in enumerate(groups):
            if ends[place] is None:
                loads = [worker.begin(now) for worker in group]
                if any(load.tokens for load in loads):
                    ends[place] = now + kinds[place][0].time_ps(loads)
