"""A batch of requests that are prefilled together, piece by piece, and then decoded together.

No request joins later and none is waited for: what papers measure. Requests that arrive over time
are the business of a serving engine's loop.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from replay.errors import UserError
from replay.experiments.serve.iteration import Load, PromptPiece
from replay.experiments.serve.requests import lengths_of
from replay.experiments.serve.times import SPENT

if TYPE_CHECKING:
    from replay.experiments.serve.rules import Drafts
    from replay.experiments.serve.spec import InferSpec
    from replay.experiments.serve.stream import Spent
    from replay.experiments.serve.times import ReplayedTimes
    from replay.model.arrays import Ints, Picoseconds
    from tracegen import RoutingTrace


@dataclass(frozen=True)
class BatchLengths:
    """Tokens of requests, which are dealt to workers in turn.

    Attributes
    ----------
    prompt, output
        (request,).
    """

    prompt: Ints
    output: Ints

    def of_workers(self, count: int) -> tuple[list[Ints], list[Ints]]:
        """Prompts and outputs: (worker,) of (request,) each."""
        return (
            [self.prompt[worker::count] for worker in range(count)],
            [self.output[worker::count] for worker in range(count)],
        )

    def prompts_of(self, count: int) -> Ints:
        """(worker,): tokens of all prompts of each."""
        return np.array([one.sum() for one in self.of_workers(count)[0]], np.int64)


def batch_lengths(spec: InferSpec, trace: RoutingTrace | None, num_gpus: int) -> BatchLengths:
    """Give every request its lengths.

    Raises
    ------
    UserError
        If they are to be those of a trace and there is none.
    """
    count = spec.requests * num_gpus
    if spec.lengths == "even":
        return BatchLengths(np.full(count, spec.prompt), np.full(count, spec.output))
    if trace is None:
        message = "lengths trace: no trace is given, whose requests have lengths"
        raise UserError(message)
    prompt, output = lengths_of(trace)
    behind = np.maximum(output - 1, 1)  # the first is of the prefill
    return BatchLengths(np.resize(prompt, count), np.resize(behind, count))


@dataclass
class IterationCosts:
    """Costs of iterations.

    Attributes
    ----------
    times_ps
        Of every iteration, in order.
    spent_ps
        Of all together, by what it was spent on.
    """

    times_ps: list[int] = field(default_factory=list)
    spent_ps: dict[Spent, int] = field(default_factory=lambda: dict.fromkeys(SPENT, 0))

    def add(self, spent: dict[Spent, int]) -> None:
        """Note an iteration."""
        self.times_ps.append(sum(spent.values()))
        for what, time_ps in spent.items():
            self.spent_ps[what] = self.spent_ps.get(what, 0) + time_ps

    @property
    def total_ps(self) -> int:
        """Time of all iterations."""
        return sum(self.times_ps)


@dataclass(frozen=True)
class PrefillRun:
    """Prompts that were prefilled.

    Attributes
    ----------
    spending
        What the iterations took.
    ends
        (worker,) of (request,): the iteration that ended each request's prompt.
    tokens
        (iteration,): tokens of the fullest worker.
    """

    spending: IterationCosts
    ends: list[Ints]
    tokens: list[int]

    @property
    def first_token_ps(self) -> Picoseconds:
        """(request,): when each request of all workers has its first token."""
        at = np.cumsum(self.spending.times_ps, dtype=np.int64)
        ends = np.concatenate(self.ends)
        return at[ends]


def prefill(times: ReplayedTimes, prompts: Sequence[Ints], chunk: int) -> PrefillRun:
    """Prefill prompts, those of each worker in order.

    Parameters
    ----------
    prompts
        (worker,) of (request,): tokens.
    chunk
        Tokens of a worker in an iteration, the last of which may be the first of a prompt
        (chunked prefill: vLLM's ``max_num_batched_tokens``, SGLang's ``chunked_prefill_size``).
    """
    cut = {key: cut_up(key, chunk) for key in {tuple(one.tolist()) for one in prompts}}
    found = [cut[tuple(one.tolist())] for one in prompts]
    spending, tokens = IterationCosts(), []
    for pieces in itertools.zip_longest(*(one for one, _ in found), fillvalue=()):
        loads = [Load(prefill=one) for one in pieces]
        spending.add(times.spent_ps(loads))
        tokens.append(max(load.tokens for load in loads))
    return PrefillRun(spending, [np.array(ends, np.int64) for _, ends in found], tokens)


def cut_up(prompts: Sequence[int], chunk: int) -> tuple[list[tuple[PromptPiece, ...]], list[int]]:
    """Fill iterations with so many tokens of prompts, one prompt after the other.

    Returns
    -------
    (iteration,) of what each takes; and (request,): the iteration that takes the last piece.
    """
    pieces: list[tuple[PromptPiece, ...]] = []
    ends, taken, room = [], [], chunk
    for prompt in prompts:
        before = 0
        while before < prompt:
            count = min(prompt - before, room)
            taken.append(PromptPiece(count, before))
            before, room = before + count, room - count
            if not room:
                pieces.append(tuple(taken))
                taken, room = [], chunk
        ends.append(len(pieces) - (room == chunk))
    return [*pieces, tuple(taken)] if taken else pieces, ends


@dataclass(frozen=True)
class DecodeRun:
    """Requests that were decoded until all have their tokens.

    Attributes
    ----------
    spending
        What the iterations took.
    tokens
        Made by all workers.
    latency_ps
        (request,): from the first iteration until each request has its last token.
    """

    spending: IterationCosts
    tokens: int
    latency_ps: Picoseconds


def decode(
    times: ReplayedTimes,
    prompts: Sequence[Ints],
    outputs: Sequence[Ints],
    drafts: Drafts,
    progress: Callable[[], object] | None = None,
) -> DecodeRun:
    """Decode requests that are prefilled; one that has its tokens leaves, and none comes.

    Parameters
    ----------
    prompts, outputs
        (worker,) of (request,): tokens in the cache at first, and tokens to make.
    """
    per_step = drafts.tokens_per_step
    steps = [np.ceil(one / per_step).astype(np.int64) for one in outputs]
    # Equal workers do the same.
    keys = [(*one.tolist(), *two.tolist()) for one, two in zip(prompts, outputs, strict=True)]
    of_kind = {key: number for number, key in enumerate(keys)}
    spending = IterationCosts()
    for step in range(max(int(one.max(initial=0)) for one in steps)):
        loads = {}
        for key, number in of_kind.items():
            runs = steps[number] > step
            cached = prompts[number][runs] + int(step * per_step)
            loads[key] = Load(int(runs.sum()), drafts.queries, int(cached.sum()))
        spending.add(times.spent_ps([loads[key] for key in keys]))
        if progress is not None:
            progress()
    at = np.cumsum([0, *spending.times_ps], dtype=np.int64)
    return DecodeRun(
        spending=spending,
        tokens=int(sum(int(one.sum()) for one in outputs)),
        latency_ps=at[np.concatenate(steps)],
    )
