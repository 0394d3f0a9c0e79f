"""Associative memories of GPUs and switches, and the keys that are looked up in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from replay.model.machine.notes import TouchNotes
from replay.model.machine.times import NO_TIME, Time

if TYPE_CHECKING:
    from replay.engine import GraphBuilder
    from replay.model.machine.notes import Notes, Read
    from replay.model.machine.resources import Ints, IntsLike, Resources


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
        tasks: Ints,
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
        self._graph.touch(
            tasks,
            table,
            key,
            units=room,
            miss_latency_ps=miss.ps,
            miss_duration_ps=miss_service.ps,
            evict_duration_ps=evict.ps,
            charged=charged,
            drops=drops,
        )
        touch = self._number(len(tasks))
        self._notes.touches.setdefault(group, []).append(
            TouchNotes(
                touch,
                np.broadcast_to(np.asarray(lookups, np.int64), len(tasks)),
                np.broadcast_to(np.asarray(evict_wire_bytes, np.int64), len(tasks)),
                np.broadcast_to(np.asarray(miss_wire_bytes, np.int64), len(tasks)),
            )
        )

    def read(
        self,
        what: Read,
        tasks: Ints,
        table: Ints,
        key: Ints,
        *,
        nbytes: IntsLike,
        fetch_ps: IntsLike,
        port_ps: IntsLike,
        lag_ps: int,
    ) -> None:
        """Read blocks of a cache when tasks start; see `replay.model.machine.l2.L2.read`.

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
            What is done when the blocks have come.
        """
        self._graph.touch(
            tasks, table, key,
            units=nbytes, miss_duration_ps=fetch_ps, port_duration_ps=port_ps, lag_ps=lag_ps,
        )  # fmt: skip
        self._notes.reads.setdefault(what, []).append(self._number(len(tasks)))

    def _number(self, count: int) -> Ints:
        """Places of the next touches among all of the graph: (touch,)."""
        self._num_touches += count
        return np.arange(self._num_touches - count, self._num_touches, dtype=np.int64)
