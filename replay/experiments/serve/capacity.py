"""The largest rate of requests at which latencies keep their limits.

The same requests arrive at several rates: gaps stretch, order and lengths stay. The search is by
bisection, and takes for granted that latencies at a higher rate are no better. On average that is
so; single requests may be lucky, so that near the limit the answer is one of several crossings.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from replay.errors import UserError
from replay.experiments.serve.book import ServedRun
from replay.experiments.serve.measures import Limits, Percentiles, ServingRun, measure
from replay.experiments.serve.requests import Requests
from tracegen.shared.strict import Strict

DOUBLINGS = 20
"""How often a rate is doubled or halved to find one on the other side of the limit."""
HALVINGS = 2
"""How often it is halved before the lowest rate of all is tried, at which nobody waits for anybody: limits that are
too tight for a request by itself no rate keeps."""


class RateTrial(Strict):
    """A rate that was tried; None for all at once."""

    rate_per_s: float | None
    is_met: bool
    output_tokens_per_s: float
    ttft: Percentiles
    tpot: Percentiles | None


class Capacity(Strict):
    """Throughput under limits.

    Attributes
    ----------
    tolerance
        The next rate that was tried and is too high is at most so much higher, as a share.
    rate_per_s
        The largest rate that was tried and keeps the limits; None if they are kept even where all
        requests come at once; 0 where no rate keeps them.
    served
        The run at this rate; None where there is none.
    tried
        All rates, in the order of the search.
    """

    limits: Limits
    tolerance: float
    rate_per_s: float | None
    served: ServingRun | None
    tried: list[RateTrial]


def most(
    requests: Requests,
    run: Callable[[Requests], ServedRun],
    limits: Limits,
    tolerance: float,
) -> Capacity:
    """Search the largest rate that keeps the limits.

    Parameters
    ----------
    requests
        What arrives; its gaps are stretched.
    run
        Serves requests.
    limits
        At least one latency has one.
    tolerance
        Of the rate, as a share.

    Raises
    ------
    UserError
        If there are fewer than two requests, or all of them come at once, so that there is no rate
        to change.
    """
    if not requests.arrival_ps[-1]:
        message = "requests that arrive at once have no rate to search; give requests per second"
        raise UserError(message)
    tried: list[RateTrial] = []

    def at(rate: float) -> ServingRun | None:
        """Give the run at a rate, if it keeps the limits."""
        served = measure(run(requests.at_rate(rate)), limits)
        assert served.goodput is not None
        trial = RateTrial(
            rate_per_s=rate if math.isfinite(rate) else None,
            is_met=served.goodput.is_met,
            output_tokens_per_s=served.output_tokens_per_s,
            ttft=served.ttft,
            tpot=served.tpot,
        )
        tried.append(trial)
        return served if served.goodput.is_met else None

    def capacity(rate: float | None, served: ServingRun | None) -> Capacity:
        return Capacity(limits=limits, tolerance=tolerance, rate_per_s=rate, served=served, tried=tried)

    if best := at(math.inf):
        return capacity(None, best)
    # What is served when a queue never empties is about what can be served at all.
    span_s = int(requests.output.sum()) / tried[0].output_tokens_per_s
    low, high = len(requests) / span_s, math.inf
    best = at(low)
    for step in range(DOUBLINGS):
        if best is None:
            if step == HALVINGS and at(low / 2 ** (DOUBLINGS - step)) is None:
                break
            low, high = low / 2, low
            best = at(low)
        elif math.isinf(high):
            if further := at(2 * low):
                low, best = 2 * low, further
            else:
                high = 2 * low
        else:
            break
    if best is None:
        return capacity(0.0, None)
    while high > low * (1 + tolerance) and math.isfinite(high):
        middle = math.sqrt(low * high)
        if further := at(middle):
            low, best = middle, further
        else:
            high = middle
    return capacity(low, best)
