"""Other routing of the same kind: generated with another seed, or with other requests' choices."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from replay.studies.uncertainty.draws import stream

if TYPE_CHECKING:
    from tracegen import RoutingTrace

GENERATED_BY = "tracegen.generate"
LARGEST_SEED = 2**62


def why_not(trace: RoutingTrace) -> str:
    """Reason why no other routing can be drawn; empty where it can."""
    if _arguments(trace) is not None or len(np.unique(trace.tokens.request)) > 1:
        return ""
    return "routing is not drawn: the trace has one request, and no generator made it"


def draw_routing(trace: RoutingTrace, seed: int, number: int, num_layers: int) -> RoutingTrace:
    """Draw routing.

    Parameters
    ----------
    trace
        A generated trace is generated again with another seed. In a recorded one, each request
        takes the choices of a request drawn from all of them: token by token, prompt for prompt,
        from the beginning again where that one is shorter. Which tokens run together, and what they
        attend to, stays.
    seed, number
        See `replay.studies.uncertainty.draws`.
    num_layers
        Layers that are replayed: the first so many.
    """
    random = stream(seed, number, "routing")
    arguments = _arguments(trace)
    if arguments is not None:
        from tracegen.generate import generate

        other = {**arguments, "seed": int(random.integers(LARGEST_SEED)), "layers": num_layers}
        return generate(**{**other, "model": trace.model_shape})
    rows = _rows(trace, random)
    ids = trace.expert_ids.copy()
    ids[:num_layers] = trace.expert_ids[:num_layers, rows]
    return dataclasses.replace(trace, expert_ids=ids, gate_weights=None, stored_content_id="")


def _arguments(trace: RoutingTrace) -> dict[str, Any] | None:
    """Arguments of the generator that made a trace, if one did."""
    origin = trace.info.provenance or {}
    if trace.info.kind != "synthetic" or origin.get("command") != GENERATED_BY:
        return None
    arguments = dict(origin.get("parameters", {}))
    return arguments if {"kind", "seed", "layers"} <= arguments.keys() else None


def _rows(trace: RoutingTrace, random: np.random.Generator) -> npt.NDArray[np.int64]:
    """(token,): the row whose choices each token takes."""
    rows = np.arange(trace.num_tokens)
    for phase in np.unique(trace.tokens.phase):
        own = np.flatnonzero(trace.tokens.phase == phase)
        own = own[np.lexsort((own, trace.tokens.request[own]))]  # by request, then in order
        _, first, count = np.unique(trace.tokens.request[own], return_index=True, return_counts=True)
        chosen = random.integers(len(first), size=len(first))
        place = np.arange(len(own)) - np.repeat(first, count)
        taken = np.repeat(first[chosen], count) + place % np.repeat(count[chosen], count)
        rows[own] = own[taken]
    return rows
