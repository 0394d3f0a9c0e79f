"""Building a task graph from numpy blocks: no Python object and no Python loop per task.

The module is long because every verb of a graph is a method of one class, with its docstring.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from replay.engine.arguments import (
    INT32_MAX,
    Numbers,
    are_tasks,
    as_ints,
    block_length,
    broadcast_length,
    check_range,
    stretch,
)
from replay.engine.blocks import (
    INT64_MAX,
    GateBlock,
    RowBlocks,
    TakeBlocks,
    TouchBlocks,
    gate_block,
)
from replay.engine.checks import (
    check_acyclic,
    check_gates,
    check_roles,
    check_takes,
)
from replay.engine.columns import FEW_EDGES, EdgeBlocks, IntArray
from replay.engine.errors import GraphError
from replay.engine.supplies import Supplies
from replay.engine.taskgraph import (
    NULL_RESOURCE,
    CreditPools,
    Gates,
    GraphPart,
    GraphResources,
    Tables,
    TaskGraph,
)

Ids = npt.NDArray[np.int64]

#: Field -> (narrowest element type, smallest, largest) of what a task carries. Times and bytes are
#: never narrower than 32 bits, so that few of them can be added up.
_FIELDS: dict[str, tuple[type[np.generic], int, int]] = {
    "resource": (np.int8, NULL_RESOURCE, INT32_MAX),
    "kind": (np.int8, 0, INT32_MAX),
    "duration_ps": (np.int32, 0, INT64_MAX),
    "latency_ps": (np.int32, 0, INT64_MAX),
    "priority": (np.int8, -INT32_MAX, INT32_MAX),
    "payload_bytes": (np.int32, 0, INT64_MAX),
    "wire_bytes": (np.int32, 0, INT64_MAX),
    "rank": (np.int8, -1, INT32_MAX),
    "tag": (np.int8, -INT64_MAX, INT64_MAX),
}
#: What a task of a kind that is left out has instead.
_MARK = {name: 0 for name in _FIELDS if name not in ("rank", "tag")} | {"resource": NULL_RESOURCE}


class Position(NamedTuple):
    """Tasks, edges, takes, and others that had been added at some time.

    Edges and takes are those of the part that was being collected, whose first task is `part`.
    """

    part: int
    task: int
    edge: int
    take: int
    others: tuple[int, int, int]


class GraphBuilder(Supplies):
    """Collects resources, pools, tables, tasks, edges and gates, then builds the graph once.

    Parameters
    ----------
    kind_names
        Name of every kind of task (kind,), for reports and error messages. A task's ``kind`` is
        an index into this list; the engine does not look at it.
    left_out
        Kinds whose tasks become marks: tasks of the first kind, on no resource, that take no
        time. They pass on what they wait for, and must touch nothing.

    Attributes
    ----------
    on_block
        Called with the first id of each block of tasks before it is added; None calls nothing.

    Examples
    --------
    >>> builder = GraphBuilder(["send", "compute"])
    >>> port = builder.resource("gpu0.uplink", group="uplink", owner=0)
    >>> sm = builder.resource("gpu1.sm", group="sm", servers=2, owner=1)
    >>> sends = builder.add(3, resource=port, duration_ps=10, latency_ps=5)
    >>> tile = builder.join(sends, resource=sm, duration_ps=100, kind=1)
    >>> graph = builder.build()
    >>> graph.num_tasks, graph.num_edges
    (4, 3)
    """

    def __init__(self, kind_names: Sequence[str], left_out: Collection[int] = ()) -> None:
        super().__init__()
        self.kind_names = tuple(kind_names)
        self.left_out = frozenset(left_out)
        self._is_left_out = bytearray()  # of each task, where any kinds are
        self._num_tasks = 0
        self._rows = RowBlocks("task", _FIELDS)
        self._rows.columns["kind"].high = len(self.kind_names) - 1
        self._resource = self._rows.columns["resource"]
        self._edges = EdgeBlocks()
        self._takes = TakeBlocks()
        self._touches = TouchBlocks()
        self._gates: list[GateBlock] = []
        self.on_block: Callable[[int], None] | None = None
        self._first = 0  # of the part that is being collected
        self._num_touches = 0  # of the parts before
        self._is_built = False

    @property
    def num_tasks(self) -> int:
        """Tasks added so far; also the id of the next one."""
        return self._num_tasks

    def leaves_out(self, tasks: Ids) -> npt.NDArray[np.bool_]:
        """(task,): whether each is of a kind that is left out; asked where any are."""
        return np.frombuffer(self._is_left_out, np.bool_)[tasks]

    def add(
        self,
        count: int | None = None,
        *,
        resource: Numbers,
        duration_ps: Numbers = 0,
        latency_ps: Numbers = 0,
        priority: Numbers = 0,
        kind: Numbers = 0,
        payload_bytes: Numbers = 0,
        wire_bytes: Numbers = 0,
        rank: Numbers = -1,
        tag: Numbers = -1,
        after: Numbers | None = None,
    ) -> Ids:
        """Add a block of tasks; every field is a number or an array (task,).

        Parameters
        ----------
        count
            Number of tasks; taken from the arrays when left out (1 if there are none).
        resource
            Where the task is served; ``NULL_RESOURCE`` for a pure delay.
        duration_ps
            How long it holds its server.
        latency_ps
            How long after leaving its server it becomes visible to its successors.
        priority
            Smaller is served first.
        kind
            Index into ``kind_names``.
        payload_bytes, wire_bytes
            What it carries, without and with framing. For reports only.
        rank
            The GPU it works for, -1 for none. For reports only.
        tag
            The scheme's own mark. For reports only.
        after
            Predecessors: an array (task,) for one each, or one id for all of the block.

        Returns
        -------
        The new ids (task,), consecutive.

        Raises
        ------
        GraphError
            If lengths differ or a value is not possible, naming the field and the task. A possible id of a task
            that does not exist is refused by :meth:`build` and :meth:`part`.
        """
        if self._is_built:
            self._check_open()
        first = self._num_tasks
        if self.on_block is not None:
            self.on_block(first)
        self._resource.high = len(self._resources.columns[0]) - 1
        if isinstance(kind, IntEnum):
            kind = int(kind)
        values = (resource, kind, duration_ps, latency_ps, priority, payload_bytes, wire_bytes, rank, tag)
        size: Any = count
        before: Any = after
        is_left_out = type(kind) is int and kind in self.left_out
        is_plain = count is not None and count > 0 and first + count <= INT32_MAX
        if is_plain and self.left_out:
            is_plain = type(kind) is int
        is_plain = is_plain and (before is None or are_tasks(before, size))
        if not (is_plain and self._rows.put(size, (*_MARK.values(), rank, tag) if is_left_out else values)):
            size, before = self._add_checked(size, values, after)
        elif self.left_out:
            self._is_left_out.extend(bytes([is_left_out]) * size)
        past = self._num_tasks = first + size
        ids = np.arange(first, past, dtype=np.int64)
        if before is not None:
            self._edges.append(before, ids if size <= FEW_EDGES else range(first, past), size)
        return ids

    def _add_checked(
        self, count: int | None, values: tuple[Any, ...], after: Numbers | None
    ) -> tuple[int, int | IntArray | None]:
        """Add the rows of a block that is not as most are; their number, and the predecessors."""
        given = {
            name: value if type(value) is int else as_ints(name, value)
            for name, value in zip(_FIELDS, values, strict=True)
        }
        before = None if after is None else as_ints("after", after)
        count = block_length(count, given, before)
        if self.left_out:
            given |= self._without(given, count)
        if self._num_tasks + count > INT32_MAX:
            message = f"{self._num_tasks + count} tasks; a graph holds at most {INT32_MAX}"
            raise GraphError(message)
        if before is not None and count:
            if not isinstance(before, int) and before.size == 1 and count != 1:
                before = int(before[0])
            check_range("after", before, 0, INT32_MAX, self._num_tasks)
        self._rows.append(count, given, self._num_tasks)
        return count, before

    def _without(self, given: dict[str, int | IntArray], count: int) -> dict[str, int | IntArray]:
        """Fields of tasks of which those of kinds that are left out become marks."""
        leaves = np.broadcast_to(np.isin(given["kind"], list(self.left_out)), count)
        self._is_left_out.extend(leaves.tobytes())
        if not leaves.any():
            return {}
        return {name: np.where(leaves, mark, given[name]) for name, mark in _MARK.items()}

    @property
    def position(self) -> Position:
        """Place of the next task, edge and take; see :meth:`repeat`."""
        others = len(self._touches), len(self._gates), self._takes.num_shares
        return Position(self._first, self._num_tasks, len(self._edges), len(self._takes), others)

    def repeat(self, since: Position, times: int) -> int:
        """Add all tasks since some position again, as if what added them ran again and again.

        What a task waits for, and who gives its credits back, is each time as many tasks later as
        the task itself: the first of these tasks wait for those at the end of the time before.
        ``on_block`` is not called.

        Parameters
        ----------
        since
            Where they begin. Since then no part was taken, no key touched, no gate added, and no
            credit taken that the last of several tasks gives back. Edges added since then come from
            these tasks, or from as many that were added right before them.
        times
            How often, at least 0.

        Returns
        -------
        By how many tasks the last of them are later than the first.

        Raises
        ------
        GraphError
            If something was added that cannot be repeated, ``times`` is negative, or it would be
            too many tasks.
        """
        self._check_open()
        past, count = self._num_tasks, self._num_tasks - since.task
        if times < 0:
            message = f"times is {times}; possible: 0 or more"
            raise GraphError(message)
        if since.part != self._first or self.position.others != since.others:
            message = "an earlier part, touches, gates and credits that several tasks give back cannot be repeated"
            raise GraphError(message)
        if past + times * count > INT32_MAX:
            message = f"{past + times * count} tasks; a graph holds at most {INT32_MAX}"
            raise GraphError(message)
        self._edges.repeat(since.edge, times, count, since.task - count)
        self._rows.repeat(since.task - self._first, times)
        self._takes.repeat(since.take, times, count)
        self._is_left_out.extend(times * self._is_left_out[since.task :])
        self._num_tasks += times * count
        return times * count

    def add_one(self, **fields: Any) -> int:
        """Add one task with the fields of :meth:`add` and return its id."""
        return int(self.add(1, **fields)[0])

    def edges(self, src: Numbers, dst: Numbers) -> None:
        """Add edges: each ``dst`` waits until its ``src`` is visible; arrays broadcast.

        Raises
        ------
        GraphError
            If lengths differ or a number is not possible, naming the end and the edge. A possible id of a task
            that does not exist is refused by :meth:`build` and :meth:`part`.
        """
        if self._is_built:
            self._check_open()
        count = src.size if type(src) is np.ndarray else 0
        if count and are_tasks(src, count) and are_tasks(dst, count):
            self._edges.append(src, dst, count)
            return
        ends = {"src": as_ints("src", src), "dst": as_ints("dst", dst)}
        count = broadcast_length(ends)
        for name, tasks in ends.items():
            check_range(name, tasks, 0, INT32_MAX, 0, "edge")
            if not isinstance(tasks, int) and tasks.size != count:
                ends[name] = stretch(tasks, count)
        self._edges.append(ends["src"], ends["dst"], count)

    def join(self, ids: Numbers, *, resource: Numbers = NULL_RESOURCE, **fields: Any) -> int:
        """Add one task that waits for all of ``ids`` and return its id."""
        joined = self.add_one(resource=resource, **fields)
        sources = as_ints("ids", ids)
        if isinstance(sources, int) or sources.size:
            self.edges(sources, joined)
        return joined

    def take(self, tasks: Numbers, pool: Numbers, units: Numbers = 1, released_by: Numbers | None = None) -> None:
        """Make tasks hold credits: they start only when their units are free in the pool.

        Parameters
        ----------
        tasks
            Who takes (take,).
        pool
            From which pool (take,).
        units
            How many (take,), at least 1 and at most the pool's capacity.
        released_by
            The task whose leaving its server gives them back (take,); the taker itself if left
            out. It must not be able to start before the taker.

        Raises
        ------
        GraphError
            If lengths differ, a pool is unknown, or more is asked than the pool holds.
        """
        self._check_open()
        self._takes.append(len(self._pools), tasks, pool, units, released_by)

    def take_until_last(
        self, tasks: Numbers, pool: Numbers, units: Numbers, of: IntArray, released_by: Numbers
    ) -> None:
        """Make tasks hold credits until the last of several other tasks has left its server.

        Parameters
        ----------
        tasks, pool, units
            As for :meth:`take`.
        of, released_by
            (releasing task,): the take, counted from 0 in this call, and the task. Every take has
            at least one.

        Raises
        ------
        GraphError
            As for :meth:`take`, or if a take has nobody who gives it back.
        """
        self._check_open()
        self._takes.append_shared(len(self._pools), tasks, pool, units, of, released_by)

    def touch(
        self,
        tasks: Numbers,
        table: Numbers,
        key: Numbers,
        *,
        units: Numbers = 1,
        miss_latency_ps: Numbers = 0,
        miss_duration_ps: Numbers = 0,
        evict_duration_ps: Numbers = 0,
        port_duration_ps: Numbers = 0,
        lag_ps: Numbers = 0,
        charged: Numbers | None = None,
        drops: Numbers | list[bool] | npt.NDArray[np.bool_] = False,
    ) -> None:
        """Make tasks look a key up in a table when they start; arrays broadcast.

        A task's touches happen in the order they were added. A key that is not in the table is
        inserted; if there is no room, others leave. :attr:`Timeline.touched` tells what each
        touch found.

        Parameters
        ----------
        tasks
            Who touches (touch,); tasks of a real resource.
        table
            Which table (touch,).
        key
            Which key (touch,), any number from 0 on.
        units
            Room that the key takes if this touch inserts it (touch,).
        miss_latency_ps, miss_duration_ps
            What a key costs that was evicted (touch,): the task becomes visible so much later, and
            is in service so much longer. Keys that were never there, or were dropped, cost nothing.
            Where the table has a backing, the task draws the duration from that instead, also for
            keys that were never there; 0 brings a key in without asking for it.
        evict_duration_ps
            How much longer ``charged`` is in service for each key that the insertion evicts
            (touch,).
        port_duration_ps
            What the touch draws from the table's port (touch,).
        lag_ps
            How long after the key has come from the table's backing the task is visible at the
            earliest (touch,); it stays in service for what its own latency leaves of that.
        charged
            Who pays for the eviction (touch,), a task of a real resource that does not start
            before the touch; the touching task itself if left out.
        drops
            Take the key out of the table after the touch and forget it (touch,): the next touch
            finds it new. A key that is not there is then not inserted.

        Raises
        ------
        GraphError
            If lengths differ, a table is unknown, or a key, its units or a time is not possible.
        """
        self._check_open()
        costs = (miss_latency_ps, miss_duration_ps, evict_duration_ps, port_duration_ps, lag_ps)
        self._touches.append(len(self._tables), tasks, table, key, units, costs, charged, _as_numbers(drops))

    def gate(
        self, members: Numbers, waiters: Numbers, tile_slots: Numbers, tile_first: Numbers, tile_last: Numbers
    ) -> int:
        """Add a gate: members take the slots of its tiles in the order they become visible.

        A tile's first task has one dependency, met when all slots of the tile are taken. A
        member's waiter has one dependency per membership, met when the last task of the tile the
        member landed in becomes visible. Neither is an edge to be added by the caller.

        Parameters
        ----------
        members
            Tasks that arrive (member,).
        waiters
            The task that waits for each member's tile (member,); -1 for nobody.
        tile_slots
            Slots of each tile (tile,), in the order they fill; they add up to the members.
        tile_first, tile_last
            First and last task of each tile (tile,).

        Returns
        -------
        The gate's index.

        Raises
        ------
        GraphError
            If lengths differ or the slots do not add up to the members.
        """
        self._check_open()
        index = len(self._gates)
        self._gates.append(gate_block(index, members, waiters, tile_slots, tile_first, tile_last))
        return index

    def build(self) -> TaskGraph:
        """Join the blocks, check them and return the graph; the builder is empty afterwards.

        Raises
        ------
        GraphError
            If an edge, a take, a touch or a gate names a task that does not exist, if a take wants
            more than its pool holds or a touch more than its table, if a pure delay touches a table
            or is charged, if a task of a line does what it may not, or if the graph has a cycle (a
            gate counts as if every tile waited for every member, and every waiter for every tile).
        """
        self._check_open()
        self._is_built = True
        if self._first:
            message = "parts of this graph have been taken; take the rest of it with part()"
            raise GraphError(message)
        return self._join(self._num_tasks, self._edges)

    def part(self, watched: Numbers | None = None, room: int = 0) -> GraphPart:
        """Take what was added since the last part, checked; more can be added afterwards.

        Parameters
        ----------
        watched
            Tasks of this part (task,) that the next part waits for and that are visible first of
            all that it waits for: a `Scheduler` stops when one of them is visible.
        room
            Rows to be left free in front of its columns, for what is left of earlier parts.

        What a part adds may wait for tasks of earlier parts, and uses the same resources, pools and
        tables. Everything else stays within a part: takes and who gives them back, touches and who
        is charged, gates; and nothing of an earlier part waits for a later one.

        Raises
        ------
        GraphError
            As for :meth:`build`, or if something reaches back into an earlier part.
        """
        self._check_open()
        first, count = self._first, self._num_tasks - self._first
        edges, outer_source, outer_target = self._edges.split(first)
        if watched is not None:
            from replay.engine.kernels.layout import SIGNAL

            seen = as_ints("watched", watched) - first
            edges.append(seen, SIGNAL, np.size(seen))
        self._gates = [_from_first(block, first) for block in self._gates]
        graph = self._join(count, edges, first, room)
        part = GraphPart(
            graph,
            first,
            self._num_touches,
            outer_source.astype(np.int32),
            outer_target.astype(np.int32),
        )
        self._first = self._num_tasks
        self._num_touches += len(graph.touches)
        return part

    def _join(self, num_tasks: int, edges: EdgeBlocks, first: int = 0, room: int = 0) -> TaskGraph:
        """Join what was collected, with ids counted from ``first``; it is given up here."""
        gates = Gates.from_blocks(self._gates)
        check_gates(gates, num_tasks)
        self._gates = []
        pools = CreditPools.from_lists(self._pools.columns)
        takes, touches = self._takes.join(room, first), self._touches.join(room, first)
        for tasks, what in (
            (takes.task, "a take"),
            (takes.released_by, "a take"),
            (touches.task, "a touch"),
            (touches.charged, "a touch"),
        ):
            _check_within(tasks, first, what)
        check_takes(takes, pools, num_tasks)
        gates.append_events(edges)
        graph = TaskGraph.from_edges(
            kind_names=self.kind_names,
            resources=GraphResources.from_lists(self._resources.columns),
            pools=pools,
            takes=takes,
            tables=Tables.from_lists(self._tables.columns),
            touches=touches,
            gates=gates,
            edges=edges,
            **self._rows.join(room),
        )
        check_roles(graph)
        check_acyclic(graph)
        return graph

    def _check_open(self) -> None:
        if self._is_built:
            message = "this builder has built its graph already; start a new GraphBuilder"
            raise GraphError(message)


def _as_numbers(flags: Any) -> Any:
    """Flags as 0 and 1; what is no flag is left for the check of numbers."""
    if isinstance(flags, (bool, np.bool_)):
        return int(flags)
    values = np.asarray(flags) if isinstance(flags, list) else flags
    return values.view(np.int8) if isinstance(values, np.ndarray) and values.dtype == np.bool_ else values


def _from_first(block: GateBlock, first: int) -> GateBlock:
    """A gate with its tasks counted from ``first``."""
    members, waiters, slots, firsts, lasts = block
    waits = np.where(waiters < 0, first, waiters) - first
    for tasks in (members - first, waits, firsts - first, lasts - first):
        _check_within(tasks, first, "a gate")
    waits[waiters < 0] = -1
    return members - first, waits, slots, firsts - first, lasts - first


def _check_within(tasks: IntArray, first: int, what: str) -> None:
    """Refuse tasks of earlier parts, which counted from the first of this one are negative."""
    if tasks.size and int(tasks.min()) < 0:
        message = f"{what} names task {first + int(tasks.min())}; this part begins with {first}"
        raise GraphError(message)
