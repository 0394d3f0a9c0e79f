"""Tokens of a trace in order, and statistics of them with their standard errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tracegen.shared.errors import UserError
from tracegen.trace.arrays import Array, Floats
from tracegen.trace.routing import RoutingTrace

EXPERT_GROUPS = (8, 16, 32)
"""Numbers of equal groups of neighbouring experts, such as the GPUs of a group hold."""
JACKKNIFE = 20
"""Groups of requests; more would not make an error of an error better than its 16 %."""


@dataclass(frozen=True)
class Statistic:
    """One number per layer, with its standard error."""

    label: str
    """For people."""
    value: Floats
    """Shape (layer,)."""
    error: Floats
    """Standard error, shape (layer,)."""
    summary: float
    """Median over layers for skew and co-activation, mean for all else."""
    summary_error: float
    """Standard error of the summary; layers are not independent, requests are."""


@dataclass
class Sample:
    """A trace with rows by request and position."""

    ids: Array
    request: Array
    """From 0, ascending, shape (token,)."""
    group: Array
    """Jackknife group of each token."""
    begins: Array
    counts: Array
    num_experts: int
    rng: np.random.Generator
    expert_per_group: dict[int, Array]
    order: Array
    """Row of the trace that each token is, shape (token,)."""


def sample_of(trace: RoutingTrace, seed: int) -> Sample:
    """Put rows in order, and assign each request to a group of the jackknife.

    Raises
    ------
    UserError
        If there are fewer than two requests.
    """
    order = np.lexsort((trace.tokens.position, trace.tokens.request))
    _, begins, counts = np.unique(trace.tokens.request[order], return_index=True, return_counts=True)
    if counts.size < 2:
        msg = f"the trace has {counts.size} of at least 2 requests; statistics compare tokens of one with others'"
        raise UserError(msg)
    rng = np.random.default_rng(seed)
    in_order = bool((np.diff(order) == 1).all())
    ids = trace.expert_ids if in_order else trace.expert_ids[:, order]
    request = np.repeat(np.arange(counts.size), counts)
    group_of = rng.permutation(counts.size) % min(JACKKNIFE, counts.size)
    num_experts = trace.model.num_ffn_experts
    experts = np.arange(num_experts)
    groups = {}
    for number in EXPERT_GROUPS:
        if number <= num_experts:
            owner = experts * number // num_experts
            # Zero experts are on no GPU; they and empty slots have a group of their own, the last.
            groups[number] = np.append(owner, np.full(trace.empty_slot + 1 - owner.size, number))
    return Sample(ids, request, group_of[request], begins, counts, trace.num_experts, rng, groups, order)


def jackknife(label: str, sums: Array, measure: Callable[[Array], Floats], over: Callable[..., Any]) -> Statistic:
    """Give a statistic of sums by group, with its jackknife error.

    Parameters
    ----------
    label
        For people.
    sums
        Shape (group, layer, ...).
    measure
        Makes one number per layer of sums over groups.
    over
        Makes one number of those of all layers: median or mean.
    """
    total = sums.sum(axis=0)
    value = measure(total)
    left_out = np.stack([measure(total - part) for part in sums])
    count = sums.shape[0]
    error = np.sqrt((count - 1) * left_out.var(axis=0))
    overall = np.array([over(one) for one in left_out])
    return Statistic(label, value, error, float(over(value)), float(np.sqrt((count - 1) * overall.var())))


def distinct(visited: Array, number: int) -> Array:
    """Count the different places of each token.

    Parameters
    ----------
    visited
        Place of every slot, from 0; `number` and more do not count. Shape (token, k).
    number
        Places there are.

    Returns
    -------
    Shape (token,).

    Examples
    --------
    >>> distinct(np.array([[0, 2, 2], [3, 3, 1]]), 3).tolist()
    [2, 1]
    """
    ordered = np.sort(visited, axis=1)
    new = np.ones(ordered.shape, bool)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    counts: Array = (new & (ordered < number)).sum(axis=1)
    return counts


def indicators(ids: Array, num_experts: int) -> npt.NDArray[np.float32]:
    """Indicators of the visits of each token to each expert of each layer.

    Parameters
    ----------
    ids
        Shape (layer, token, k); ids of `num_experts` and more are empty slots.
    num_experts
        Of a layer.

    Returns
    -------
    0 or 1, shape (token, layer * expert).
    """
    layers, tokens, _ = ids.shape
    out = np.zeros((tokens, layers, num_experts + 1), np.float32)
    row = np.arange(tokens)[:, None]
    for layer in range(layers):
        out[row, layer, np.minimum(ids[layer].astype(np.int64), num_experts)] = 1
    return np.ascontiguousarray(out[:, :, :num_experts]).reshape(tokens, -1)
