"""Finite buffers, as credits that tasks take and give back."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from replay.engine import GraphBuilder
    from replay.model.arrays import Ints
    from replay.model.machine.resources import Resources


OUTBOX = 2
"""Messages that an SM has issued and that have not left: one that it issues and one that waits."""


class Buffers:
    """Credit pools of a machine; what is asked for again is the same, in whichever layer."""

    def __init__(self, graph: GraphBuilder, resources: Resources) -> None:
        self._graph = graph
        self._resources = resources
        self._num_ranks = resources.num_ranks
        self._known: dict[Hashable, dict[int, int]] = {}  # pools of single servers

    def pools(self, group: str, capacity: int, per_rank: int = 1) -> Ints:
        """Buffers of every GPU: credit pools (rank, buffer), or (rank,) where it has one.

        Parameters
        ----------
        group
            Name for reports.
        capacity
            Units that each has room for.
        """

        def make() -> Ints:
            several = per_rank > 1
            names = [
                f"{group} {rank}.{index}" if several else f"{group} {rank}"
                for rank in range(self._num_ranks)
                for index in range(per_rank)
            ]
            shape = (self._num_ranks, per_rank) if several else (self._num_ranks,)
            return self._graph.credit_pools(names, [capacity] * len(names), group).reshape(shape)

        return self._resources.once("buffers", (group, capacity, per_rank), make)

    def reserve_unlisted(self, name: str, capacity: int) -> Ints:
        """Buffers that no report lists: (rank,); `name` says where its ``{rank}`` stands."""

        def make() -> Ints:
            names = [name.format(rank=rank) for rank in range(self._num_ranks)]
            return self._graph.credit_pools(names, [capacity] * len(names))

        return self._resources.once("unnamed buffers", (name, capacity), make)

    def outboxes_of(self, servers: Ints, *, lanes: bool = False) -> Ints:
        """Room for messages that SMs have begun to issue and that have not left their GPU.

        For each SM, the message that it issues and one more that waits for the uplink (`OUTBOX`);
        a message is the model's grain. A pool of SMs has room for two messages per SM.

        Parameters
        ----------
        servers
            (message,): the SM that issues each, or the pool of SMs.
        lanes
            Whether these are numbers of warps that serve one peer each, with as much room as an SM.

        Returns
        -------
        (message,) credit pools, one per SM, pool or warp.
        """
        what = "lane" if lanes else "SM"

        def room(new: list[int]) -> list[int]:
            return [OUTBOX * (1 if lanes else self._resources.servers_of(server)) for server in new]

        return self._of_each(what, servers, f"outbox of {what}", room)

    def lane_rings(self, what: str, lanes: Ints, rows: int) -> Ints:
        """Ring buffers where few pairs of ranks have one: (message,) pools of lanes (message,).

        Parameters
        ----------
        what, lanes
            Which rings; what is asked for again is the same ring.
        rows
            Rows of each.
        """
        return self._of_each((what, rows), lanes, f"{what} ring", lambda new: [rows] * len(new))

    def _of_each(self, what: Hashable, servers: Ints, name: str, room: Callable[[list[int]], list[int]]) -> Ints:
        """(message,): the pools of servers (message,), made where they are asked for first."""
        used, of = np.unique(servers, return_inverse=True)
        known, numbers = self._known.setdefault(what, {}), used.tolist()
        if new := [number for number in numbers if number not in known]:
            made = self._graph.credit_pools([f"{name} {number}" for number in new], room(new))
            known |= zip(new, made.tolist(), strict=True)
        return np.array([known[number] for number in numbers], np.int64)[of.reshape(-1)]

    def rings(self, num_channels: int, rows: int) -> Ints:
        """Ring buffers in the receivers' memory: credit pools (source, destination, channel).

        They are allocated once and used by one kernel after the other.
        """

        def make() -> Ints:
            shape = (self._num_ranks, self._num_ranks, num_channels)
            ranks = range(self._num_ranks)
            names = [
                f"ring {src}->{dst} channel {channel}"
                for src in ranks
                for dst in ranks
                for channel in range(num_channels)
            ]
            return self._graph.credit_pools(names, [rows] * len(names)).reshape(shape)

        return self._resources.once("rings", (num_channels, rows), make)
