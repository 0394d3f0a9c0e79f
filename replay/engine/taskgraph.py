"""The task graph: flat arrays, one row per task, successors in compressed rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt

from replay.engine.columns import EdgeBlocks, IntArray
from replay.engine.errors import GraphError

#: Infinitely many servers: a task on it is a pure delay.
NULL_RESOURCE = -1
#: What a resource does where tasks lack credits, by number; see :meth:`GraphBuilder.resource`.
DISCIPLINES = ("fifo", "voq", "turns", "line")
FIFO, VOQ, TURNS, LINE = range(4)
#: Whom a full table lets go, by number; see :meth:`GraphBuilder.table`.
POLICIES = ("lru", "fifo")
LRU, OLDEST = range(2)

#: Of times: when what does not happen does.
NEVER = 2**63 - 1

Int8s = npt.NDArray[np.int8]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class NameColumns:
    """Things with a name and a group, one row each; `TYPES` are those of the columns in order."""

    TYPES: ClassVar[tuple[type, ...]]

    names: tuple[str, ...]
    groups: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    @classmethod
    def from_lists(cls, lists: Sequence[list[Any]]) -> Self:
        """Turn lists of the columns' values, in order, into columns."""
        columns: list[Any] = [
            tuple(column) if kind is str else np.array(column, kind)
            for column, kind in zip(lists, cls.TYPES, strict=True)
        ]
        return cls(*columns)


@dataclass(frozen=True, eq=False)
class GraphResources(NameColumns):
    """Servers of tasks, one row per resource."""

    TYPES = (str, str, np.int32, np.int8, np.int32)

    servers: Int32s
    discipline: Int8s
    owner: Int32s

    def name(self, resource: int) -> str:
        """Name of a resource; the null resource has one too."""
        return "(delay)" if resource < 0 else self.names[resource]


@dataclass(frozen=True, eq=False)
class CreditPools(NameColumns):
    """Counting pools, one row per pool."""

    TYPES = (str, str, np.int64)

    capacity: Int64s


@dataclass(frozen=True, eq=False)
class CreditTakes:
    """Takes of credits, one row per take and releasing task: who holds them until when.

    Rows of one ``share`` are one take, whose units go back when the last of its releasing tasks has
    left its server. The units stand in the first of these rows, 0 in the others. A take with one
    releasing task has share -1.
    """

    TASKS = ("task", "released_by")

    task: Int32s
    pool: IntArray
    units: IntArray
    released_by: Int32s
    share: Int32s

    def __len__(self) -> int:
        return int(self.task.size)


@dataclass(frozen=True, eq=False)
class Tables(NameColumns):
    """Finite associative memories, one row per table; lines are resources, -1 for none."""

    TYPES = (str, str, np.int64, np.int8, np.int64, np.int32, np.int32)

    room: Int64s
    policy: Int8s
    patience_ps: Int64s
    backing: Int32s
    port: Int32s


@dataclass(frozen=True, eq=False)
class Touches:
    """Look-ups in tables and their costs, one row per touch, as they were added."""

    TASKS = ("task", "charged")

    task: Int32s
    table: IntArray
    key: IntArray
    miss_latency_ps: IntArray
    miss_duration_ps: IntArray
    evict_duration_ps: IntArray
    port_duration_ps: IntArray
    lag_ps: IntArray
    units: IntArray
    charged: Int32s
    drops: Bools

    def __len__(self) -> int:
        return int(self.task.size)


