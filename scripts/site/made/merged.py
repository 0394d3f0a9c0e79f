"""A graph of tasks made small: tasks of one kind that do the same step become one box.

Rows on their way out of a GPU and into the next one are one step, and so are counts and flags with
the waiting for them. What takes no time, launches, and acknowledgements, which nobody waits for,
are left out, and what waited for them waits for what they waited for. A kind that comes back behind
another one is a step of its own (waiting before rows are sent, and again before they are read), so
that boxes have an order.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import networkx

from replay.model.machine.kinds import KINDS, Kind, sync_of

if TYPE_CHECKING:
    from replay.engine import TaskGraph, Timeline

LEFT_OUT = frozenset({Kind.MARK, Kind.LAUNCH, Kind.HOST, Kind.DELAY})


class Step(NamedTuple):
    """A box.

    Attributes
    ----------
    phase
        Of the layer, one of `replay.model.machine.kinds.PHASES`.
    does
        What its tasks do, in a few words.
    where
        What serves them: "waiting", "SMs", "memory" or "links".
    number
        Which time this kind comes, from 0.
    num_tasks
        Tasks of all GPUs.
    start_ps, end_ps
        From when the first starts until the last ends.
    """

    phase: str
    does: str
    where: str
    number: int
    num_tasks: int
    start_ps: int
    end_ps: int


class Merged(NamedTuple):
    """Boxes in the order of their mean start, and the pairs of them that are joined.

    Attributes
    ----------
    steps
        All of them.
    arrows
        (earlier, later) by place: something of the later one waits for something of the earlier
        one, and no longer way says so.
    returns
        (later, earlier): likewise, where steps of one kernel go on in turn.
    """

    steps: list[Step]
    arrows: list[tuple[int, int]]
    returns: list[tuple[int, int]]


_DOES = {
    Kind.LAYOUT: ("look at the routing", "SMs"),
    Kind.PERMUTE: ("sort rows", "SMs"),
    Kind.CAST: ("cast rows", "SMs"),
    Kind.TOKEN_CAST: ("cast tokens", "SMs"),
    Kind.GEMM1: ("first GEMM", "SMs"),
    Kind.ACTIVATION: ("activation", "SMs"),
    Kind.GEMM2: ("second GEMM", "SMs"),
    Kind.GEMM2_SYNC: ("hand out tiles", "waiting"),
    Kind.WGRAD: ("weight gradients", "SMs"),
    Kind.UNPERMUTE: ("sort back, add up", "SMs"),
    Kind.PLAN: ("plan experts", "SMs"),
    Kind.BETWEEN: ("elementwise", "SMs"),
    Kind.DENSE_GEMM: ("dense GEMM", "SMs"),
    Kind.ATTENTION: ("attention", "SMs"),
}
_SUFFIXES = {
    "SYNC": ("meet, wait", "waiting"),
    "SEND": ("send", "SMs"),
    "UP": ("rows travel", "links"),
    "RECEIVE": ("receive", "SMs"),
    "MEMORY": ("read and write", "memory"),
}


def drawn_as(kind: Kind) -> Kind | None:
    """Kind whose box a task is in; None for what is left out."""
    if kind in LEFT_OUT or KINDS[kind].on_wire == "acks":
        return None
    if KINDS[kind].on_wire == "signals":
        return sync_of(kind)
    name = kind.name.replace("_REQUEST_", "_")
    return Kind[name.removesuffix("_DOWN") + "_UP"] if name.endswith("_DOWN") else Kind[name]


def said(kind: Kind) -> tuple[str, str]:
    """What tasks of a kind do, and what serves them."""
    return _DOES[kind] if kind in _DOES else _SUFFIXES[kind.name.rpartition("_")[2]]


def merged(graph: TaskGraph, timeline: Timeline) -> Merged:
    """Merge the tasks of a graph."""
    kinds = [drawn_as(Kind(int(kind))) for kind in graph.kind]
    boxes, edges = _boxes(graph, kinds)
    inside: dict[tuple[Kind, int], list[int]] = defaultdict(list)
    for task, box in boxes.items():
        inside[box].append(task)
    start = {box: sum(int(timeline.start_ps[t]) for t in ts) / len(ts) for box, ts in inside.items()}
    order = sorted(inside, key=lambda box: (start[box], box[0], box[1]))
    place = {box: number for number, box in enumerate(order)}
    pairs = {(place[one], place[other]) for one, other in edges}
    forward = networkx.DiGraph([pair for pair in pairs if pair[0] < pair[1]])
    needed = networkx.transitive_reduction(forward).edges if pairs else []
    steps = [
        Step(
            KINDS[box[0]].phase or "",
            *said(box[0]),
            box[1],
            len(inside[box]),
            min(int(timeline.start_ps[task]) for task in inside[box]),
            max(int(timeline.end_ps[task]) for task in inside[box]),
        )
        for box in order
    ]
    return Merged(steps, sorted(needed), sorted(pair for pair in pairs if pair[0] > pair[1]))


Box = tuple[Kind, int]


def _boxes(graph: TaskGraph, kinds: list[Kind | None]) -> tuple[dict[int, Box], set[tuple[Box, Box]]]:
    """Box of every task that has one, and the pairs of boxes that wait for one another."""
    waits = _waits(graph)
    boxes: dict[int, Box] = {}
    # Of each node: boxes that it waits for, and how often each kind was left on the way to it.
    behind: dict[int, frozenset[Box]] = {}
    left: dict[int, dict[Kind, int]] = {}
    edges: set[tuple[Box, Box]] = set()
    for node in networkx.lexicographical_topological_sort(waits):
        kind = kinds[node] if node < graph.num_tasks else None
        found: set[Box] = set()
        counts: dict[Kind, int] = {}
        number = 0
        for earlier in waits.predecessors(node):
            for known, count in left[earlier].items():
                counts[known] = max(counts.get(known, 0), count)
            found |= {boxes[earlier]} if earlier in boxes else behind[earlier]
        left[node], behind[node] = counts, frozenset(found)
        if kind is None:
            continue
        for known, times in found:
            if known is kind:
                number = max(number, times)
            else:
                counts[known] = max(counts.get(known, 0), times + 1)
        box = (kind, max(number, counts.get(kind, 0)))
        boxes[node] = box
        edges |= {(one, box) for one in found if one != box}
    return boxes, edges


def _waits(graph: TaskGraph) -> networkx.DiGraph:
    """What waits for what; behind the tasks, a gate is two nodes."""
    waits = networkx.DiGraph()
    waits.add_nodes_from(range(graph.num_tasks))
    waits.add_edges_from(zip(*(part.tolist() for part in graph.edges()), strict=True))
    gates = graph.gates
    for gate in range(len(gates)):
        full = graph.num_tasks + 2 * gate  # enough has arrived for a tile
        done = full + 1  # a tile is done, and who waits for what was in it goes on
        members = slice(gates.member_indptr[gate], gates.member_indptr[gate + 1])
        tiles = slice(gates.tile_indptr[gate], gates.tile_indptr[gate + 1])
        waits.add_edges_from((int(task), full) for task in gates.member_task[members])
        waits.add_edges_from((full, int(task)) for task in gates.tile_first[tiles])
        waits.add_edges_from((int(task), done) for task in gates.tile_last[tiles])
        waits.add_edges_from((done, int(one)) for one in gates.member_waiter[members] if one >= 0)
    return waits
