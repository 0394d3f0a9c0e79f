"""A task graph with its schedule as a networkx graph, for looking at small parts of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from replay.engine.errors import UserError
from replay.engine.export.chrome import tasks_in_window
from replay.engine.export.programs import ExportedFiles, resolved_edges
from replay.engine.timeline import Timeline
from tracegen.shared import output

if TYPE_CHECKING:
    import networkx as nx

#: networkx needs about a kilobyte a task; graph viewers give up earlier.
MAX_TASKS = 20_000


def to_networkx(
    timeline: Timeline, *, window_ps: tuple[int, int] | None = None, max_tasks: int = MAX_TASKS
) -> nx.DiGraph[int]:
    """Make a networkx graph of the tasks in a part of the time.

    Parameters
    ----------
    timeline
        The schedule, with its graph.
    window_ps
        Only tasks in service at some time in this part of the time, in picoseconds, and the edges
        between them.
    max_tasks
        Most tasks it may have.

    Returns
    -------
    Tasks as nodes, by id and in order of their start, with ``kind``, ``resource``, ``group``,
    ``rank``, ``start_ps``, ``end_ps``, ``visible_ps``, ``payload_bytes`` and ``wire_bytes``;
    dependencies as edges, those of gates as the schedule resolved them. The graph itself carries
    ``left_out``: how many tasks lie outside the window.

    Raises
    ------
    UserError
        If there are more tasks than `max_tasks`, or the window is empty.

    Examples
    --------
    >>> from replay.engine import GraphBuilder, schedule
    >>> builder = GraphBuilder(["send"])
    >>> port = builder.resource("uplink", group="uplink")
    >>> first = builder.add(1, resource=port, duration_ps=10, latency_ps=5)
    >>> second = builder.add(1, resource=port, duration_ps=10, after=first)
    >>> graph = to_networkx(schedule(builder.build()))
    >>> list(graph.edges), graph.nodes[1]["start_ps"]
    ([(0, 1)], 15)
    """
    import networkx as nx

    tasks = tasks_in_window(timeline, window_ps)
    if tasks.size > max_tasks:
        message = (
            f"{tasks.size} tasks are too many for networkx (limit {max_tasks}): "
            f"cut a window out of the {timeline.makespan_ps / 1e6:g} us"
        )
        raise UserError(message)
    columns, visible = timeline.graph, timeline.visible_ps
    graph: nx.DiGraph[int] = nx.DiGraph(left_out=columns.num_tasks - int(tasks.size))
    for task in tasks.tolist():
        resource = int(columns.resource[task])
        attributes: dict[str, Any] = {
            "kind": columns.kind_names[int(columns.kind[task])],
            "resource": columns.resources.name(resource),
            "group": columns.resources.groups[resource] if resource >= 0 else "(delay)",
            "rank": int(columns.rank[task]),
            "start_ps": int(timeline.start_ps[task]),
            "end_ps": int(timeline.end_ps[task]),
            "visible_ps": int(visible[task]),
            "payload_bytes": int(columns.payload_bytes[task]),
            "wire_bytes": int(columns.wire_bytes[task]),
        }
        graph.add_node(task, **attributes)
    src, dst = resolved_edges(timeline)
    is_in = np.zeros(columns.num_tasks, np.bool_)
    is_in[tasks] = True
    inside = is_in[src] & is_in[dst]
    graph.add_edges_from(zip(src[inside].tolist(), dst[inside].tolist(), strict=True))
    return graph


def write_graphml(
    timeline: Timeline,
    path: str | Path,
    *,
    window_ps: tuple[int, int] | None = None,
    max_tasks: int = MAX_TASKS,
) -> ExportedFiles:
    """Write the graph of `to_networkx` as GraphML; parameters and errors are the same.

    Returns
    -------
    What was written, and in words what was left out.
    """
    import networkx as nx

    graph = to_networkx(timeline, window_ps=window_ps, max_tasks=max_tasks)
    text = io.BytesIO()
    nx.write_graphml_xml(graph, text, prettyprint=True)
    with output.open_new(path) as file:
        file.write(text.getvalue())
    left_out = graph.graph["left_out"]
    notes = (f"{left_out} tasks lie outside the window and are left out",) if left_out else ()
    return ExportedFiles((Path(path),), graph.number_of_nodes(), notes)