@dataclass(frozen=True, eq=False)
class Gates:
    """Slots handed out in order of arrival.

    Rows of ``member_*`` are memberships, gate after gate and by task id inside a gate, so that
    the row number is the order of simultaneous arrivals. ``member_position`` is each row's place
    in the list the gate was made from. Rows of ``tile_*`` are tiles in the order they fill.
    """

    TASKS = ("member_task", "member_waiter", "tile_first", "tile_last")

    member_indptr: Int64s
    member_task: Int32s
    member_waiter: Int32s
    member_position: Int32s
    tile_indptr: Int64s
    tile_slots: Int32s
    tile_first: Int32s
    tile_last: Int32s

    def __len__(self) -> int:
        return int(self.member_indptr.size) - 1

    @property
    def num_members(self) -> int:
        """Memberships of all gates."""
        return int(self.member_task.size)

    @property
    def num_tiles(self) -> int:
        """Tiles of all gates."""
        return int(self.tile_slots.size)

    @classmethod
    def from_blocks(cls, blocks: list[tuple[IntArray, IntArray, IntArray, IntArray, IntArray]]) -> Gates:
        """Concatenate (members, waiters, tile slots, first tasks, last tasks) of every gate."""
        orders = [block[0].argsort(kind="stable") for block in blocks]
        nothing = np.empty(0, np.int32)

        def join(parts: Sequence[IntArray]) -> Int32s:
            return np.concatenate([nothing, *parts], dtype=np.int32, casting="unsafe") if parts else nothing

        def indptr(column: int) -> Int64s:
            return np.array([0, *(block[column].size for block in blocks)], np.int64).cumsum()

        return cls(
            indptr(0),
            join([block[0][order] for block, order in zip(blocks, orders, strict=True)]),
            join([block[1][order] for block, order in zip(blocks, orders, strict=True)]),
            join([*orders]),
            indptr(2),
            join([block[2] for block in blocks]),
            join([block[3] for block in blocks]),
            join([block[4] for block in blocks]),
        )

    def append_events(self, edges: EdgeBlocks) -> None:
        """Add the gates' events to the edges: a negative target is no task.

        ``-1 - m`` on the successor list of a task says that membership ``m`` arrives when the
        task becomes visible, ``-1 - (num_members + t)`` that tile ``t`` is done.
        """
        events = self.num_members + self.num_tiles
        if events == 0:
            return
        tasks = np.concatenate([self.member_task, self.tile_last])
        edges.append(tasks, -1 - np.arange(events, dtype=np.int32), events)


Part = TypeVar("Part", CreditTakes, Touches, Gates)


def renumber(part: Part, number: Callable[[Any], Any]) -> Part:
    """Give tasks other numbers, those that takes, touches or gates name in their `TASKS`."""
    return replace(part, **{name: number(getattr(part, name)) for name in part.TASKS})


