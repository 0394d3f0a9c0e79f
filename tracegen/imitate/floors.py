"""Distance of a trace from itself: statistics of one half of its requests against the other.

No imitation can be asked to be nearer to a trace than the trace is to more of the same work.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array
from tracegen.trace.checks import boundaries
from tracegen.trace.routing import RoutingTrace
from tracegen.trace.tables import RequestTable, TokenTable

SPLITS = 20
"""Random halvings that a floor is the mean of: its own error is then below a fifth of it."""

Measure = Callable[[RoutingTrace], Mapping[str, float]]
"""Numbers of a trace, by name."""


def floors(
    trace: RoutingTrace,
    measure: Measure,
    *,
    splits: int = SPLITS,
    seed: int = 0,
    progress: Callable[[], object] | None = None,
) -> dict[str, float]:
    """Mean relative difference between halves of a trace, over random splits by request.

    A half has half the requests, so that two traces as large as this one, of the same work, differ
    by about 0.7 of a floor.

    Parameters
    ----------
    trace
        With at least two requests.
    measure
        Numbers of a half, by name. What it leaves out for some half has no floor, and nothing has
        one if it refuses a half with `UserError`.
    splits
        Halvings.
    seed
        Of the halvings.
    progress
        Called after each halving.

    Returns
    -------
    By name; 0.03 for halves that differ by 3 % of their mean.

    Raises
    ------
    UserError
        If the trace has fewer than two requests.
    """
    ids = np.unique(trace.tokens.request)
    if ids.size < 2:
        msg = f"a trace of {ids.size} requests has no halves to compare"
        raise UserError(msg)
    rng = np.random.default_rng(seed)
    apart: dict[str, list[float]] = {}
    for _ in range(splits):
        mixed = rng.permutation(ids)
        halves = mixed[: ids.size // 2], mixed[ids.size // 2 :]
        try:
            one, other = (measure(of_requests(trace, half)) for half in halves)
        except UserError:
            return {}
        for name in [name for name in one if name in other]:
            middle = (one[name] + other[name]) / 2
            difference = abs(one[name] - other[name]) / abs(middle) if middle else 0.0
            apart.setdefault(name, []).append(difference)
        if progress is not None:
            progress()
    return {name: float(np.mean(found)) for name, found in apart.items() if len(found) == splits}


def of_requests(trace: RoutingTrace, requests: Array) -> RoutingTrace:
    """The tokens of some requests, in the order of the trace.

    Parameters
    ----------
    trace
        Any.
    requests
        Numbers as in ``tokens.request``, shape (request,).

    Returns
    -------
    A trace without gate weights and without columns of requests.
    """
    rows = np.flatnonzero(np.isin(trace.tokens.request, requests))
    columns = {
        field.name: None if (column := getattr(trace.tokens, field.name)) is None else column[rows]
        for field in dataclasses.fields(TokenTable)
    }
    tokens = TokenTable(**columns)  # type: ignore[arg-type]
    return dataclasses.replace(
        trace,
        expert_ids=trace.expert_ids[:, rows],
        gate_weights=None,
        flags=None,
        tokens=tokens,
        steps_indptr=boundaries(tokens.step),
        requests=RequestTable(),
        stored_content_id="",
    )
