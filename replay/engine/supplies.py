"""Supplies that tasks need: resources that serve them, credits to hold, tables to look in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from replay.engine.arguments import INT32_MAX
from replay.engine.blocks import INT64_MAX, MOST_EXTRA_PS, MOST_UNITS
from replay.engine.errors import GraphError
from replay.engine.taskgraph import (
    DISCIPLINES,
    LINE,
    POLICIES,
    CreditPools,
    GraphResources,
    Int64s,
    NameColumns,
    Tables,
)


class _Rows:
    """Columns of names; see `NameColumns`."""

    def __init__(self, of: type[NameColumns]) -> None:
        self.columns: list[list[Any]] = [[] for _ in of.TYPES]

    def __len__(self) -> int:
        return len(self.columns[0])

    def append(self, *row: Any) -> int:
        """Add a row by its values, in the order of the columns; return its index."""
        for column, value in zip(self.columns, row, strict=True):
            column.append(value)
        return len(self) - 1

    def extend(self, names: Sequence[str], *values: Any) -> Int64s:
        """Add rows by their names, and a value or a list for each other column; return their indices (row,)."""
        first, count = len(self), len(names)
        for column, value in zip(self.columns, (names, *values), strict=True):
            column += value if isinstance(value, list | tuple) else [value] * count
        return np.arange(first, first + count, dtype=np.int64)


class Supplies:
    """The part of a :class:`GraphBuilder` that knows resources, credit pools and tables."""

    def __init__(self) -> None:
        self._resources = _Rows(GraphResources)
        self._pools = _Rows(CreditPools)
        self._tables = _Rows(Tables)

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
        return int(self.resources([name], [int(owner)], group, servers, discipline)[0])

    def resources(
        self,
        names: Sequence[str],
        owners: list[int],
        group: str,
        servers: int = 1,
        discipline: Literal["fifo", "voq", "turns", "line"] = "fifo",
    ) -> Int64s:
        """Add several of one group; parameters as of :meth:`resource`.

        Parameters
        ----------
        names, owners
            Name and owner of each.

        Returns
        -------
        The resources' indices (resource,).
        """
        what = f"resource {(names[0] if names else group)!r}"
        rule = _index(discipline, DISCIPLINES, f"discipline of {what}")
        if not 1 <= servers <= INT32_MAX:
            message = f"{what} has {servers} servers; possible: 1 to {INT32_MAX}"
            raise GraphError(message)
        if rule == LINE and servers > 1:
            message = f"{what} has {servers} servers; a line has one"
            raise GraphError(message)
        return self._resources.extend(names, group, int(servers), rule, owners)

    def servers_of(self, resource: int) -> int:
        """Servers of a resource."""
        servers: int = self._resources.columns[2][resource]
        return servers

    def credit_pool(self, name: str, capacity: int, group: str = "") -> int:
        """Add a counting pool of ``capacity`` units and return its index; groups are for reports.

        Raises
        ------
        GraphError
            If the capacity is negative.
        """
        return int(self.credit_pools([name], [capacity], group)[0])

    def credit_pools(self, names: Sequence[str], capacities: Sequence[int], group: str = "") -> Int64s:
        """Add several pools of one group: (pool,) indices; raises as :meth:`credit_pool` does."""
        if capacities and not 0 <= min(capacities) <= max(capacities) <= INT64_MAX:
            wrong = next(
                (name, size) for name, size in zip(names, capacities, strict=True) if not 0 <= size <= INT64_MAX
            )
            message = f"credit pool {wrong[0]!r} has capacity {wrong[1]}; possible: 0 to {INT64_MAX}"
            raise GraphError(message)
        return self._pools.extend(names, group, [int(size) for size in capacities])

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
            message = f"table {name!r} has patience_ps {patience_ps}; possible: 0 to {MOST_EXTRA_PS}"
            raise GraphError(message)
        if patience_ps and backing is not None:
            message = f"table {name!r} has patience and a backing; possible: one of them"
            raise GraphError(message)
        backed, passed = self._line(name, backing), self._line(name, port)
        return self._tables.append(name, group, int(entries), rule, int(patience_ps), backed, passed)

    def _line(self, table: str, line: int | None) -> int:
        """Check that a table may draw from a resource; -1 for none."""
        if line is None:
            return -1
        if not 0 <= line < len(self._resources) or self._resources.columns[3][line] != LINE:
            message = f"table {table!r} draws from resource {line}, which is no line"
            raise GraphError(message)
        return int(line)


def _index(name: str, known: tuple[str, ...], what: str) -> int:
    """Number of a name among those that are known."""
    if name not in known:
        message = f"unknown {what}: {name!r}; known: {', '.join(known)}"
        raise GraphError(message)
    return known.index(name)
