"""Supplies that tasks need: resources that serve them, credits to hold, tables to look in."""

from __future__ import annotations

from typing import Literal

from replay.graph.blocks import INT32_MAX, INT64_MAX, MOST_EXTRA_PS
from replay.graph.errors import GraphError
from replay.graph.taskgraph import DISCIPLINES, POLICIES


class Supplies:
    """The part of a :class:`GraphBuilder` that knows resources, credit pools and tables."""

    def __init__(self) -> None:
        self._resources: list[tuple[str, str, int, int, int]] = []
        self._pools: list[tuple[str, str, int]] = []
        self._tables: list[tuple[str, str, int, int, int]] = []

    def resource(
        self,
        name: str,
        group: str,
        servers: int = 1,
        discipline: Literal["fifo", "voq", "turns"] = "fifo",
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
            tasks of one priority that take the same credits are a lane, and of the lanes with the
            smallest priority that have their credits the one served longest ago is next.
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
        rule = _index(discipline, DISCIPLINES, f"discipline of resource {name!r}")
        if not 1 <= servers <= INT32_MAX:
            message = f"resource {name!r} has {servers} servers; possible: 1 to {INT32_MAX}"
            raise GraphError(message)
        self._resources.append((name, group, int(servers), rule, int(owner)))
        return len(self._resources) - 1

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
    ) -> int:
        """Add a finite associative memory: a TLB, an address table, a reduction buffer.

        Parameters
        ----------
        name
            For reports, such as ``switch.port3.tlb``.
        entries
            How many keys it holds at a time.
        group
            Class for reports.
        policy
            Who leaves a full table: ``lru`` the key touched longest ago, ``fifo`` the key inserted
            longest ago.
        patience_ps
            A full table lets a key go only so long after its last touch (``fifo``: after its
            insertion); whoever inserts meanwhile is in service longer by what is left.

        Returns
        -------
        The table's index.

        Raises
        ------
        GraphError
            If the policy is unknown, there are no entries, or the patience is negative.
        """
        rule = _index(policy, POLICIES, f"policy of table {name!r}")
        if not 1 <= entries <= INT32_MAX:
            message = f"table {name!r} has {entries} entries; possible: 1 to {INT32_MAX}"
            raise GraphError(message)
        if not 0 <= patience_ps <= MOST_EXTRA_PS:
            message = (
                f"table {name!r} has patience_ps {patience_ps}; possible: 0 to {MOST_EXTRA_PS}"
            )
            raise GraphError(message)
        self._tables.append((name, group, int(entries), rule, int(patience_ps)))
        return len(self._tables) - 1


def _index(name: str, known: tuple[str, ...], what: str) -> int:
    """Number of a name among those that are known."""
    if name not in known:
        message = f"unknown {what}: {name!r}; known: {', '.join(known)}"
        raise GraphError(message)
    return known.index(name)