@dataclass(frozen=True, eq=False)
class TaskGraph:
    """A checked, immutable graph of tasks; made by :class:`~replay.engine.GraphBuilder`.

    Every column has shape (task,). Columns of one single value are stored once (stride 0), others
    as narrowly as their values allow: bring them to 64 bits before you add them up or multiply.
    ``successors[indptr[i]:indptr[i + 1]]`` follow task ``i``; negative entries are gate events
    (see :meth:`Gates.append_events`) and only occur in graphs with gates.
    """

    kind_names: tuple[str, ...]
    resources: GraphResources
    pools: CreditPools
    takes: CreditTakes
    tables: Tables
    touches: Touches
    gates: Gates
    resource: IntArray
    kind: IntArray
    duration_ps: IntArray
    latency_ps: IntArray
    priority: IntArray
    payload_bytes: IntArray
    wire_bytes: IntArray
    rank: IntArray
    tag: IntArray
    indptr: Int32s
    successors: Int32s
    num_predecessors: Int32s
    #: Every edge goes from a smaller to a larger id, so the ids are a topological order.
    is_numbered_forward: bool
    num_edges: int = field(default=0)
    #: Numbers by which tasks are known (task,); None for their places.
    ids: Int64s | None = field(default=None)

    @property
    def num_tasks(self) -> int:
        """Number of tasks."""
        return int(self.resource.size)

    @cached_property
    def order(self) -> Int32s:
        """Tasks so that predecessors come first; fewer than there are if there is a cycle.

        Numbers from ``num_tasks`` on stand for gates: ``num_tasks + 2 g`` is the moment when all
        members of gate ``g`` have arrived, ``num_tasks + 2 g + 1`` when all its tiles are done.
        """
        from replay.engine.kernels.edges import order_tasks

        return order_tasks(self)

    @classmethod
    def from_edges(cls, *, edges: EdgeBlocks, gates: Gates, resource: IntArray, **columns: Any) -> TaskGraph:
        """Sort the edges by source (a counting sort, stable) and count predecessors.

        Raises
        ------
        GraphError
            If an edge names a task that does not exist or there are too many edges.
        """
        from replay.engine.kernels.edges import sort_edges

        if len(edges) > 2**31 - 2:
            message = f"{len(edges)} edges; a graph holds at most {2**31 - 2}"
            raise GraphError(message)
        num_tasks = int(resource.size)
        indptr, successors, num_predecessors, num_edges, is_forward = sort_edges(edges, num_tasks)
        filled = gates.tile_first[gates.tile_slots > 0]
        for waiting in (filled, gates.member_waiter[gates.member_waiter >= 0]):
            if waiting.size:
                num_predecessors += np.bincount(waiting, minlength=num_tasks).astype(np.int32)
        for array in (indptr, successors, num_predecessors):
            array.flags.writeable = False
        return cls(
            gates=gates,
            resource=resource,
            indptr=indptr,
            successors=successors,
            num_predecessors=num_predecessors,
            is_numbered_forward=is_forward,
            num_edges=num_edges,
            **columns,
        )

    def edges(self) -> tuple[Int32s, Int32s]:
        """All edges as (sources, targets), each (edge,), by source; gates are not among them."""
        return self.edges_of(np.arange(self.num_tasks, dtype=np.int32))

    def edges_of(self, tasks: Int32s | Int64s) -> tuple[Int32s, Int32s]:
        """Edges from some tasks (task,), as `edges`; the sources are of the tasks' type."""
        first = self.indptr[tasks].astype(np.int64)
        count = self.indptr[tasks + 1] - first
        past = np.cumsum(count)
        rows = np.arange(int(past[-1]) if count.size else 0) + np.repeat(first - past + count, count)
        targets = self.successors[rows]
        is_task = targets >= 0
        return np.repeat(tasks, count)[is_task], targets[is_task]

    def describe(self, task: int) -> str:
        """Put a task in words, for messages: id, kind, resource and rank."""
        where = self.resources.name(int(self.resource[task]))
        rank = int(self.rank[task])
        of_rank = f" of rank {rank}" if rank >= 0 else ""
        number = task if self.ids is None else int(self.ids[task])
        return f"task {number} ({self.kind_names[int(self.kind[task])]}{of_rank} on {where})"


@dataclass(frozen=True, eq=False)
class GraphPart:
    """Some tasks of a graph that is given in parts; made by :meth:`GraphBuilder.part`.

    Attributes
    ----------
    graph
        The tasks of this part, counted from 0.
    first_task, first_touch
        Numbers of its first task and touch in the whole.
    outer_source, outer_target
        (edge,): edges from tasks of earlier parts, numbered as in the whole, to tasks of this part,
        counted from 0.
    """

    graph: TaskGraph
    first_task: int
    first_touch: int
    outer_source: Int32s
    outer_target: Int32s


def slow_down(graph: TaskGraph, factors: npt.NDArray[np.float64]) -> TaskGraph:
    """Multiply the times of tasks by factors of their kinds.

    Parameters
    ----------
    graph
        The tasks.
    factors
        (kind,): positive; 1 leaves a kind as it is.

    Returns
    -------
    The graph with other durations and latencies, and other costs of look-ups, which are those of
    the task that looks up; in whole picoseconds.
    """
    if (factors == 1).all():
        return graph
    of_task, touches = factors[graph.kind], graph.touches

    def times(given: IntArray, factor: npt.NDArray[np.float64]) -> Int64s:
        return np.rint(given * factor).astype(np.int64)

    of_touch = of_task[touches.task]
    return replace(
        graph,
        duration_ps=times(graph.duration_ps, of_task),
        latency_ps=times(graph.latency_ps, of_task),
        touches=replace(
            touches,
            miss_latency_ps=times(touches.miss_latency_ps, of_touch),
            miss_duration_ps=times(touches.miss_duration_ps, of_touch),
            evict_duration_ps=times(touches.evict_duration_ps, of_touch),
            port_duration_ps=times(touches.port_duration_ps, of_touch),
        ),
    )
