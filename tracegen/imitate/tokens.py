"""Tokens of a trace as a fit looks at them: in the order of requests, and enough of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tracegen.generate.fields import TokenLayout
from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.routing import RoutingTrace

MAX_COLUMNS = 4096
"""Layers times experts that one fit takes: its largest matrices are as wide."""
MIN_REQUESTS = 24
"""Requests below which what they have in common means nothing."""
MIN_TOKENS = 80
"""Tokens of a request that tell what lasts some tokens from what lasts a request."""
RUN = 8
"""Requests of a part of the trace that follow one another, so that the part has a drift."""


@dataclass(frozen=True)
class Tokens:
    """The trace in the order of requests and positions."""

    ids: Array
    """Shape (layer, token, k); from `num_experts` on are empty slots."""
    counts: Array
    """Tokens of each request, shape (request,)."""
    position: Array
    """Of each token in its request, shape (token,)."""
    num_experts: int

    @property
    def request(self) -> Array:
        """Number of each token's request, from 0."""
        return np.repeat(np.arange(self.counts.size), self.counts)


def in_order(trace: RoutingTrace) -> Tokens:
    """Tokens by request, if there are enough and not too many columns.

    Parameters
    ----------
    trace
        Any.

    Raises
    ------
    UserError
        If the trace is too small, or too wide for one fit.
    """
    columns = trace.num_layers * trace.num_experts
    if columns > MAX_COLUMNS:
        msg = (
            f"{trace.num_layers} layers x {trace.num_experts} experts are {columns} columns; one "
            f"fit takes {MAX_COLUMNS}: choose {MAX_COLUMNS // trace.num_experts} layers"
        )
        raise UserError(msg)
    layout = TokenLayout.of(trace.tokens.request, trace.tokens.position)
    enough = int((layout.counts >= MIN_TOKENS).sum())
    if enough < MIN_REQUESTS:
        msg = (
            f"{enough} requests of at least {MIN_TOKENS} tokens; imitation needs "
            f"{MIN_REQUESTS} to tell what lasts a token from what lasts a request"
        )
        raise UserError(msg)
    position = trace.tokens.position[layout.order].astype(np.int64)
    return Tokens(trace.expert_ids[:, layout.order], layout.counts, position, trace.num_experts)


def some_requests(tokens: Tokens, count: int) -> Tokens:
    """Runs of requests with about so many tokens.

    Parameters
    ----------
    tokens
        Any.
    count
        Tokens to keep; all where there are no more.
    """
    stride = max(1, -(-tokens.ids.shape[1] // count))
    kept = np.arange(len(tokens.counts)) // RUN % stride == 0
    rows = kept[tokens.request]
    return Tokens(tokens.ids[:, rows], tokens.counts[kept], tokens.position[rows], tokens.num_experts)
