"""Book of every request and every iteration, from which measures are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from replay.experiments.serve.requests import Requests
from replay.model.arrays import Ints


@dataclass
class RequestBook:
    """Times of every request, shape (request,) each; in picoseconds, -1 for never.

    Attributes
    ----------
    prompt, output
        Lengths, as lists, which are quicker to look up one by one than arrays.
    worker
        Number of the worker that it was sent to, counted over all groups of all pools.
    first, finished
        When its first and its last token came.
    joined
        When its cache had come to the worker that decodes it, if that is another.
    since
        Begin of its last wait in a queue.
    waited
        Time in queues for a place, from its arrival and each time that it was put back.
    generated
        Tokens, as far as known while it does not decode.
    last
        When its last token came before it was put back.
    preemptions
        How often it was put back, and its cache thrown away.
    gaps
        (gap, count): times between two deliveries of tokens to a request, and how many.
    """

    requests: Requests
    prompt: list[int]
    output: list[int]
    worker: Ints
    first: Ints
    finished: Ints
    joined: Ints
    since: Ints
    waited: Ints
    generated: Ints
    last: Ints
    preemptions: Ints
    gaps: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, requests: Requests) -> RequestBook:
        """Book in which nothing has happened yet."""

        def column(value: int) -> Ints:
            return np.full(len(requests), value, np.int64)

        return cls(
            requests,
            requests.prompt.tolist(),
            requests.output.tolist(),
            worker=column(-1),
            first=column(-1),
            finished=column(-1),
            joined=column(-1),
            since=requests.arrival_ps.copy(),
            waited=column(0),
            generated=column(0),
            last=column(-1),
            preemptions=column(0),
        )


class Iteration(NamedTuple):
    """An iteration of a group, over all of its workers.

    Attributes
    ----------
    start, end
        In picoseconds.
    decoding
        Requests that were decoded.
    prefilled
        Tokens of prompts.
    generated
        Tokens that came out.
    running, waiting
        Requests that had a place, and those in queues, when it began.
    used, most_used
        Blocks of the caches that were held, of all workers and of the fullest.
    """

    start: int
    end: int
    decoding: int
    prefilled: int
    generated: int
    running: int
    waiting: int
    used: int
    most_used: int


@dataclass(frozen=True)
class Group:
    """Workers in step: their iterations, in order.

    Attributes
    ----------
    name
        ``engine``; or ``prefill`` or ``decode``, where these are apart.
    num_workers, blocks
        Workers, and blocks of the cache of each.
    """

    name: str
    num_workers: int
    blocks: int
    iterations: list[Iteration]


@dataclass(frozen=True)
class ServedRun:
    """A whole run.

    Attributes
    ----------
    num_gpus
        Of all groups.
    """

    book: RequestBook
    groups: list[Group]
    num_gpus: int

    @property
    def requests(self) -> Requests:
        """Requests that were served."""
        return self.book.requests

    @property
    def span_ps(self) -> int:
        """Time from the first arrival until the last token."""
        return int(self.book.finished.max())
