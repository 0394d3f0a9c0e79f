"""Supplies that tasks need: resources that serve them, credits to hold, tables to look in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import numpy as np

from replay.engine.blocks import INT32_MAX, INT64_MAX, MOST_EXTRA_PS, MOST_UNITS
from replay.engine.errors import GraphError
from replay.engine.taskgraph import DISCIPLINES, LINE, POLICIES, Int64s


class Supplies:
    """The part of a :class:`GraphBuilder` that knows resources, credit pools and tables."""

    def __init__(self) -> None:
        self._resources: list[tuple[str, str, int, int, int]] = []
        self._pools: list[tuple[str, str, int]] = []
        self._tables: list[tuple[str, str, int, int, int, int, int]] = []

    def resource(
        self,
        name: str,
        group: str,
        servers: int = 1,
        discipline: Literal["fifo", "voq", "turns", "line"] = "fifo",
        owner: int = -1,
    ) -> int:
        """Add something that serves tasks.

        Parameters
        ----------
        name
            For reports, such as ``gpu3.uplink``.
        group
            Class for utilisation and bounds, such as ``uplink`` or ``sm``.
        servers
            How many tasks it serves at a time.
        discipline
            What a waiting task without credits does to those behind it: ``fifo`` blocks them,
            ``voq`` lets the first in order that has its credits pass. ``turns`` is round-robin:
            tasks of one priority that take from the same pools are a lane, and of the lanes with
            the smallest priority that have their credits the one served longest ago is next. On a
            ``line`` the order of service is fixed when tasks become ready, so that tasks elsewhere
            can draw from it (:meth:`table`); its tasks have one priority, take and give back no
            credits and touch no table.
        owner
            The GPU it belongs to, -1 for none.

        Returns
        -------
        The resource's index.

        Raises
        ------
        GraphError
            If ``servers`` is not positive or the discipline unknown.
        """
        return int(self.resources([(name, owner)], group, servers, discipline)[0])

    def resources(
        self,
        names: Iterable[tuple[str, int]],
        group: str,
        servers: int = 1,
        discipline: Literal["fifo", "voq", "turns", "line"] = "fifo",
    ) -> Int64s:
        """Add several of one group; parameters as of :meth:`resource`.

        Parameters
        ----------
        names
            Name and owner of each.

        Returns
        -------
        The resources' indices (resource,).
        """
        first, several = len(self._resources), list(names)
        what = f"resource {(several[0][0] if several else group)!r}"
        rule = _index(discipline, DISCIPLINES, f"discipline of {what}")
        if not 1 <= servers <= INT32_MAX:
            message = f"{what} has {servers} servers; possible: 1 to {INT32_MAX}"
            raise GraphError(message)
        if rule == LINE and servers > 1:
            message = f"{what} has {servers} servers; a line has one"
            raise GraphError(message)
        count = int(servers)
        self._resources += [(name, group, count, rule, int(owner)) for name, owner in several]
        return np.arange(first, len(self._resources), dtype=np.int64)

    def credit_pool(self, name: str, capacity: int, group: str = "") -> int:
        """Add a counting pool of ``capacity`` units and return its index; groups are for reports.

        Raises
        ------
        GraphError
            If the capacity is negative.
        """
        if not 0 <= capacity <= INT64_MAX:
            message = f"credit pool {name!r} has capacity {capacity}; possible: 0 to {INT64_MAX}"
            raise GraphError(message)
        self._pools.append((name, group, int(capacity)))
        return len(self._pools) - 1

    def table(
        self,
        name: str,
        entries: int,
        *,
        group: str = "",
        policy: Literal["lru", "fifo"] = "lru",
        patience_ps: int = 0,
        backing: int | None = None,
        port: int | None = None,
    ) -> int:
        """Add a finite associative memory: a TLB, an address table, a reduction buffer, a cache.

        Parameters
        ----------
        name
            For reports, such as ``switch.port3.tlb``.
        entries
            How many units it has room for; a key takes one unless its touches say otherwise.
        group
            Class for reports.
        policy
            Who leaves a full table: ``lru`` the key touched longest ago, ``fifo`` the key inserted
            longest ago.
        patience_ps
            A full table lets a key go only so long after its last touch (``fifo``: after its
            insertion); whoever inserts meanwhile is in service longer by what is left.
        backing
            The line that serves keys that are not there. The toucher draws ``miss_duration_ps``
            from it and stays in service until that is served.
        port
            A line that every touch passes, whatever it finds, for its ``port_duration_ps``.

        Returns
        -------
        The table's index.

        Raises
        ------
        GraphError
            If the policy is unknown, there are no entries, a time is negative, what it draws from
            is no line, or it has both patience and a backing.
        """
        rule = _index(policy, POLICIES, f"policy of table {name!r}")
        if not 1 <= entries <= MOST_UNITS:
            message = f"table {name!r} has {entries} entries; possible: 1 to {MOST_UNITS}"
            raise GraphError(message)
        if not 0 <= patience_ps <= MOST_EXTRA_PS:
            message = (
                f"table {name!r} has patience_ps {patience_ps}; possible: 0 to {MOST_EXTRA_PS}"
            )
            raise GraphError(message)
        if patience_ps and backing is not None:
            message = f"table {name!r} has patience and a backing; possible: one of them"
            raise GraphError(message)
        backed, passed = self._line(name, backing), self._line(name, port)
        self._tables.append((name, group, int(entries), rule, int(patience_ps), backed, passed))
        return len(self._tables) - 1

    def _line(self, table: str, line: int | None) -> int:
        """Check that a table may draw from a resource; -1 for none."""
        if line is None:
            return -1
        if not 0 <= line < len(self._resources) or self._resources[line][3] != LINE:
            message = f"table {table!r} draws from resource {line}, which is no line"
            raise GraphError(message)
        return int(line)


def _index(name: str, known: tuple[str, ...], what: str) -> int:
    """Number of a name among those that are known."""
    if name not in known:
        message = f"unknown {what}: {name!r}; known: {', '.join(known)}"
        raise GraphError(message)
    return known.index(name)
