"""Requests of a serving engine: when each arrives, and how many tokens it brings and asks for.

Arrivals are drawn at a rate or read from a file (`request_files`). Drawn arrivals are one sequence
of gaps, whatever the rate: at twice the rate all gaps are half as long. Two rates, or two schemes,
thus meet the same requests in the same order.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from hwmodel.units import PS_PER_S
from replay.errors import UserError, value_text
from replay.model.arrays import Ints, Picoseconds
from tracegen.trace.tables import DECODE, TraceData

MOST_REQUESTS = 5_000_000  # drawn at one a second, they stay within whole picoseconds of 64 bits
MOST_LENGTH = 10_000_000
"""Tokens of a prompt or an output, several times the longest context that models take."""
LONGEST_S = 100 * 24 * 3600
"""Seconds that arrivals may span: what 64 bits of picoseconds hold, 106 days, less a margin."""


@dataclass(frozen=True)
class Requests:
    """Requests in order of arrival, the first of which arrives at time 0.

    Attributes
    ----------
    arrival_ps
        (request,): when it arrives; never falls.
    prompt
        (request,): tokens of its prompt.
    output
        (request,): tokens that are generated for it, the first of them by the prefill.
    source
        Where they are from, in words.
    """

    arrival_ps: Picoseconds
    prompt: Ints
    output: Ints
    source: str

    def __post_init__(self) -> None:
        assert 1 <= len(self.arrival_ps) == len(self.prompt) == len(self.output) <= MOST_REQUESTS
        assert self.arrival_ps[0] == 0 and (np.diff(self.arrival_ps) >= 0).all(), "in order, from 0"
        assert min(self.prompt.min(), self.output.min()) >= 1, "every request has tokens"

    def __len__(self) -> int:
        return len(self.arrival_ps)

    @property
    def content_id(self) -> str:
        """SHA-256 of all arrivals and lengths, wherever they are from."""
        digest = hashlib.sha256()
        for values in (self.arrival_ps, self.prompt, self.output):
            digest.update(np.ascontiguousarray(values, "<i8").tobytes())
        return digest.hexdigest()

    @property
    def rate(self) -> float:
        """Requests per second from the first arrival to the last; infinite if all come at once."""
        span = int(self.arrival_ps[-1])
        return (len(self) - 1) * PS_PER_S / span if span else float("inf")

    def at_rate(self, rate: float) -> Requests:
        """Give the same requests with all gaps stretched alike.

        Parameters
        ----------
        rate
            Requests per second; infinite for all at once.

        Raises
        ------
        UserError
            If the rate is not positive, so low that arrivals span months, or if the requests come
            at once, so that there are no gaps to stretch.
        """
        if not rate > 0:  # NaN is not either
            message = f"rate {value_text(rate)}: expected a number above 0"
            raise UserError(message)
        if rate == float("inf") or len(self) == 1:
            return replace(self, arrival_ps=np.zeros_like(self.arrival_ps))
        if not self.arrival_ps[-1]:
            message = "requests that arrive at once have no gaps that another rate could stretch"
            raise UserError(message)
        if (len(self) - 1) / rate > LONGEST_S:
            message = f"{len(self)} requests at {rate:g} per second take more than 100 days"
            raise UserError(message)
        stretch = self.rate / rate
        return replace(self, arrival_ps=np.rint(self.arrival_ps * stretch).astype(np.int64))


@dataclass(frozen=True)
class Distribution:
    """A distribution of lengths in tokens.

    Attributes
    ----------
    kind
        ``fixed``, ``uniform`` or ``lognormal``.
    first, second
        The length; the least and the most; the median and the standard deviation of the logarithm.
    """

    kind: str
    first: float
    second: float = 0.0

    def draw(self, count: int, rng: np.random.Generator) -> Ints:
        """Draw lengths, shape (count,), each from 1 to `MOST_LENGTH`."""
        if self.kind == "fixed":
            drawn = np.full(count, self.first)
        elif self.kind == "uniform":
            drawn = rng.integers(int(self.first), int(self.second) + 1, count).astype(np.float64)
        else:
            drawn = np.rint(self.first * np.exp(self.second * rng.standard_normal(count)))
        whole: Ints = np.clip(drawn, 1, MOST_LENGTH).astype(np.int64)
        return whole


def lengths(text: str) -> Distribution:
    """Read a distribution of lengths.

    Parameters
    ----------
    text
        ``"1024"``, ``"uniform:LEAST:MOST"`` or ``"lognormal:MEDIAN:SIGMA"``.

    Raises
    ------
    UserError
        If it is none of these.

    Examples
    --------
    >>> lengths("lognormal:1024:0.8")
    Distribution(kind='lognormal', first=1024.0, second=0.8)
    """
    kind, *values = text.split(":") if ":" in text else ("fixed", text)
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        numbers = []
    whole = all(1 <= number <= MOST_LENGTH and number == int(number) for number in numbers)
    if kind == "fixed" and len(numbers) == 1 and whole:
        return Distribution("fixed", numbers[0])
    if kind == "uniform" and len(numbers) == 2 and whole and numbers[0] <= numbers[1]:
        return Distribution("uniform", *numbers)
    median = len(numbers) == 2 and 1 <= numbers[0] <= MOST_LENGTH and 0 <= numbers[1] <= 10
    if kind == "lognormal" and median:
        return Distribution("lognormal", *numbers)
    message = (
        f"lengths {value_text(text)}: expected a number of tokens such as 1024, uniform:LEAST:MOST "
        f"or lognormal:MEDIAN:SIGMA, from 1 to {MOST_LENGTH:,} tokens"
    )
    raise UserError(message)


def draw_requests(
    count: int,
    lengths: tuple[Distribution, Distribution] | TraceData,
    *,
    burstiness: float = 1.0,
    seed: int = 0,
) -> Requests:
    """Draw requests, one a second: gaps of a gamma distribution, lengths of theirs.

    Parameters
    ----------
    lengths
        Distributions of prompts and of outputs; or a routing trace, whose requests give a pair at a
        time, with replacement.
    burstiness
        Shape of the gamma distribution of gaps, as ``--burstiness`` of ``vllm bench serve``: 1 for
        a Poisson process, less for bursts, infinite for equal gaps. As there, all gaps are scaled
        so that the rate is met exactly.
    seed
        Of the random numbers.

    Raises
    ------
    UserError
        If the trace has no tokens.
    """
    rng = np.random.default_rng([seed, 1])
    if isinstance(lengths, tuple):
        prompt, output = (one.draw(count, rng) for one in lengths)
        source = f"{count} drawn, gaps of burstiness {burstiness:g}, seed {seed}"
    else:
        known = lengths_of(lengths)
        chosen = rng.integers(0, len(known[0]), count)
        prompt, output = (one[chosen] for one in known)
        source = f"{count} drawn from {len(known[0])} of a trace, burstiness {burstiness:g}, seed {seed}"
    return Requests(_gaps(count, burstiness, seed), prompt, output, source)


def lengths_of(trace: TraceData) -> tuple[Ints, Ints]:
    """Lengths of a routing trace's requests: prompts and outputs, shape (request,) each.

    The first decoded row of a request stands behind its prompt. What is generated last is never
    routed, so that an output has one token more than rows. A request that is not decoded in the
    trace has one token of output.

    Raises
    ------
    UserError
        If the trace has no tokens.
    """
    table = trace.tokens
    if not len(table.request):
        message = "the trace has no tokens, so that no lengths of requests can be drawn"
        raise UserError(message)
    _, place = np.unique(table.request, return_inverse=True)
    count, position = int(place.max()) + 1, table.position.astype(np.int64)
    is_decoded = table.phase == DECODE
    prompt, begun = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
    np.maximum.at(prompt, place, position + 1)
    np.minimum.at(begun, place[is_decoded], position[is_decoded])
    rows = np.bincount(place[is_decoded], minlength=count)
    return np.clip(np.minimum(prompt, begun), 1, MOST_LENGTH), rows + 1


def _gaps(count: int, burstiness: float, seed: int) -> Ints:
    """(request,): arrivals, one a second in the mean."""
    gaps = np.ones(count - 1)
    if burstiness != float("inf"):
        gaps = np.random.default_rng([seed, 0]).gamma(burstiness, 1 / burstiness, count - 1)
    total = gaps.sum()
    scale = (count - 1) / total if total > 0 else 0.0
    arrivals = np.concatenate([[0.0], np.cumsum(gaps) * scale])
    whole: Ints = np.rint(arrivals * PS_PER_S).astype(np.int64)
    return whole
