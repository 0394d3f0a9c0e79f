"""A window of the token-expert graph as a networkx graph, and as GraphML for graph tools."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracegen.shared.errors import UserError
from tracegen.shared.output import open_new
from tracegen.trace.graph import EDGE_KINDS, TokenExpertGraph
from tracegen.trace.tables import PHASES

if TYPE_CHECKING:
    import networkx

    from tracegen.trace.routing import RoutingTrace

MAX_EDGES = 100_000
"""Most edges that become Python objects; so many take half a gigabyte and ten seconds."""


def check_size(edges: int) -> None:
    """Refuse a graph that is too large for Python objects.

    Parameters
    ----------
    edges
        How many edges it has.

    Raises
    ------
    UserError
        If these are more than `MAX_EDGES`.
    """
    if edges > MAX_EDGES:
        msg = (
            f"the window has {edges} edges, and GraphML is written of at most {MAX_EDGES}: "
            "choose fewer layers, steps or tokens"
        )
        raise UserError(msg)


def to_networkx(trace: RoutingTrace, graph: TokenExpertGraph) -> networkx.DiGraph[str]:
    """Make a networkx graph of a window.

    Parameters
    ----------
    trace
        The trace.
    graph
        Graph of a window of it.

    Returns
    -------
    Nodes ``L<layer> T<row>`` and ``L<layer> E<expert> S<step>``, with attributes. ``node`` is
    "token" or "expert", ``layer`` and ``step`` are positions, ``decoder_layer`` is the model's own
    number (-1 behind the last layer). Tokens have ``row``, ``request``, ``position`` and ``phase``,
    experts ``expert`` and ``waits_for``. Edges have ``kind``; those of a visit ``slot`` and, where
    weights are recorded, ``weight``.

    Raises
    ------
    UserError
        If it has more than `MAX_EDGES` edges.
    """
    import networkx

    check_size(graph.source.size)
    made: networkx.DiGraph[str] = networkx.DiGraph()
    numbers = [*trace.moe_layer_index.tolist(), -1]
    names: list[str] = []
    columns = (graph.layer, graph.step, graph.row, graph.expert, graph.waits_for)
    for layer, step, row, expert, waits_for in zip(*map(_list, columns), strict=True):
        both = {"layer": layer, "decoder_layer": numbers[layer], "step": step}
        if row >= 0:
            names.append(f"L{layer} T{row}")
            made.add_node(
                names[-1],
                node="token",
                row=row,
                request=int(trace.tokens.request[row]),
                position=int(trace.tokens.position[row]),
                phase=PHASES[int(trace.tokens.phase[row])],
                **both,
            )
        else:
            names.append(f"L{layer} E{expert} S{step}")
            made.add_node(names[-1], node="expert", expert=expert, waits_for=waits_for, **both)
    weights = trace.gate_weights
    ends = (graph.source, graph.target, graph.kind, graph.slot)
    for source, target, kind, slot in zip(*map(_list, ends), strict=True):
        edge: dict[str, Any] = {"kind": EDGE_KINDS[kind]}
        if slot >= 0:
            edge["slot"] = slot
            if weights is not None:
                state = source if graph.row[source] >= 0 else target
                layer = int(graph.layer[state]) - (state == target)
                edge["weight"] = float(weights[layer, graph.row[state], slot])
        made.add_edge(names[source], names[target], **edge)
    return made


def _list(column: Any) -> list[int]:
    numbers: list[int] = column.tolist()
    return numbers


def write_graphml(trace: RoutingTrace, graph: TokenExpertGraph, path: str | Path) -> None:
    """Write the graph of `to_networkx` as GraphML.

    Parameters
    ----------
    trace, graph
        As for `to_networkx`.
    path
        The file.

    Raises
    ------
    UserError
        If the graph is too large, or the file cannot be written.
    """
    import networkx

    made = to_networkx(trace, graph)
    text = io.BytesIO()
    networkx.write_graphml_xml(made, text, prettyprint=True)
    with open_new(path) as file:
        file.write(text.getvalue())
