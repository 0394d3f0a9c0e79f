"""Latencies of tokens, read off the schedule of one layer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.engine.taskgraph import NEVER
from replay.measure.parts import SlowToken, TokenLatency
from replay.model.arrays import Ints

if TYPE_CHECKING:
    from replay.engine import Timeline
    from replay.model.machine.machine import Machine
    from replay.model.work.layer import LayerWork

NUM_SLOWEST = 8  # tokens listed one by one


def us(ps: int | np.integer) -> float:
    """Microseconds of whole picoseconds."""
    return int(ps) / 1e6


class TokenTimes(NamedTuple):
    """Time of the tokens until they are combined.

    Attributes
    ----------
    from_dispatch, from_start
        Over the tokens, from the start of their dispatch and from that of the layer.
    slowest
        Those that took longest from their dispatch.
    """

    from_dispatch: TokenLatency
    from_start: TokenLatency
    slowest: list[SlowToken]


def token_latency(timeline: Timeline, machine: Machine, work: LayerWork, trace_rows: Ints | None) -> TokenTimes:
    """Time of the tokens from dispatch to combine, and the tokens that took longest.

    Where only some nodes are replayed in full, it is that of their tokens.

    Parameters
    ----------
    timeline
        The schedule of one layer, which begins at 0.
    machine
        The machine that made the graph; it remembers the tasks of each token.
    work
        The work that the graph was made from.
    trace_rows
        (token,): the tokens' rows in the trace, where they are known.
    """
    begin = np.full(work.num_tokens, NEVER)
    finish = np.full(work.num_tokens, -1, np.int64)
    tokens, tasks = machine.notes.remembered_tasks("sent")
    np.minimum.at(begin, tokens, timeline.start_ps[tasks])
    tokens, tasks = machine.notes.remembered_tasks("combined")
    np.maximum.at(finish, tokens, timeline.visible_ps[tasks])
    tokens = np.flatnonzero(travelling_tokens(work) & (begin < NEVER))
    latency = finish[tokens] - begin[tokens]
    slowest = tokens[(-latency).argsort(kind="stable")[:NUM_SLOWEST]]
    return TokenTimes(
        _quantiles(latency),
        _quantiles(finish[tokens]),
        [
            SlowToken(
                token=int(token),
                trace_row=None if trace_rows is None else int(trace_rows[token]),
                rank=int(work.source_rank[token]),
                experts=[expert for expert in work.expert_ids[token].tolist() if expert >= 0],
                sent_us=us(begin[token]),
                combined_us=us(finish[token]),
                latency_us=us(finish[token] - begin[token]),
            )
            for token in slowest
        ],
    )


def travelling_tokens(work: LayerWork) -> npt.NDArray[np.bool_]:
    """(token,): whether each has an expert, and is of a node in the sample, where there is one."""
    has_expert: npt.NDArray[np.bool_] = np.any(work.expert_ids >= 0, axis=1)
    return has_expert if work.sample is None else has_expert & work.sample.holds[work.source_rank]


def _quantiles(latency: Ints) -> TokenLatency:
    """Of the tokens' latencies (token,)."""
    if not len(latency):
        return TokenLatency(num_tokens=0, mean_us=0, p50_us=0, p90_us=0, p99_us=0, max_us=0)
    ordered = np.sort(latency)

    count = len(ordered)
    p50, p90, p99, most = ordered[[min(count - 1, int(share * count)) for share in (0.5, 0.9, 0.99, 1)]].tolist()
    return TokenLatency(
        num_tokens=count,
        mean_us=int(latency.sum()) / count / 1e6,
        p50_us=us(p50),
        p90_us=us(p90),
        p99_us=us(p99),
        max_us=us(most),
    )
