"""The token-expert graph of a trace: a window of it as arrays, and counts without making it.

Nodes are token states (layer, row), one before each MoE layer and one behind the last, and expert
instances (layer, expert, step). Edges are of four kinds:

========== ==================================================================================
dispatch   From a token's state to an instance it visits.
combine    From there to its next state.
skip       From a state to the next, where the token visits no expert of the layer.
next       From a token's last state to the first of the token that it made: a decode token
           follows the row of its request one position before, of an earlier step (of several
           such rows, as of sequences that were tried again, the last).
========== ==================================================================================

A window is a range of layers, of steps and of token rows. It has the states of its tokens before
and behind its layers, the instances that they visit, and all edges between those.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tracegen.shared.errors import UserError
from tracegen.trace.tables import DECODE

if TYPE_CHECKING:
    from tracegen.trace.routing import RoutingTrace

Column = npt.NDArray[np.int64]
Range = tuple[int | None, int | None]

EDGE_KINDS = ("dispatch", "combine", "skip", "next")
"""Names of the values of `TokenExpertGraph.kind`."""
DISPATCH, COMBINE, SKIP, NEXT = range(len(EDGE_KINDS))


_CHUNK_ROWS = 1 << 20
"""Rows that are counted at a time."""
_CHUNK_INSTANCES = 1 << 24
"""Expert instances of a layer that are marked at a time."""


@dataclass(frozen=True)
class Window:
    """A part of a trace: MoE layers, steps and token rows, each by position from 0."""

    layers: range
    steps: range
    rows: range
    """Those of the steps that are among the tokens asked for."""


@dataclass(frozen=True)
class GraphCounts:
    """Nodes and edges of the token-expert graph of a window."""

    token_states: int
    expert_instances: int
    dispatch: int
    combine: int
    skip: int
    next: int

    @property
    def nodes(self) -> int:
        """Token states and expert instances."""
        return self.token_states + self.expert_instances

    @property
    def edges(self) -> int:
        """Edges of all kinds."""
        return self.dispatch + self.combine + self.skip + self.next


@dataclass(frozen=True, eq=False)
class TokenExpertGraph:
    """The token-expert graph of a window, as arrays.

    Attributes
    ----------
    window
        What it is the graph of.
    layer, step
        Of each node (node,): position of the layer (for a state the one that comes next, so one
        more than the last layer behind it), and the step.
    row, expert
        Token row of a state and -1, or -1 and the expert of an instance (node,).
    waits_for
        Of an instance (node,), the tokens of its whole step that visit it, in the window or not;
        0 for states.
    source, target
        Nodes of each edge (edge,), by position.
    kind
        Kind of each edge (edge,), see `EDGE_KINDS`.
    slot
        Slot of the visit in the token's row (edge,), -1 for skip and next.
    """

    window: Window
    layer: Column
    step: Column
    row: Column
    expert: Column
    waits_for: Column
    source: Column
    target: Column
    kind: Column
    slot: Column


def window_of(
    trace: RoutingTrace,
    layers: Range | None = None,
    steps: Range | None = None,
    tokens: Range | None = None,
) -> Window:
    """Part of a trace.

    Parameters
    ----------
    trace
        The trace.
    layers, steps, tokens
        First position and the one behind the last, from 0; None, for the pair or one of the two,
        for as far as the trace reaches.

    Raises
    ------
    UserError
        If a range is empty or reaches beyond the trace, or no token is in all of them.
    """
    chosen = _range("layers", layers, trace.num_layers)
    of_steps = _range("steps", steps, trace.num_steps)
    of_tokens = _range("tokens", tokens, trace.num_tokens)
    low, high = (int(trace.steps_indptr[step]) for step in (of_steps.start, of_steps.stop))
    rows = range(max(low, of_tokens.start), min(high, of_tokens.stop))
    if not rows:
        msg = (
            f"steps {of_steps.start}:{of_steps.stop} are rows {low}:{high}; none of them is among "
            f"tokens {of_tokens.start}:{of_tokens.stop}"
        )
        raise UserError(msg)
    indptr = trace.steps_indptr.astype(np.int64)
    first, last = np.searchsorted(indptr, [rows[0], rows[-1]], "right")
    return Window(chosen, range(int(first) - 1, int(last)), rows)


def _range(name: str, given: Range | None, number: int) -> range:
    start, stop = given or (None, None)
    start, stop = 0 if start is None else start, number if stop is None else stop
    if not 0 <= start < stop <= number:
        msg = f"{name} {start}:{stop}: possible are START:END with 0 <= START < END <= {number}"
        raise UserError(msg)
    return range(start, stop)


def previous_rows(trace: RoutingTrace) -> Column:
    """Row that each decode token follows, -1 where there is none (token,); see the module."""
    tokens = trace.tokens
    position = tokens.position.astype(np.uint64)
    place = tokens.request.astype(np.uint64) << np.uint64(32) | position
    places, of_row = np.unique(place, return_inverse=True)
    # Rows by place and then number, both in one number.
    rows = np.arange(trace.num_tokens, dtype=np.int64)
    ordered = np.sort(of_row.reshape(-1) * trace.num_tokens + rows)
    follows = np.flatnonzero((tokens.phase == DECODE) & (position > 0))
    wanted = place[follows] - np.uint64(1)
    group = np.minimum(np.searchsorted(places, wanted), places.size - 1)
    is_there = places[group] == wanted
    follows, group = follows[is_there], group[is_there] * trace.num_tokens
    first = trace.steps_indptr.astype(np.int64)[_step_of_row(trace)[follows]]
    # The last row of the place that came before the token's step.
    found = ordered[np.searchsorted(ordered, group + first) - 1] - group
    is_found = (found >= 0) & (found < first)
    previous = np.full(trace.num_tokens, -1, np.int64)
    previous[follows[is_found]] = found[is_found]
    return previous


def count_graph(
    trace: RoutingTrace,
    layers: Range | None = None,
    steps: Range | None = None,
    tokens: Range | None = None,
) -> GraphCounts:
    """Count nodes and edges of the token-expert graph, without making it.

    Parameters
    ----------
    trace, layers, steps, tokens
        As for `window_of`; the whole trace if nothing else is said.

    Raises
    ------
    UserError
        If there is no such window.
    """
    window = window_of(trace, layers, steps, tokens)
    visits = skips = instances = 0
    step_of = _step_of_row(trace)
    for part in _parts(trace, window):
        step = step_of[part.rows.start : part.rows.stop] - part.steps.start
        seen = np.zeros(len(part.steps) * trace.num_experts, np.bool_)
        for layer in part.layers:
            ids = trace.expert_ids[layer, part.rows.start : part.rows.stop]
            is_visit = ids != trace.empty_slot
            visits += int(np.count_nonzero(is_visit))
            skips += len(part.rows) - int(np.count_nonzero(is_visit.any(axis=1)))
            seen[:] = False
            seen[(step[:, None] * trace.num_experts + ids)[is_visit]] = True
            instances += int(np.count_nonzero(seen))
    return GraphCounts(
        token_states=len(window.rows) * (len(window.layers) + 1),
        expert_instances=instances,
        dispatch=visits,
        combine=visits,
        skip=skips,
        next=_next(trace, window)[0].size,
    )


def expert_graph(
    trace: RoutingTrace,
    layers: Range | None = None,
    steps: Range | None = None,
    tokens: Range | None = None,
) -> TokenExpertGraph:
    """Token-expert graph of a window.

    Parameters
    ----------
    trace, layers, steps, tokens
        As for `window_of`; the whole trace if nothing else is said. `count_graph` says how large
        the graph is.

    Returns
    -------
    Nodes: states by layer and row, then instances by layer, step and expert. Edges: by layer, the
    dispatches and combines by row and slot, then skips; then all of kind next.

    Raises
    ------
    UserError
        If there is no such window.

    Examples
    --------
    >>> from tracegen import generate
    >>> trace = generate.generate("uniform", "olmoe-1b-7b", ranks=1, tokens_per_rank=1, layers=2)
    >>> graph = expert_graph(trace, layers=(0, 1))
    >>> [EDGE_KINDS[kind] for kind in graph.kind[:3].tolist()], graph.source.size
    (['dispatch', 'dispatch', 'dispatch'], 16)
    """
    window = window_of(trace, layers, steps, tokens)
    rows = np.arange(window.rows.start, window.rows.stop, dtype=np.int64)
    # Whole steps, of which the window may have a part of the first and the last.
    low, high = (int(trace.steps_indptr[step]) for step in (window.steps[0], window.steps[-1] + 1))
    inside = slice(window.rows.start - low, window.rows.stop - low)
    step_of = _step_of_row(trace)[low:high]
    states = rows.size * (len(window.layers) + 1)
    nodes: list[Column] = []
    edges: list[Column] = []
    for number, layer in enumerate(window.layers):
        ids = trace.layer_ids(layer)[low:high].astype(np.int64)
        instance = np.where(ids >= 0, step_of[:, None] * trace.num_experts + ids, -1)
        visited = np.unique(instance[inside])
        visited = visited[visited >= 0]
        everybody = instance[np.isin(instance, visited)]
        load = np.bincount(np.searchsorted(visited, everybody), minlength=visited.size)
        token, slot = np.nonzero(ids[inside] >= 0)
        before = number * rows.size + token
        expert = states + sum(part.shape[1] for part in nodes)
        expert = expert + np.searchsorted(visited, instance[inside][token, slot])
        passed = number * rows.size + np.flatnonzero((ids[inside] < 0).all(axis=1))
        nodes.append(_columns(layer, *np.divmod(visited, trace.num_experts), load))
        edges += (
            _columns(before, expert, DISPATCH, slot),
            _columns(expert, before + rows.size, COMBINE, slot),
            _columns(passed, passed + rows.size, SKIP, -1),
        )
    behind = len(window.layers) * rows.size
    followed, following = (ends - window.rows.start for ends in _next(trace, window))
    edges.append(_columns(behind + followed, following, NEXT, -1))
    layer_of, instance_step, expert_of, waits_for = np.concatenate(nodes, axis=1)
    source, target, kind, slots = np.concatenate(edges, axis=1)
    state_layers = np.arange(window.layers.start, window.layers.stop + 1)
    nothing = np.zeros(states, np.int64)
    return TokenExpertGraph(
        window=window,
        layer=np.concatenate([np.repeat(state_layers, rows.size), layer_of]),
        step=np.concatenate([np.tile(step_of[inside], state_layers.size), instance_step]),
        row=np.concatenate([np.tile(rows, state_layers.size), np.full_like(expert_of, -1)]),
        expert=np.concatenate([nothing - 1, expert_of]),
        waits_for=np.concatenate([nothing, waits_for]),
        source=source,
        target=target,
        kind=kind,
        slot=slots,
    )


def _columns(*columns: Column | int) -> Column:
    """Columns of equal length, one below the other; a number stands for a column of it."""
    return np.stack(np.broadcast_arrays(*columns)).astype(np.int64)


def _step_of_row(trace: RoutingTrace) -> Column:
    """Position of the step of each row (token,)."""
    return np.repeat(np.arange(trace.num_steps), np.diff(trace.steps_indptr).astype(np.int64))


def _next(trace: RoutingTrace, window: Window) -> tuple[Column, Column]:
    """Rows of a window that are followed, and those that follow them (edge,) each."""
    if window.layers != range(trace.num_layers):
        nothing = np.zeros(0, np.int64)  # it has not both the last states and the first
        return nothing, nothing
    previous = previous_rows(trace)[window.rows.start : window.rows.stop]
    following = np.flatnonzero(previous >= window.rows.start)
    return previous[following], following + window.rows.start


def _parts(trace: RoutingTrace, window: Window) -> Iterator[Window]:
    """A window in parts of whole steps, of a bounded size unless a single step is larger."""
    start, indptr = window.steps.start, trace.steps_indptr.astype(np.int64)
    most_steps = max(1, _CHUNK_INSTANCES // trace.num_experts)
    while start < window.steps.stop:
        enough = np.searchsorted(indptr, indptr[start] + _CHUNK_ROWS)
        stop = min(max(start + 1, int(enough)), start + most_steps, window.steps.stop)
        low, high = int(indptr[start]), int(indptr[stop])
        rows = range(max(low, window.rows.start), min(high, window.rows.stop))
        yield Window(window.layers, range(start, stop), rows)
        start = stop
