"""Associative memories of GPUs and switches, and the keys that are looked up in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from replay.model.machine.notes import TouchNotes
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from replay.engine import GraphBuilder
    from replay.model.arrays import Ints, Tasks
    from replay.model.machine.notes import Notes, Read
    from replay.model.machine.resources import IntsLike, Resources


class Caches:
    """Tables of a machine; what is asked for again is the same, in whichever layer."""

    def __init__(self, graph: GraphBuilder, resources: Resources, notes: Notes) -> None:
        self._graph = graph
        self._resources = resources
        self._notes = notes
        self._num_touches = 0
        self._num_keys = 0

    def tables(
        self,
        group: str,
        entries: int,
        *,
        policy: Literal["lru", "fifo"] = "lru",
        patience: Time = NO_TIME,
    ) -> Ints:
        """Associative memories of every GPU: (rank,) tables; see `GraphBuilder.table`.

        Layers share them, so that keys of different layers must differ (`new_keys`).
        """
        patience_ps = int(patience.ps)

        def make() -> Ints:
            return np.array(
                [
                    self._graph.table(
                        f"{group} {rank}",
                        entries,
                        group=group,
                        policy=policy,
                        patience_ps=patience_ps,
                    )
                    for rank in self._resources.ranks.tolist()
                ],
                dtype=np.int64,
            )

        return self._resources.once("tables", (group, entries, policy, patience_ps), make)

    def new_keys(self, count: int) -> int:
        """First of so many keys that no table has seen."""
        first = self._num_keys
        self._num_keys += count
        return first

    def touch(
        self,
        group: str,
        tasks: Tasks,
        table: Ints,
        key: Ints,
        *,
        room: IntsLike = 1,
        lookups: IntsLike = 1,
        miss: Time = NO_TIME,
        miss_service: Time = NO_TIME,
        miss_wire_bytes: IntsLike = 0,
        evict: Time = NO_TIME,
        evict_wire_bytes: IntsLike = 0,
        charged: Ints | None = None,
        drops: bool = False,
    ) -> None:
        """Look keys up in tables when tasks start; see `GraphBuilder.touch`.

        Parameters
        ----------
        group
            Group of the tables, for reports.
        tasks, table, key
            (touch,).
        room
            Units of the table that the key takes.
        lookups
            Lookups in a row that a touch stands for; 0 for one that only forgets.
        miss
            Latency of fetching a key that had to leave.
        miss_service, miss_wire_bytes
            Time and bytes that fetching it puts on the port that the touching task occupies.
        evict, evict_wire_bytes
            Time and bytes that an eviction puts on the port that `charged` occupies.
        charged
            (touch,): tasks that pay for evictions.
        drops
            Whether the keys leave their tables.
        """
        pays = tasks if charged is None else charged
        given = (table, key, room, miss.ps, miss_service.ps, evict.ps, pays)
        tasks, (table, key, room, latency, service, evicting, pays, *noted) = self._there(
            tasks, *given, lookups, evict_wire_bytes, miss_wire_bytes
        )
        self._graph.touch(
            tasks,
            table,
            key,
            units=room,
            miss_latency_ps=latency,
            miss_duration_ps=service,
            evict_duration_ps=evicting,
            charged=pays,
            drops=drops,
        )
        touch = self._number(len(tasks))
        of_touch = (np.broadcast_to(np.asarray(one, np.int64), len(tasks)) for one in noted)
        self._notes.touches.setdefault(group, []).append(TouchNotes(touch, *of_touch))

    def read(
        self,
        what: Read,
        tasks: Tasks,
        table: Ints,
        key: Ints,
        *,
        nbytes: IntsLike,
        fetch_ps: IntsLike,
        port_ps: IntsLike,
        lag_ps: IntsLike,
    ) -> None:
        """Read blocks of a cache when tasks start; see `replay.model.machine.l2.L2Caches.read`.

        Parameters
        ----------
        what
            What the blocks are, for reports.
        tasks, table, key
            (read,).
        nbytes
            (read,): room that the block takes.
        fetch_ps, port_ps
            (read,): picoseconds of the table's backing if the block had to leave, and of its port.
        lag_ps
            (read,): what is left to do when a block has come from the backing.
        """
        given = (table, key, nbytes, fetch_ps, port_ps, lag_ps)
        tasks, (table, key, nbytes, fetch_ps, port_ps, lag_ps) = self._there(tasks, *given)
        self._graph.touch(
            tasks,
            table,
            key,
            units=nbytes,
            miss_duration_ps=fetch_ps,
            port_duration_ps=port_ps,
            lag_ps=lag_ps,
        )
        self._notes.reads.setdefault(what, []).append(self._number(len(tasks)))

    def _there(self, tasks: Tasks, *given: IntsLike) -> tuple[Ints, list[Any]]:
        """Leave out what is given of tasks that the graph leaves out: tasks (touch,), and the rest.

        Parameters
        ----------
        given
            Numbers or (touch,).
        """
        if not self._graph.left_out:
            return tasks, list(given)
        there = ~self._graph.leaves_out(tasks)
        each = (np.broadcast_to(np.asarray(one, np.int64), len(tasks)) for one in given)
        return tasks[there], [one[there] for one in each]

    def _number(self, count: int) -> slice:
        """Places of the next touches among all of the graph."""
        self._num_touches += count
        return slice(self._num_touches - count, self._num_touches)
