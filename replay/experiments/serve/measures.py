"""Measures of a served run: latencies, throughput, goodput, queues and caches.

Times are microseconds, multiples of a picosecond, and counted as ``vllm bench serve`` counts them.
A percentile p of n values is the one at place ceil(p/100 * (n - 1)), from 0, of the sorted values:
one that occurred, so that at least p of a hundred are no greater.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import Field

from hwmodel.units import PS_PER_S, PS_PER_US
from replay.errors import UserError
from replay.experiments.serve.book import Group, ServedRun
from replay.model.arrays import Counts, Ints
from tracegen.shared.strict import Strict

MOMENTS = 200
"""Points of a timeline that a result keeps of a group."""


class Percentiles(Strict):
    """A distribution, in microseconds."""

    count: int
    mean_us: float
    p50_us: float
    p90_us: float
    p95_us: float
    p99_us: float
    max_us: float


class Limits(Strict):
    """Latencies that users are promised.

    Attributes
    ----------
    ttft_us, tpot_us
        Most time to the first token, and per token behind it; None for no limit.
    percentile
        Of a hundred requests, how many must keep each limit.
    """

    ttft_us: float | None = Field(None, gt=0)
    tpot_us: float | None = Field(None, gt=0)
    percentile: int = Field(99, ge=0, le=100)


class Goodput(Strict):
    """Requests that kept all limits, as DistServe counts them (arXiv 2401.09670).

    Attributes
    ----------
    share
        Of all requests.
    requests_per_s
        Of those that kept them.
    is_met
        Whether the percentile of each latency keeps its limit.
    """

    limits: Limits
    share: float
    requests_per_s: float
    is_met: bool


class Moment(Strict):
    """A group when an iteration begins: requests with a place, in queues, share of cache held."""

    time_us: float
    running: int
    waiting: int
    cache: float


class GroupUse(Strict):
    """Use of a group. Means over time are over the whole run, in which idle time counts as 0.

    Attributes
    ----------
    busy
        Share of the time in which an iteration runs.
    iteration_us
        Mean time of an iteration.
    decoding, prefilled
        Requests decoded and tokens of prompts per iteration, of all workers, in the mean.
    running
        Requests with a place, mean over time.
    most_waiting
        Requests in queues when an iteration began, at most.
    cache, most_cache
        Share of the caches that is held: mean over workers and time, and of one worker at most.
    moments
        At most `MOMENTS` iterations, evenly over their number.
    """

    name: str
    workers: int
    iterations: int
    busy: float
    iteration_us: float
    decoding: float
    prefilled: float
    running: float
    most_waiting: int
    cache: float
    most_cache: float
    moments: list[Moment]


class ServingRun(Strict):
    """A run.

    Attributes
    ----------
    requests, source
        How many, and where they are from.
    prompt_tokens, output_tokens
        Of all requests.
    offered_per_s
        Rate of arrivals; None if all came at once.
    span_us
        From the first arrival until the last token; throughput is over this time.
    output_tokens_per_s, output_tokens_per_s_per_gpu, total_tokens_per_s
        Throughput; the total counts prompts, too.
    ttft
        Time from arrival until the first token. Where decoding is apart, that is when the prefill
        ends.
    tpot
        Mean time per token behind the first, of each request with more than one.
    itl
        Times between two deliveries of tokens to a request; tokens that speculative decoding
        accepts together are one delivery.
    e2e
        Time from arrival until the last token.
    waited
        Time of each request in queues for a place, also after it was put back.
    mean_waiting
        Requests in queues, mean over time.
    handover
        From a request's first token until its cache has come to the worker that decodes it.
    preemptions
        How often requests were put back and their caches thrown away.
    """

    requests: int
    source: str
    num_gpus: int
    prompt_tokens: int
    output_tokens: int
    offered_per_s: float | None
    span_us: float
    requests_per_s: float
    output_tokens_per_s: float
    output_tokens_per_s_per_gpu: float
    total_tokens_per_s: float
    ttft: Percentiles
    tpot: Percentiles | None
    itl: Percentiles | None
    e2e: Percentiles
    waited: Percentiles
    mean_waiting: float
    handover: Percentiles | None
    preemptions: int
    goodput: Goodput | None
    groups: list[GroupUse]


def latencies(timeline: ServedRun) -> tuple[Ints, Ints]:
    """Give time to the first token and time per token behind it, (request,) each, picoseconds.

    A request of one token has no time per token; it is given as 0, which keeps any limit.
    """
    book, requests = timeline.book, timeline.requests
    behind = np.maximum(requests.output - 1, 1)
    tpot: Ints = np.rint((book.finished - book.first) / behind).astype(np.int64)
    return book.first - requests.arrival_ps, tpot


def measure(timeline: ServedRun, limits: Limits | None = None) -> ServingRun:
    """Measure a run.

    Parameters
    ----------
    timeline
        The run.
    limits
        What goodput is counted under; none is counted without.

    Raises
    ------
    UserError
        If the run took no time at all, in which nothing has a rate.
    """
    book, requests, span = timeline.book, timeline.requests, timeline.span_ps
    if not span:
        message = "the run took no time, in which nothing has a rate"
        raise UserError(message)
    seconds = span / PS_PER_S
    outputs, prompts = int(requests.output.sum()), int(requests.prompt.sum())
    ttft, tpot = latencies(timeline)
    several, handed = requests.output > 1, book.joined >= 0
    gaps: Ints = np.array(book.gaps, np.int64).reshape(-1, 2)
    rate = requests.rate
    goodput = None
    if limits is not None:
        kept, is_met = np.ones(len(requests), np.bool_), True
        for values, limit, limited in (
            (ttft, limits.ttft_us, ttft),
            (tpot, limits.tpot_us, tpot[several]),
        ):
            most = np.inf if limit is None else limit * PS_PER_US
            kept &= values <= most
            is_met &= not len(limited) or _at(limited, limits.percentile) <= most
        goodput = Goodput(
            limits=limits,
            share=float(kept.mean()),
            requests_per_s=int(kept.sum()) / seconds,
            is_met=is_met,
        )
    return ServingRun(
        requests=len(requests),
        source=requests.source,
        num_gpus=timeline.num_gpus,
        prompt_tokens=prompts,
        output_tokens=outputs,
        offered_per_s=None if rate == float("inf") else rate,
        span_us=span / PS_PER_US,
        requests_per_s=len(requests) / seconds,
        output_tokens_per_s=outputs / seconds,
        output_tokens_per_s_per_gpu=outputs / seconds / timeline.num_gpus,
        total_tokens_per_s=(outputs + prompts) / seconds,
        ttft=percentiles(ttft),
        e2e=percentiles(book.finished - requests.arrival_ps),
        tpot=percentiles(tpot[several]) if several.any() else None,
        itl=percentiles(gaps[:, 0], gaps[:, 1]) if len(gaps) else None,
        waited=percentiles(book.waited),
        mean_waiting=int(book.waited.sum()) / span,
        handover=percentiles((book.joined - book.first)[handed]) if handed.any() else None,
        preemptions=int(book.preemptions.sum()),
        goodput=goodput,
        groups=[_use(group, span) for group in timeline.groups],
    )


def percentiles(values: Ints, counts: Counts | None = None) -> Percentiles:
    """Percentiles of times in picoseconds, (value,), each of which occurred `counts` times."""
    order = np.argsort(values, kind="stable")
    values = values[order]
    counts = np.ones_like(values) if counts is None else counts[order]
    past = np.cumsum(counts)
    count = int(past[-1])

    def at(percent: int) -> float:
        place = -(-percent * (count - 1) // 100)
        return int(values[np.searchsorted(past, place, side="right")]) / PS_PER_US

    return Percentiles(
        count=count,
        mean_us=float((values * (counts / count)).sum()) / PS_PER_US,
        p50_us=at(50),
        p90_us=at(90),
        p95_us=at(95),
        p99_us=at(99),
        max_us=at(100),
    )


def _at(values: Ints, percent: int) -> int:
    return int(np.sort(values)[-(-percent * (len(values) - 1) // 100)])


def _use(group: Group, span: int) -> GroupUse:
    rows: Counts = np.array(group.iterations, np.int64).reshape(-1, 9)
    start, end, decoding, prefilled, _, running, waiting, used, most_used = rows.T
    lasts, count, all_blocks = end - start, max(len(rows), 1), group.num_workers * group.blocks

    def over_time(values: Ints) -> float:
        return float((values * (lasts / span)).sum())

    def most(values: Ints) -> int:
        return int(values.max()) if len(values) else 0

    some: Sequence[Any] = rows[:: -(-count // MOMENTS)].tolist()
    return GroupUse(
        name=group.name,
        workers=group.num_workers,
        iterations=len(rows),
        busy=int(lasts.sum()) / span,
        iteration_us=int(lasts.sum()) / count / PS_PER_US,
        decoding=int(decoding.sum()) / count,
        prefilled=int(prefilled.sum()) / count,
        running=over_time(running),
        most_waiting=most(waiting),
        cache=over_time(used) / all_blocks,
        most_cache=most(most_used) / group.blocks,
        moments=[
            Moment(time_us=row[0] / PS_PER_US, running=row[5], waiting=row[6], cache=row[7] / all_blocks)
            for row in some
        ],
    )
